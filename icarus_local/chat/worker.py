"""The one thread that owns the engine; everyone else sends it requests and receives events."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from icarus_local.chat.events import Event
from icarus_local.chat.session import Session
from icarus_local.errors import RequestError

_POLL_S = 0.2  # a wait without a limit cannot be interrupted on Windows


class Request:
    """A question under way: iterate over it for its events; an error in it is raised there."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self.text, self.names = text, tuple(names)
        self.cancelled = False
        self._session: Session | None = None
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._results: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()

    def cancel(self) -> None:
        """Stops the answer in progress, in the middle of a prefill too; the agents after it do not speak."""
        with self._lock:
            self.cancelled = True
            if self._session is not None:
                self._session.engine.cancel()

    def __iter__(self) -> Iterator[Event]:
        while True:
            try:
                result = self._results.get(timeout=_POLL_S)
            except queue.Empty:
                # The end may have been taken out by a reader that was interrupted just then.
                if self._finished.is_set() and self._results.empty():
                    return
                continue
            if result is None:
                return
            if isinstance(result, BaseException):
                raise result
            yield result

    def run(self, session: Session) -> None:
        """Answers the question, in the engine's thread."""
        with self._lock:
            session.engine.clear_cancel()
            self._session = session
            if self.cancelled:
                session.engine.cancel()
        try:
            for event in session.ask(self.text, self.names):
                self._results.put(event)
        except BaseException as error:  # raised again where the events are read
            self._results.put(error)
        finally:
            with self._lock:
                self._session = None
            self._results.put(None)
            self._finished.set()


class Worker:
    """Starts the engine's thread, which makes the session and then answers requests in order."""

    def __init__(self, make_session: Callable[[], Session]) -> None:
        """Starts the thread and waits until the session is there.

        Raises:
            IcarusError: whatever `make_session` raised.
        """
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Session | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(make_session,), name="icarus-engine", daemon=True)
        self._current: Request | None = None
        self._closed = False
        self._thread.start()
        try:
            session = self._ready.get()
        except BaseException:
            # Interrupted while the thread loads: what it loads may not be freed under it.
            self.close()
            raise
        if isinstance(session, BaseException):
            raise session
        self.session = session

    def _run(self, make_session: Callable[[], Session]) -> None:
        try:
            session = make_session()
        except BaseException as error:  # raised again in the thread that waits
            self._ready.put(error)
            return
        self._ready.put(session)
        while (request := self._requests.get()) is not None:
            self._current = request
            if self._closed:
                request.cancel()
            request.run(session)
            self._current = None

    def ask(self, text: str, names: Sequence[str] = ()) -> Request:
        """Queues a question for the named agents, or all of them.

        Raises:
            RequestError: an unknown name.
        """
        if not text.strip():
            raise RequestError("the question is empty")
        for name in names:
            self.session.agent(name)
        request = Request(text, names)
        self._requests.put(request)
        return request

    def close(self) -> None:
        """Cancels what is under way and queued, and returns when the thread has ended; may be called twice.

        An interrupt meanwhile is not obeyed: whoever called frees the engine next, which the thread may not be using.
        """
        self._closed = True
        self._requests.put(None)
        while self._thread.is_alive():
            with contextlib.suppress(KeyboardInterrupt):
                if (current := self._current) is not None:
                    current.cancel()
                self._thread.join(_POLL_S)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
