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
    """A file is part of the conversation; it is encoded with the next question."""

    name: str


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
)
