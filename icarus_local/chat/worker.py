"""The one thread that owns the engine; everyone else queues requests and is handed what comes of them."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from types import TracebackType

from icarus_local.chat.reply import Outcome, Reply
from icarus_local.chat.requests import Ask, Request
from icarus_local.chat.session import Session
from icarus_local.errors import IcarusError

logger = logging.getLogger(__name__)

_POLL_S = 0.2  # a wait without a limit cannot be interrupted on Windows
_IDLE_S = 5.0  # without a request, until what is known is saved


class Job:
    """A request in the queue or under way."""

    def __init__(self, request: Request, put: Callable[[Outcome], None], begin: Callable[[], None] | None) -> None:
        self._request, self._put, self._begin = request, put, begin
        self._cancelled = False
        self._session: Session | None = None
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Stops it, in the middle of a step too; before its turn, it ends as soon as that comes."""
        with self._lock:
            self._cancelled = True
            if self._session is not None:
                self._session.engine.cancel()

    def run(self, session: Session) -> None:
        """Serves it, in the engine's thread; whatever goes wrong ends it alone."""
        with self._lock:
            session.engine.clear_cancel()
            self._session = session
            if self._cancelled:
                session.engine.cancel()
        try:
            if self._begin is not None:
                self._begin()
            for event in session.run(self._request):
                self._put(event)
        except IcarusError as error:
            self._put(error)
        except BaseException as error:  # raised again where the events are read
            logger.exception("a request failed")
            self._put(error)
        finally:
            with self._lock:
                self._session = None
            self._put(None)


class Worker:
    """Starts the engine's thread, which makes the session and then serves requests in order."""

    def __init__(self, make_session: Callable[[], Session], idle_s: float = _IDLE_S) -> None:
        """Starts the thread and waits until the session is there; `idle_s` seconds without a request are idleness.

        Raises:
            IcarusError: whatever `make_session` raised.
        """
        self._idle_s = idle_s
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Session | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(make_session,), name="icarus-engine", daemon=True)
        self._current: Job | None = None
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
        while (job := self._next(session)) is not None:
            self._current = job
            if self._closed:
                job.cancel()
            job.run(session)
            self._current = None

    def _next(self, session: Session) -> Job | None:
        while True:
            try:
                return self._jobs.get(timeout=self._idle_s)
            except queue.Empty:
                if session.observer is not None:
                    session.observer.idle()

    def start(self, request: Request, put: Callable[[Outcome], None], begin: Callable[[], None] | None = None) -> Job:
        """Queues a request; `put` is handed what comes of it, in the engine's thread, None at the end.

        `begin` is called there when its turn comes.
        """
        job = Job(request, put, begin)
        self._jobs.put(job)
        return job

    def submit(self, request: Request) -> Reply:
        """`start`, for callers who wait in another thread of this process.

        Raises:
            RequestError: it asks agents who are not there, or nothing.
        """
        if isinstance(request, Ask):
            request.check(self.session.names)
        reply = Reply(request)
        reply.stops_by(self.start(request, reply.put).cancel)
        return reply

    def close(self) -> None:
        """Cancels what is under way and queued, and returns when the thread has ended; may be called twice.

        An interrupt meanwhile is not obeyed: whoever called frees the engine next, which the thread may not be using.
        """
        self._closed = True
        self._jobs.put(None)
        while self._thread.is_alive():
            with contextlib.suppress(KeyboardInterrupt):
                if (current := self._current) is not None:
                    current.cancel()
                self._thread.join(_POLL_S)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
