"""The engine in a process of its own: what aborts it costs an answer, not the program and its terminal."""

from __future__ import annotations

import codecs
import contextlib
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from dataclasses import replace
from types import TracebackType
from typing import IO

from icarus_local.chat.reply import Opened, Reply
from icarus_local.chat.requests import Ask, Request
from icarus_local.chat.starting import Opening
from icarus_local.chat.wire import Began, Begin, Came, Cancel, Ended, Logged, Opener, Progress, Restart, Run, Wire
from icarus_local.errors import EngineDiedError, IcarusError, RequestError

logger = logging.getLogger(__name__)

_TAIL = 60  # lines of what a process said last
_SERVE = "import sys; sys.path[:] = {path!r}; from icarus_local.chat.child import serve; serve()"


class EngineProcess:
    """A conversation whose engine runs in a child; one that dies is started again and goes on.

    Attributes:
        opened: the conversation as it was opened last, after all that has come since.
    """

    def __init__(self, opener: Opener, opening: Opening | None = None) -> None:
        """Starts the process and waits until the conversation is open.

        With `opening` there is a screen: progress goes there, and what the process writes to stderr goes to the log.

        Raises:
            IcarusError: whatever the opener raised. EngineDiedError: the process ended while it opened.
            CancelledError: `opening` was cancelled.
        """
        self._opener = opener
        self._lock = threading.Lock()
        self._replies: dict[int, Reply] = {}
        self._numbers = itertools.count()
        self._error: IcarusError | None = None
        self._closed = False
        self._begun: int | None = None  # the request that is under way
        self._served = True  # whether this process was of any use
        self._restarting = Opening(_untold)
        self._child = _Child(opener, None, opening)
        self.opened = self._child.opened
        self._thread = threading.Thread(target=self._receive, name="icarus-events", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Reply:
        """Queues a request.

        Raises:
            RequestError: it asks agents who are not there, or nothing. EngineDiedError: there is no engine any more.
        """
        if isinstance(request, Ask):
            request.check(self.opened.agents)
        reply = Reply(request)
        with self._lock:
            if self._closed:
                raise RequestError("the chat is closed")
            if self._error is not None:
                raise self._error
            number = next(self._numbers)
            self._replies[number] = reply
            reply.stops_by(lambda: self._cancel(number))
            # Where it has just died, what is open is sent to the next one.
            self._child.send(Run(number, request))
        return reply

    def _cancel(self, number: int) -> None:
        with self._lock:
            if number in self._replies:
                self._child.send(Cancel(number))

    def _receive(self) -> None:
        while True:
            message = self._child.receive()
            if isinstance(message, Began):
                self._begun, self._served = message.number, True
            elif isinstance(message, Came):
                self._came(message)
            elif not isinstance(message, Opened | Progress) and not self._again(message):
                return

    def _came(self, message: Came) -> None:
        outcome = message.outcome
        self.opened = self.opened.after(outcome)
        with self._lock:
            reply = self._replies[message.number]
            if outcome is None:
                self._begun = None
                del self._replies[message.number]
        reply.put(outcome)

    def _again(self, end: Ended | EngineDiedError) -> bool:
        """Starts the process again where it died; whether there is one now."""
        with self._lock:
            # One that dies as soon as it is started would do so for ever.
            if isinstance(end, Ended) or self._closed or not self._served:
                self._give_up(end.error if isinstance(end, Ended) else end)
                return False
            failed = None if self._begun is None else self._replies.pop(self._begun)
            self._begun = None
        try:
            agents = tuple(agent.given for agent in self.opened.roster)
            child = _Child(self._opener, Restart(self.opened.conversation, agents), self._restarting)
        except BaseException as error:  # whatever it was, nobody else would tell
            with self._lock:
                if self._closed:
                    self._give_up(None)
                    return False
                dead = EngineDiedError(end.what, f"It could not be started again: {error}")
                self._replies = {-1: failed, **self._replies} if failed else self._replies
                self._give_up(dead)
            return False
        kept = "goes on" if self.opened.conversation else "was not saved and begins anew"
        logger.warning("%s; it was started again", end)
        with self._lock:
            self._child, self._served = child, False
            self.opened = replace(child.opened, engine=self.opened.engine + 1)
            for number, reply in self._replies.items():
                child.send(Run(number, reply.request))
                if reply.cancelled:
                    child.send(Cancel(number))
            closed = self._closed
        # Whoever reads this finds the next engine in `opened`.
        if failed is not None:
            failed.put(EngineDiedError(end.what, f"It was started again; the conversation {kept}"))
            failed.put(None)
        if closed:
            child.close()
        return True

    def _give_up(self, error: BaseException | None) -> None:
        if isinstance(error, IcarusError):
            self._error = error
        for reply in self._replies.values():
            if error is not None:
                reply.put(error)
            reply.put(None)
        self._replies.clear()

    def close(self) -> None:
        """Cancels what is under way and queued, and returns when all is saved; may be called twice.

        Raises:
            IcarusError: something could not be saved.
        """
        with self._lock:
            first, self._closed = not self._closed, True
        self._restarting.cancel()
        self._child.close()
        self._thread.join()
        if first and self._error is not None and not isinstance(self._error, EngineDiedError):
            raise self._error

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self.close()
        except IcarusError:
            # What ended the chat matters more.
            if error is None:
                raise


class _Child:
    """One process and its pipes."""

    def __init__(self, opener: Opener, restart: Restart | None, opening: Opening | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A debugger that ggml starts on an abort takes seconds, and writes where people read.
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
            # Keys that a terminal turns into signals are the program's.
            start_new_session=sys.platform != "win32",
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._wire = Wire(process.stdout, process.stdin)
        self._said: deque[str] = deque(maxlen=_TAIL)
        # Nothing is drawn yet, and what is fetched meanwhile shows its progress, if there is where to.
        self._echoes = restart is None and opening is None
        self._listener = threading.Thread(target=self._listen, args=(process.stderr,), daemon=True)
        self._listener.start()
        opening = opening or Opening(_untold)
        try:
            with opening.stopped_by(process.kill):
                self.send(Begin(opener, restart, logging.getLogger("icarus_local").getEffectiveLevel()))
                while isinstance(first := self.receive(), Progress):
                    opening.tell(first.text, first.fraction)
        except BaseException:
            # Interrupted while it loads: there is nothing to save yet.
            process.kill()
            process.wait()
            raise
        if not isinstance(first, Opened):
            self.close()
            raise _why(first)
        self.opened, self._echoes = first, False

    def send(self, message: Begin | Run | Cancel) -> None:
        """Sends a message; that the process is gone is seen where its own are received."""
        with contextlib.suppress(OSError, ValueError):
            self._wire.send(message)

    def receive(self) -> Began | Came | Ended | Opened | Progress | EngineDiedError:
        """The next message that is not for the log; the last is `Ended`, or what it died of."""
        try:
            while isinstance(message := self._wire.receive(), Logged):
                target = logging.getLogger(message.record.name)
                if target.isEnabledFor(message.record.levelno):
                    target.handle(message.record)
            received: Began | Came | Ended | Opened | Progress = message
            return received
        except EOFError:
            return self._death()

    def _listen(self, stream: IO[bytes]) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        line = ""
        while chunk := os.read(stream.fileno(), 1 << 16):
            text = decoder.decode(chunk)
            if self._echoes:
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    sys.stderr.write(text)
                    sys.stderr.flush()
            *lines, line = (line + text).split("\n")
            for whole in lines:
                self._said.append(whole.rstrip())
                logger.debug("engine's process: %s", whole.rstrip())
        self._said.append(line)

    def _death(self) -> EngineDiedError:
        code = self._process.wait()
        self._listener.join(1.0)
        return EngineDiedError(f"the engine ended unexpectedly ({_named(code)}){_reason(list(self._said))}")

    def close(self) -> None:
        """Lets it save and end, and returns then; an interrupt while waiting ends it at once."""
        self._wire.close()
        try:
            self._process.wait()
        except KeyboardInterrupt:
            self._process.kill()
            self._process.wait()


def _untold(text: str, fraction: float | None) -> None:
    """Nobody watches."""


def _why(end: Began | Came | Ended | EngineDiedError) -> BaseException:
    if isinstance(end, EngineDiedError):
        return end
    error = end.error if isinstance(end, Ended) else None
    return error or EngineDiedError("the engine's process ended before the conversation was open")


def _named(code: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"exit code {code}"


def _reason(said: list[str]) -> str:
    """Why, as far as it said so: ggml's assertion, or a Python error."""
    for line in said:
        if "GGML_ASSERT" in line or "GGML_ABORT" in line or line.startswith("ggml"):
            return f": {line}"
    return f": {said[-1]}" if said and "Error" in said[-1] else ""
