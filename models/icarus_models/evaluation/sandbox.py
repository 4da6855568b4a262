"""Runs what a model wrote, in a process of its own: bounded in time, memory and files, without network or programs.

It holds back the accidents of generated code, not someone who attacks the machine. macOS bounds no memory, and has no
network of its own for it: there the audit hook alone keeps it from the network.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from icarus_local.errors import IcarusError

_INSIDE = Path(__file__).with_name("inside.py")
_MEMORY = 512 << 20  # bytes
_MAX_PROGRAM = 1 << 20  # characters


def passes(program: str, seconds: int = 5, clock: float = 60.0) -> bool:
    """Whether a program of Python runs to its end without an error.

    Args:
        seconds: of a CPU that it may take, the interpreter's start included: the same on a busy machine.
        clock: seconds until it ends, busy or not.

    Raises:
        IcarusError: this system cannot bound a process.
    """
    if os.name != "posix":
        raise IcarusError("what models wrote is run on Linux and macOS only", "Evaluate this task there")
    if len(program) > _MAX_PROGRAM or "\0" in program:
        return False
    # Only the end of the program can tell it: the code may exit, or print, what it likes before.
    password = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="icarus-eval-", ignore_cleanup_errors=True) as folder:
        reader, writer = os.pipe()
        with open(reader, "rb") as told:
            try:
                process = subprocess.Popen(
                    [
                        sys.executable,
                        "-I",
                        "-S",
                        str(_INSIDE),
                        str(writer),
                        folder,
                        str(_MEMORY),
                        str(seconds),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd=folder,
                    env={"PATH": "", "LANG": "C.UTF-8", "HOME": folder, "TMPDIR": folder},
                    pass_fds=[writer],
                    start_new_session=True,
                )
            finally:
                os.close(writer)
            try:
                process.communicate(f"{password}\n{program}".encode("utf-8", "replace"), timeout=clock)
            except subprocess.TimeoutExpired:
                return False
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return told.read(64) == password.encode()
