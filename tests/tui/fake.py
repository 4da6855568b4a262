"""A worker that answers from a script, behind the interface of icarus_local.chat.worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import cast

from icarus_local.chat.events import AnswerDone, AnswerStarted, Event, FinishReason, TextDelta
from icarus_local.chat.worker import Worker
from icarus_local.errors import RequestError

HOLD = object()
"""In a script: wait until the request is cancelled."""

Script = Callable[[str, Sequence[str]], Iterable[object]]


def done(agent: str, text: str, finish: FinishReason = "stop", generated: int = 3, encoded: int = 10) -> AnswerDone:
    return AnswerDone(agent, text, finish, 100, encoded, generated, 0.25, 12.5, 2 * 2**20, 4 * 2**20)


def echo(text: str, names: Sequence[str]) -> Iterator[object]:
    """Every agent who was asked says what it was asked."""
    for name in names:
        yield AnswerStarted(name)
        yield TextDelta(name, f"{name} heard: ")
        yield TextDelta(name, text)
        yield done(name, f"{name} heard: {text}")


class FakeRequest:
    """Follows its script up to a cancellation, which ends the answer in progress as the session would."""

    def __init__(self, outcomes: Iterable[object], before: FakeRequest | None) -> None:
        self._outcomes, self._before = outcomes, before
        self._cancelled, self._finished = threading.Event(), threading.Event()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        self._cancelled.set()

    def __iter__(self) -> Iterator[Event]:
        if self._before is not None:
            self._before._finished.wait(30)
        try:
            yield from self._events()
        finally:
            self._finished.set()

    def _events(self) -> Iterator[Event]:
        agent, said = "", ""
        for outcome in self._outcomes:
            if outcome is HOLD:
                assert self._cancelled.wait(30), "nobody stopped the request"
            elif isinstance(outcome, float):
                self._cancelled.wait(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                event = cast(Event, outcome)
                agent, said = event.agent, said + event.text if isinstance(event, TextDelta) else ""
                yield event
            if self.cancelled:
                if agent and not isinstance(outcome, AnswerDone):
                    yield done(agent, said, "cancelled", len(said))
                return


class FakeWorker:
    def __init__(self, script: Script = echo, agents: Sequence[str] = ("coder", "reviewer")) -> None:
        self.session = SimpleNamespace(agents=[SimpleNamespace(name=name) for name in agents])
        self.script = script
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.requests: list[FakeRequest] = []

    def ask(self, text: str, names: Sequence[str] = ()) -> FakeRequest:
        if not text.strip():
            raise RequestError("the question is empty")
        known = [agent.name for agent in self.session.agents]
        for name in names:
            if name not in known:
                raise RequestError(f"there is no agent @{name} here", f"Here are {known}")
        self.asked.append((text, tuple(names)))
        before = self.requests[-1] if self.requests else None
        self.requests.append(FakeRequest(self.script(text, names or known), before))
        return self.requests[-1]

    def as_worker(self) -> Worker:
        return cast(Worker, self)


def flood(agent: str, deltas: int, pause: float = 0.0) -> Script:
    """One agent says `deltas` pieces as fast as they can be read, or with `pause` seconds between them."""

    def script(text: str, names: Sequence[str]) -> Iterator[object]:
        yield AnswerStarted(agent)
        for n in range(deltas):
            if pause:
                time.sleep(pause)
            yield TextDelta(agent, f"word{n} ")
        yield done(agent, "", generated=deltas)

    return script
