"""The opening of a conversation as it is watched: how far it is, and how it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from icarus_local.engine.base import Report
from icarus_local.errors import CancelledError


class Opening:
    """Of one conversation, which one thread opens and any other may stop.

    Attributes:
        tell: called in the thread that opens, with what is being done and how much of that is done, 0 to 1, or None.
    """

    def __init__(self, tell: Report) -> None:
        self.tell = tell
        self._lock = threading.Lock()
        self._cancelled = False
        self._stop: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Stops it, whatever it is doing, and where it has not begun too; once all is open, nothing happens."""
        with self._lock:
            self._cancelled = True
            if self._stop is not None:
                self._stop()

    @contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """While it opens: `stop` ends what opens, which fails then.

        Raises:
            CancelledError: it was stopped, whatever came of that.
        """
        with self._lock:
            self._stop = stop
            if self._cancelled:
                stop()
        try:
            yield
        finally:
            with self._lock:
                self._stop = None
                cancelled = self._cancelled
            if cancelled:
                raise CancelledError("loading was stopped") from None
