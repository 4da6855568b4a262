"""The engine's process: serves the requests that come over its pipes until they end, then saves and goes."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
from contextlib import ExitStack
from functools import partial

from icarus_local.chat.reply import Opened, Outcome
from icarus_local.chat.session import Session
from icarus_local.chat.wire import Began, Begin, Came, Cancel, Ended, Logged, Progress, Run, Wire, sendable
from icarus_local.chat.worker import Job, Worker


def serve() -> None:
    """What the process runs; stdin and stdout are its pipes."""
    wire = _take_pipes()
    # Its end comes over the pipe, so that all is saved; what a terminal sends is meant for the program.
    for name in ("SIGINT", "SIGHUP", "SIGTERM"):
        with contextlib.suppress(AttributeError, ValueError):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    faulthandler.enable()
    begin = wire.receive()
    logging.basicConfig(level=begin.log_level, handlers=[_Forwarding(wire)])
    error: BaseException | None = None
    try:
        _serve(wire, begin)
    except BaseException as failure:  # raised again in the program
        error = sendable(failure)
    _send(wire, Ended(error))


def _serve(wire: Wire, begin: Begin) -> None:
    with ExitStack() as stack:
        opened: list[Opened] = []

        def report(text: str, fraction: float | None) -> None:
            _send(wire, Progress(text, fraction))

        def make_session() -> Session:
            session, record = begin.opener(stack, begin.restart, report)
            opened.append(record)
            return session

        worker = stack.enter_context(Worker(make_session))
        wire.send(opened[0])
        jobs: dict[int, Job] = {}
        with contextlib.suppress(EOFError):
            while True:
                message = wire.receive()
                if isinstance(message, Run):
                    number = message.number
                    start = partial(_send, wire, Began(number))
                    jobs[number] = worker.start(message.request, partial(_came, wire, jobs, number), start)
                elif isinstance(message, Cancel) and message.number in jobs:
                    jobs[message.number].cancel()


def _came(wire: Wire, jobs: dict[int, Job], number: int, outcome: Outcome) -> None:
    if outcome is None:
        jobs.pop(number, None)
    _send(wire, Came(number, sendable(outcome) if isinstance(outcome, BaseException) else outcome))


def _send(wire: Wire, message: Began | Came | Ended | Logged | Progress) -> None:
    # Where nobody reads any more, the end of the other pipe is about to be seen.
    with contextlib.suppress(OSError, ValueError):
        wire.send(message)


def _take_pipes() -> Wire:
    """The pipes, out of the way of whatever prints: that goes to stderr."""
    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    return Wire(reader, writer)


class _Forwarding(logging.Handler):
    """Sends log records to the program."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        plain = logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, text, (), None)
        _send(self._wire, Logged(plain))
