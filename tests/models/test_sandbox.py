"""The sandbox: right programs pass; what hangs, breaks out, or only pretends to have ended does not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from icarus_local.errors import IcarusError
from icarus_models.evaluation import sandbox
from icarus_models.evaluation.sandbox import passes


@pytest.mark.parametrize(
    "program",
    [
        "assert sum([1, 2]) == 3",
        "import math, re, json, random, itertools, functools, collections, datetime, string, heapq, typing",
        "open('here.txt', 'w').write('x')\nassert open('here.txt').read() == 'x'",
        "print('x' * 100_000)",
        "import threading\nthreading.Thread(target=lambda: None).start()",
        "import os\nos.makedirs('a/b')\nos.rename('a/b', 'a/c')\nos.rmdir('a/c')",
        "import tempfile\nwith tempfile.TemporaryFile() as file:\n    file.write(b'x')",
        "for i in range(90):\n    open(f'{i}', 'w').close()\n    open(f'{i}', 'a').close()",
        "import resource, sqlite3, doctest\nfrom os import *",
    ],
)
def test_programs_that_keep_within_it_pass(program: str) -> None:
    assert passes(program)


@pytest.mark.parametrize(
    "program",
    [
        "assert False",
        "def f(:",
        "raise SystemExit(0)",
        "import os\nos._exit(0)",
        "import sys\nsys.exit()",
        "input()",
        "x = [0] * 10**10",
        "x = bytearray(2**30)",
        "def f(): f()\nf()",
        "open('../out.txt', 'w')",
        "import os\nos.open('../out.txt', os.O_WRONLY | os.O_CREAT)",
        "import pathlib\npathlib.Path('../made').mkdir()",
        "import shutil\nshutil.rmtree('..')",
        "import os\nos.symlink('..', 'up')\nopen('up/out.txt', 'w')",
        "open('big', 'wb').write(bytes(3 << 20))",
        "import socket\nsocket.socket()",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9')",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.system('true')",
        "import os\nos.fork()",
        "import os\nos.kill(os.getppid(), 0)",
        "import ctypes\nctypes.CDLL(None)",
        "import sqlite3\nsqlite3.connect('x.db').execute('create table t(a)')",
        "import _dbm\n_dbm.open('x', 'c')",
        "import _gdbm\n_gdbm.open('x', 'c')",
        "import os\nos.mkfifo('x')",
        "import posix\nposix.mknod('x')",
        "import os\nos.open('.', os.O_RDONLY)",
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))",
        "for i in range(101):\n    open(f'{i}', 'w').close()",
        "import os\nfor i in range(101):\n    os.mkdir(f'{i}')",
        "\0",
    ],
)
def test_programs_that_fail_or_reach_out_do_not(program: str) -> None:
    assert not passes(program, seconds=3)


def test_an_endless_program_ends() -> None:
    started = time.monotonic()
    assert not passes("while True: pass", seconds=1)
    assert not passes("import time\ntime.sleep(60)", clock=0.5)
    assert time.monotonic() - started < 30


def test_a_program_that_has_to_wait_for_the_cpu_passes() -> None:
    # More of the clock than it may take of a CPU, as on a busy machine.
    assert passes("import time\ntime.sleep(1.5)", seconds=1)


def test_nothing_outside_its_folder_changes(tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("kept", encoding="utf-8")
    for call in (f"open({str(kept)!r}, 'w')", f"os.remove({str(kept)!r})", f"os.truncate({str(kept)!r}, 0)"):
        assert not passes(f"import os\n{call}")
    assert not passes(f"import os\nos.rename('x', {str(kept)!r}) if open('x', 'w') else 0")
    up = f"import os\nfd = os.open({str(tmp_path)!r}, os.O_RDONLY)\nos.open('x', os.O_CREAT | os.O_WRONLY, dir_fd=fd)"
    assert not passes(up)
    assert not passes(f"import os\nos.mkfifo({str(tmp_path / 'pipe')!r})")
    assert not passes(f"import sqlite3\nsqlite3.connect({str(tmp_path / 'x.db')!r}).execute('create table t(a)')")
    assert kept.read_text("utf-8") == "kept"
    assert os.listdir(tmp_path) == ["kept.txt"]


def test_the_folder_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert passes("open('left', 'w').write('x')")
    assert not list(tmp_path.iterdir())


def test_where_a_process_cannot_be_bounded_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.os, "name", "nt")
    with pytest.raises(IcarusError, match="Linux and macOS"):
        passes("pass")
