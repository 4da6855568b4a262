"""The thread that waits for answers, so that the screen never does."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from icarus_local.chat.events import Event, TextDelta

if TYPE_CHECKING:
    from icarus_local.chat.worker import Request

Outcome = Event | BaseException | None
"""An event, the error that ended the request, or None at its end (after an error too)."""


class Reader:
    """Reads requests in the order in which they were asked; the screen takes what has come when it wants to."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="icarus-reader", daemon=True)
        self._thread.start()

    def follow(self, request: Request) -> None:
        """Reads `request` after those before it."""
        self._requests.put(request)

    def take(self) -> list[Outcome]:
        """What has come since the last call, without waiting; text that follows text is joined."""
        outcomes: list[Outcome] = []
        pieces: list[str] = []
        # The size is read once: a stream faster than this loop must not hold it.
        for _ in range(self._outcomes.qsize()):
            outcome = self._outcomes.get_nowait()
            if isinstance(outcome, TextDelta) and outcomes and isinstance(outcomes[-1], TextDelta):
                pieces.append(outcome.text)
                continue
            _extend_last(outcomes, pieces)
            outcomes.append(outcome)
        _extend_last(outcomes, pieces)
        return outcomes

    def close(self) -> None:
        """Lets the thread end after the requests that it follows."""
        self._requests.put(None)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            try:
                for event in request:
                    self._outcomes.put(event)
            except BaseException as error:  # shown by the screen, whatever it is
                self._outcomes.put(error)
            self._outcomes.put(None)


def _extend_last(outcomes: list[Outcome], pieces: list[str]) -> None:
    last = outcomes[-1] if outcomes else None
    if pieces and isinstance(last, TextDelta):
        outcomes[-1] = TextDelta(last.agent, last.text + "".join(pieces))
        pieces.clear()
