"""The process of a run: its memory, its errors and its last words come through, and it does not outlive who asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from icarus_local.bench import load, process
from icarus_local.bench.load import LoadMeter
from icarus_local.bench.process import run_child
from icarus_local.errors import EngineDiedError, IcarusError
from tests.bench.jobs import job, tiny_setup, workflow
from tests.tiny import Tiny


def test_the_memory_of_a_process_is_its_own(tiny: Tiny) -> None:
    if sys.platform != "linux":
        pytest.skip("other systems tell a process's own maximum")
    ballast = np.ones(400 << 20, np.uint8)
    with tiny_setup(tiny, 1) as setup:
        record = run_child(job(setup, "icarus", workflow(agents=1), warm_turns=1))
    assert record.rss_bytes is not None
    assert 10 << 20 < record.rss_bytes < ballast.nbytes


def test_an_error_of_a_system_comes_through_with_its_name(tiny: Tiny, tmp_path: Path) -> None:
    with tiny_setup(tiny, 1) as setup:
        broken = setup.model_copy(update={"base": tmp_path / "gone.gguf"})
        with pytest.raises(IcarusError, match=r"swap: .*gone\.gguf"):
            run_child(job(broken, "swap", workflow(agents=1)))


def test_a_process_that_dies_is_told_with_its_last_words(tiny: Tiny) -> None:
    with tiny_setup(tiny, 1) as setup, pytest.raises(EngineDiedError, match=r"measures nobody ended with status 1.*"):
        run_child(job(setup, "nobody", workflow(agents=1)))


@pytest.mark.timeout(60)
def test_a_process_that_says_much_is_not_held_up(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    says = 'import sys; sys.stderr.write(\'x\' * (1 << 20) + \'the end\'); print(\'{"error": "e", "hint": ""}\')'
    monkeypatch.setattr(process, "_CHILD", [sys.executable, "-c", says])
    with tiny_setup(tiny, 1) as setup, pytest.raises(IcarusError, match="swap: e"):
        run_child(job(setup, "swap", workflow(agents=1)))
    monkeypatch.setattr(process, "_CHILD", [sys.executable, "-c", says.replace("print", "str")])
    with tiny_setup(tiny, 1) as setup, pytest.raises(EngineDiedError, match=r"status 0: x+the end\. "):
        run_child(job(setup, "swap", workflow(agents=1)))


@pytest.mark.parametrize("system", ["icarus", "swap"])
def test_a_process_ends_with_the_one_that_started_it(tiny: Tiny, system: str) -> None:
    with tiny_setup(tiny, 1) as setup:
        endless = job(setup, system, workflow(agents=1), warm_turns=10_000)
        child = subprocess.Popen(process._CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdin is not None
        # What the system does with the pipe of a process that is killed.
        child.stdin.write(endless.model_dump_json().encode() + b"\n")
        child.stdin.close()
        try:
            assert child.wait(60) == 1
        finally:
            child.kill()


def test_what_others_take_is_what_is_busy_and_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"wall": 10.0, "busy": 100.0, "ours": 7.0}
    monkeypatch.setattr(load, "time", SimpleNamespace(perf_counter=lambda: now["wall"]))
    monkeypatch.setattr(load, "busy_s", lambda: now["busy"])
    monkeypatch.setattr(load, "children_s", lambda: now["ours"])
    meter = LoadMeter()
    # Twenty seconds on two cores: ours kept one and a half of them busy, others a quarter.
    now.update(wall=30.0, busy=135.0, ours=37.0)
    assert meter.wall_s == 20.0
    assert meter.other_cores == pytest.approx(0.25)
    # Ticks are rounded: there is no less than nothing.
    now.update(busy=129.9)
    assert meter.other_cores == 0.0
    monkeypatch.setattr(load, "busy_s", lambda: None)
    assert meter.other_cores is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says")
def test_a_child_that_was_waited_for_is_ours_and_busy() -> None:
    ours, busy = load.children_s(), load.busy_s()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 1: pass"], check=True)
    assert load.children_s() - ours >= 0.9
    after = load.busy_s()
    assert busy is not None
    assert after is not None
    assert after - busy >= 0.9
