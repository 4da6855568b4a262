"""A chat that answers from a script, behind the seam of icarus_local.chat.reply."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

from icarus_local.base_choices import BaseChoice, Places, Pulling
from icarus_local.chat.events import (
    AgentsChanged,
    AgentState,
    AnswerDone,
    AnswersJoined,
    AnswerStarted,
    CacheUsed,
    ConversationBegun,
    ConversationResumed,
    Event,
    FileAdded,
    FileWeighed,
    FinishReason,
    QuestionTakenBack,
    Said,
    TextDelta,
    Transcribed,
)
from icarus_local.chat.reply import Chat, Opened
from icarus_local.chat.requests import (
    AddAgent,
    AddFile,
    Ask,
    BeginAnew,
    Join,
    ReloadAgent,
    RemoveAgent,
    Request,
    Resume,
    TakeBack,
    Transcribe,
    Weigh,
)
from icarus_local.chat.starting import Opening
from icarus_local.chat.store import Store
from icarus_local.errors import IcarusError, RequestError
from icarus_local.settings import Settings

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


def agent_state(name: str) -> AgentState:
    adapter = "" if name == "base" else f"{name}.gguf"
    return AgentState(name, name, adapter, 9 * 2**20 if adapter else 0, bool(adapter), 512)


class FakeChat:
    """Serves questions by `script`, and other requests by `serve`. It keeps what was asked, as a session would."""

    def __init__(
        self,
        script: Script = echo,
        agents: Sequence[str] = ("coder", "reviewer"),
        notices: Sequence[str] = (),
        n_ctx: int = 4096,
        before: Sequence[Said] = (),
        conversation: str = "c0ffee00",
    ) -> None:
        roster = tuple(map(agent_state, agents))
        self.opened = Opened(roster, n_ctx, tuple(before), tuple(notices), conversation)
        self.script = script
        self.serve: Callable[[Request], Iterable[object]] = self.other
        self.saved: dict[str, tuple[Said, ...]] = {}
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.requests: list[Request] = []
        self.replies: list[FakeReply] = []
        self.closed = False
        self._answered: list[tuple[str, int]] = []

    def submit(self, request: Request) -> FakeReply:
        if isinstance(request, Ask):
            request.check(self.opened.agents)
            self.asked.append((request.text, request.names))
            outcomes: Iterable[object] = self._ask(request)
        else:
            outcomes = self.serve(request)
        self.requests.append(request)
        self.replies.append(FakeReply(outcomes, self.replies[-1] if self.replies else None))
        return self.replies[-1]

    def _ask(self, request: Ask) -> Iterator[object]:
        n_answers = 0
        for event in self.script(request.text, request.names or self.opened.agents):
            yield event
            if isinstance(event, AnswerDone) and event.generated:
                n_answers += 1
                tokens = event.reused + event.encoded + event.generated
                yield CacheUsed(tokens, event.kv_bytes, len(self.opened.agents), event.kv_bytes_separate)
        if n_answers:
            self._answered.append((request.text, n_answers))

    def other(self, request: Request) -> Iterator[object]:
        """What comes of a request that is no question."""
        match request:
            case Weigh():
                yield FileWeighed(request.file.name, request.file.n_bytes, request.file.n_bytes // 4, 4000)
            case AddFile():
                yield FileAdded(request.file.name)
            case Join():
                yield AnswersJoined((request.agent,))
            case BeginAnew():
                self._answered.clear()
                yield self._came(ConversationBegun("another"))
                yield CacheUsed(10, 2**18, 2, 2**19)
            case TakeBack():
                if not self._answered:
                    raise RequestError("there is no question to take back")
                yield QuestionTakenBack(*self._answered.pop())
            case Resume():
                if request.conversation not in self.saved:
                    raise RequestError(f"there is no conversation {request.conversation}")
                before = self.saved[request.conversation]
                yield self._came(ConversationResumed(request.conversation, before, ("it goes on",)))
            case Transcribe():
                yield Transcribed(f"the conversation as {request.form}\n")
            case AddAgent() | RemoveAgent() | ReloadAgent():
                yield self._came(self._changed(request))

    def _came(self, event: Event) -> Event:
        self.opened = self.opened.after(event)
        return event

    def _changed(self, request: AddAgent | RemoveAgent | ReloadAgent) -> AgentsChanged:
        name, roster = request.agent.partition("=")[0], list(self.opened.roster)
        if isinstance(request, AddAgent):
            roster.append(agent_state(name))
        elif isinstance(request, RemoveAgent):
            roster = [agent for agent in roster if agent.name != name]
        return AgentsChanged(tuple(roster), f"{name}: {type(request).__name__}", ("a notice about it",))

    def close(self) -> None:
        self.closed = True

    def as_chat(self) -> Chat:
        return cast(Chat, self)


class FakePlaces:
    """One base that is here and nothing to fetch."""

    def embedded(self) -> Sequence[BaseChoice]:
        return [BaseChoice("smollm2", "/models/smollm2.gguf", 98_362_432, "embedded")]

    def find(self) -> Iterator[BaseChoice]:
        yield BaseChoice("~/models/llama.gguf", "/models/llama.gguf", 2 << 30, "llama")
        yield BaseChoice(
            "~/models/odd.gguf", "/models/odd.gguf", 1 << 20, "mamba, which this version does not run", False
        )

    def offers(self) -> Sequence[BaseChoice]:
        return [BaseChoice("Qwen2.5 0.5B", "Qwen/Qwen2.5-0.5B-Instruct-GGUF/q4.gguf", None, "Apache-2.0")]

    def size(self, offer: BaseChoice) -> int | None:
        return 491_400_064

    def pull(self, offer: BaseChoice) -> Pulling:
        raise IcarusError("the Hub cannot be reached")

    def remember(self, base: str) -> None:
        pass


class FakeHost:
    """Opens one chat, or fails to."""

    places: Places = FakePlaces()

    def __init__(
        self,
        chat: FakeChat,
        *,
        folder: Path | None = None,
        settings: Settings | None = None,
        base: str | None = "tiny.gguf",
        rounds: int = 1,
        at_once: bool = False,
    ) -> None:
        self.chat, self.folder, self.base = chat, folder, base
        self.settings = settings or Settings()
        self.rounds, self.at_once = rounds, at_once
        self.errors: list[IcarusError] = []
        self.opened: list[str] = []
        self.remembered: list[tuple[str, str, str]] = []

    def open(self, base: str, opening: Opening) -> Chat:
        self.opened.append(base)
        if self.errors:
            raise self.errors.pop(0)
        return self.chat.as_chat()

    def store(self) -> Store:
        assert self.folder is not None, "this test keeps no conversations"
        return Store(self.folder)

    def known_agents(self) -> Sequence[tuple[str, str]]:
        return [("base", "the base model"), ("coder", "the catalog"), ("math", "the catalog")]

    def remember(self, section: str, key: str, value: str) -> None:
        self.remembered.append((section, key, value))


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
