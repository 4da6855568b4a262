"""What a session tells its caller while agents answer: frozen records, so that no screen computes a figure."""

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
    """More of an agent's answer."""

    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class AnswerDone:
    """An agent's whole answer and what it cost.

    Attributes:
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


Event = AnswerStarted | TextDelta | AnswerDone
