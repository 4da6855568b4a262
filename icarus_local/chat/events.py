"""What a session tells its caller while it serves a request: frozen records, so that no screen computes a figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class AnswerStarted:
    """An agent has the word."""

    agent: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of an agent's answer, or of the thought before it."""

    agent: str
    text: str
    thought: bool = False


@dataclass(frozen=True, slots=True)
class AnswerDone:
    """An agent's whole answer and what it cost.

    Attributes:
        text: without the thought. thought: what it thought before (`<think>…</think>`), "" where it did not.
        finish_reason: "stop" (end of turn or stop string), "length" (max_tokens or the context's end), "cancelled".
        reused: tokens that were in the cache when the turn began. encoded: tokens encoded as prompt.
        generated: tokens of the answer, its end of turn not counted.
        ttft_s: seconds from the turn's beginning to its first token. tok_s: tokens per second after that one.
        kv_bytes: K and V of this conversation. kv_bytes_separate: what one cache per agent would take.
        notice: what the person should be told with this answer, or "".
        drafted: tokens that were guessed ahead from the conversation. accepted: of these, those that were said.
    """

    agent: str
    text: str
    finish_reason: FinishReason
    reused: int
    encoded: int
    generated: int
    ttft_s: float
    tok_s: float
    kv_bytes: int
    kv_bytes_separate: int
    drafted: int = 0
    accepted: int = 0
    notice: str = ""
    thought: str = ""


@dataclass(frozen=True, slots=True)
class ContextCut:
    """The context was full, and turns left it before an agent's answer.

    Attributes:
        turns, tokens: what went; it stays in the transcript. files: the names of files among it.
        encoded_again: tokens that were in the cache and must be encoded again because they stood behind the cut.
    """

    turns: int
    tokens: int
    files: tuple[str, ...]
    encoded_again: int


@dataclass(frozen=True, slots=True)
class RoundsEnded:
    """An agent accepted what it read, so that the rounds that were left do not take place."""

    agent: str
    round: int
    rounds: int


@dataclass(frozen=True, slots=True)
class FileWeighed:
    """What a file would take of the context. tokens: with its message; n_free: tokens that are free now."""

    name: str
    n_bytes: int
    tokens: int
    n_free: int


@dataclass(frozen=True, slots=True)
class FileAdded:
    """A file is part of the conversation; it is encoded with the next question. `already`: it was, word for word."""

    name: str
    already: bool = False


@dataclass(frozen=True, slots=True)
class AnswersJoined:
    """Of answers that were given at once, those of `agents` are in the history now."""

    agents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConversationBegun:
    """The conversation before was left, and a new one begun.

    Attributes:
        conversation: its id, "" where it is not saved. notice: what could not be saved of the old one, or "".
    """

    conversation: str = ""
    notice: str = ""


@dataclass(frozen=True, slots=True)
class QuestionTakenBack:
    """The newest question is out of the conversation.

    Attributes:
        text: as it was asked. answers: how many went with it.
    """

    text: str
    answers: int


@dataclass(frozen=True, slots=True)
class Said:
    """A turn of a conversation that goes on, as it is shown.

    Attributes:
        who: "you", or an agent's name. answer: whether an agent said it. in_context: whether agents still read it.
        thought: what it thought before, "" where it did not. file: whether `text` is the name of a file that was added.
    """

    who: str
    text: str
    answer: bool
    in_context: bool = True
    thought: str = ""
    file: bool = False

    @property
    def shown(self) -> str:
        """In one piece, and of a thought only that there was one."""
        text = f"{'File ' if self.file else ''}{'(thinking …) ' if self.thought else ''}{self.text}"
        return f"{self.who}: {text}{'' if self.in_context else ' (no longer in the context)'}"


@dataclass(frozen=True, slots=True)
class ConversationResumed:
    """The conversation before was left, and this one goes on.

    Attributes:
        before: what was said in it. notices: what the person should be told.
    """

    conversation: str
    before: tuple[Said, ...]
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AgentState:
    """An agent who takes part.

    Attributes:
        given: how it was named, as `--agents` takes it. adapter: its file, "" where it speaks as the base.
        n_bytes: of its adapter in memory, or what it would take there. resident: whether it is there; without an
            adapter there is nothing that could be missing.
        max_tokens: of its longest answer.
    """

    name: str
    given: str
    adapter: str
    n_bytes: int
    resident: bool
    max_tokens: int


@dataclass(frozen=True, slots=True)
class AgentsChanged:
    """Who takes part, or whose adapter is in memory, is no longer what it was.

    Attributes:
        agents: in the order in which they speak. told: what was done about it in words, "" where nobody asked for it.
        notices: what the person should be told besides.
    """

    agents: tuple[AgentState, ...]
    told: str = ""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheUsed:
    """What the conversation takes of the one cache, now.

    Attributes:
        tokens: cells that it takes, those of answers that were given at once and may still be chosen among them.
        n_bytes: their K and V. caches: how many caches would stand for them if nothing were shared.
        n_bytes_separate: what these would take.
    """

    tokens: int = 0
    n_bytes: int = 0
    caches: int = 0
    n_bytes_separate: int = 0


@dataclass(frozen=True, slots=True)
class Transcribed:
    """The whole conversation as text, in the form that was asked for."""

    text: str


Event = (
    AnswerStarted
    | TextDelta
    | AnswerDone
    | ContextCut
    | RoundsEnded
    | FileWeighed
    | FileAdded
    | AnswersJoined
    | ConversationBegun
    | QuestionTakenBack
    | ConversationResumed
    | AgentsChanged
    | CacheUsed
    | Transcribed
)
