"""Kill -9 at random moments: a process starts once and forks, for each kill, a child that works until it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType

_READY, _KILLED = "ready", "killed"


def say(text: str) -> None:
    """A line on stdout, at once: a killed process flushes nothing."""
    os.write(1, f"{text}\n".encode())


def serve(work: Callable[[], None]) -> None:
    """The program's side: for each delay in seconds on stdin, a child that does `work` and is killed after it."""
    assert sys.platform != "win32"
    say(_READY)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                work()
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        time.sleep(float(line))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the child ended before it was killed"
        say(_KILLED)


class Killed:
    """The test's side of `serve`."""

    def __init__(self, *command: str) -> None:
        """Starts `python -m COMMAND`, and waits until it is ready."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._said_until(_READY)

    def _said_until(self, end: str) -> list[str]:
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            if line.strip() == end:
                return said
            said.append(line.strip())
        raise AssertionError(f"the program ended: {said}")

    def after(self, seconds: float) -> list[str]:
        """Lets a child work, kills it after some seconds, and gives the lines that it said."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return self._said_until(_KILLED)

    def __enter__(self) -> Killed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.communicate()
