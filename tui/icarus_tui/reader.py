"""The thread that waits for answers, so that the screen never does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from itertools import groupby

from icarus_local.chat.events import TextDelta
from icarus_local.chat.reply import Outcome, Reply


class Reader:
    """Reads replies in the order in which they were asked for; the screen takes what has come when it wants to."""

    def __init__(self) -> None:
        self._replies: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="icarus-reader", daemon=True)
        self._thread.start()

    def follow(self, reply: Reply) -> None:
        """Reads `reply` after those before it."""
        self._replies.put(reply)

    def take(self) -> list[Outcome]:
        """What has come since the last call, without waiting; text that follows text is joined."""
        outcomes: list[Outcome] = []
        # The size is read once: a stream faster than this loop must not hold it.
        for _ in range(self._outcomes.qsize()):
            outcomes.append(self._outcomes.get_nowait())
        return list(_joined(outcomes))

    def close(self) -> None:
        """Lets the thread end after the replies that it follows."""
        self._replies.put(None)

    def _run(self) -> None:
        while (reply := self._replies.get()) is not None:
            try:
                for event in reply:
                    self._outcomes.put(event)
            except BaseException as error:  # shown by the screen, whatever it is
                self._outcomes.put(error)
            self._outcomes.put(None)


def _joined(outcomes: list[Outcome]) -> Iterator[Outcome]:
    """The same with text that follows text in one piece for each agent: those who answer at once take turns."""
    for is_text, group in groupby(outcomes, key=lambda outcome: isinstance(outcome, TextDelta)):
        if not is_text:
            yield from group
            continue
        texts: dict[tuple[str, bool], list[str]] = {}
        for delta in group:
            assert isinstance(delta, TextDelta)
            texts.setdefault((delta.agent, delta.thought), []).append(delta.text)
        for (agent, thought), pieces in texts.items():
            yield TextDelta(agent, "".join(pieces), thought)
