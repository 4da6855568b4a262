"""A chat that answers from a script, behind the seam of icarus_local.chat.reply."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from icarus_local.chat.events import (
    AnswerDone,
    AnswersJoined,
    AnswerStarted,
    ConversationBegun,
    Event,
    FileAdded,
    FileWeighed,
    FinishReason,
    TextDelta,
)
from icarus_local.chat.reply import Chat, Opened, Said
from icarus_local.chat.requests import AddFile, Ask, Join, Request, Weigh

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


class FakeReply:
    """Follows its script up to a cancellation, which ends the answer in progress as the session would."""

    def __init__(self, outcomes: Iterable[object], before: FakeReply | None) -> None:
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
        said: dict[str, str] = {}
        for outcome in self._outcomes:
            if outcome is HOLD:
                assert self._cancelled.wait(30), "nobody stopped the request"
            elif isinstance(outcome, float):
                self._cancelled.wait(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                event = cast(Event, outcome)
                if isinstance(event, AnswerStarted):
                    said[event.agent] = ""
                elif isinstance(event, TextDelta):
                    said[event.agent] = said.get(event.agent, "") + event.text
                elif isinstance(event, AnswerDone):
                    said.pop(event.agent, None)
                yield event
            if self.cancelled:
                for agent, text in said.items():
                    yield done(agent, text, "cancelled", len(text))
                return


def serve(request: Request) -> Iterable[object]:
    """What comes of a request that is no question."""
    match request:
        case Weigh():
            return [FileWeighed(request.file.name, request.file.n_bytes, request.file.n_bytes // 4, 4000)]
        case AddFile():
            return [FileAdded(request.file.name)]
        case Join():
            return [AnswersJoined((request.agent,))]
        case _:
            return [ConversationBegun("another")]


class FakeChat:
    """Serves questions by `script`, and other requests by `serve`."""

    def __init__(
        self,
        script: Script = echo,
        agents: Sequence[str] = ("coder", "reviewer"),
        notices: Sequence[str] = (),
        n_ctx: int = 4096,
        before: Sequence[Said] = (),
    ) -> None:
        self.opened = Opened(tuple(agents), n_ctx, tuple(before), tuple(notices))
        self.script = script
        self.serve: Callable[[Request], Iterable[object]] = serve
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.requests: list[Request] = []
        self.replies: list[FakeReply] = []

    def submit(self, request: Request) -> FakeReply:
        if isinstance(request, Ask):
            request.check(self.opened.agents)
            self.asked.append((request.text, request.names))
            outcomes = self.script(request.text, request.names or self.opened.agents)
        else:
            outcomes = self.serve(request)
        self.requests.append(request)
        self.replies.append(FakeReply(outcomes, self.replies[-1] if self.replies else None))
        return self.replies[-1]

    def close(self) -> None:
        pass

    def as_chat(self) -> Chat:
        return cast(Chat, self)


def holding(code: str) -> Script:
    """`hold` begins an answer that does not end by itself, `code` answers with `code`; else it echoes."""

    def script(text: str, names: Sequence[str]) -> Iterator[object]:
        if text == "hold":
            yield from (AnswerStarted("coder"), TextDelta("coder", "a first part"), HOLD)
        elif text == "code":
            yield from (AnswerStarted("coder"), TextDelta("coder", code), done("coder", code))
        else:
            yield from echo(text, names)

    return script


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
