"""Messages between a program and its engine's process, pickled over a pair of pipes; both ends are this package."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, Any

from icarus_local.chat.reply import Opened, Outcome
from icarus_local.chat.requests import Request
from icarus_local.chat.session import Session
from icarus_local.engine.base import Report
from icarus_local.errors import IcarusError


@dataclass(frozen=True, slots=True)
class Restart:
    """An engine's process died: `conversation` goes on, without the question that it died of; "" was not saved.

    `agents` are those who took part then, as they were given.
    """

    conversation: str
    agents: tuple[str, ...]


Opener = Callable[[ExitStack, Restart | None, Report], tuple[Session, Opened]]
"""Loads and opens a conversation, whose end the stack closes, and reports how far it is.

To be pickled: a function of a module, or a partial.
"""


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message: how to open the conversation, and what to log."""

    opener: Opener
    restart: Restart | None
    log_level: int


@dataclass(frozen=True, slots=True)
class Progress:
    """While it opens: what is being done, and how much of that is done, 0 to 1, None where nobody knows."""

    text: str
    fraction: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """Serve a request; what comes of it is sent back under its number."""

    number: int
    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a request."""

    number: int


@dataclass(frozen=True, slots=True)
class Began:
    """The turn of a request has come."""

    number: int


@dataclass(frozen=True, slots=True)
class Came:
    """What came of a request."""

    number: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Logged:
    """A log record of the engine's process, its message put together."""

    record: logging.LogRecord


@dataclass(frozen=True, slots=True)
class Ended:
    """The last message: all is closed, or was never opened; `error` says what went wrong."""

    error: BaseException | None


class Wire:
    """One end: any thread may send, one receives."""

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self._reader, self._writer = reader, writer
        self._lock = threading.Lock()

    def send(self, message: Any) -> None:
        """Sends a message.

        Raises:
            OSError, ValueError: the other end is gone, or this one closed.
        """
        data = pickle.dumps(message)
        with self._lock:
            self._writer.write(data)
            self._writer.flush()

    def receive(self) -> Any:
        """The next message.

        Raises:
            EOFError: the other end is gone.
        """
        try:
            return pickle.load(self._reader)
        except (pickle.UnpicklingError, OSError, ValueError) as error:
            # Cut in the middle of a message.
            raise EOFError(str(error)) from error

    def close(self) -> None:
        """Tells the other end that no more comes."""
        with self._lock, suppress(OSError):
            self._writer.close()


def sendable(error: BaseException) -> BaseException:
    """`error`, or what can be sent in its place."""
    if isinstance(error, IcarusError):
        return error
    return IcarusError(f"{type(error).__name__}: {error}", "This is a fault of the program; --debug shows where")
