"""What is asked and what is right: items of a task, and how an answer to one is scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from icarus_local.chat.agents import Agent
from icarus_models.data.shape import Record

# 0 to 1 by name; "score" is the one that the tables show.
Scores = Mapping[str, float]
SCORE = "score"


@dataclass(frozen=True, slots=True)
class Item:
    """One question.

    Attributes:
        id: its name, stable over runs. messages: what is said before the answer, as in a training record.
        truth: what the task's `score` needs.
    """

    id: str
    messages: tuple[Record, ...]
    truth: Any


@dataclass(frozen=True, slots=True)
class Task:
    """Items that are asked of one agent, whoever answers in its place.

    Attributes:
        name: of the task. agent: who is given the word, the same for every system. items: what is asked.
        score: how good an answer's text is.
    """

    name: str
    agent: Agent
    items: tuple[Item, ...]
    score: Callable[[Item, str], Scores]


def with_score(right: bool, **others: bool) -> Scores:
    """Scores of an answer that is right or wrong."""
    return {SCORE: float(right), **{name: float(value) for name, value in others.items()}}
