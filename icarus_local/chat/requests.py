"""What may be asked of a session: frozen records that can be pickled, for they cross to the engine's process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from icarus_local.chat.files import TextFile
from icarus_local.errors import RequestError

MAX_ROUNDS = 100
AGAIN_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the agents of `names`, to all of them where it is empty.

    They answer in turn, each reading the answers before, `rounds` times or until one accepts; or, `at_once`, all read
    the same and none the others.

    Attributes:
        attempt: how often the same was asked before. Above 0 each answer is drawn with other random numbers, and a
            greedy agent draws too, at `AGAIN_TEMPERATURE`.
    """

    text: str
    names: tuple[str, ...] = ()
    rounds: int = 1
    at_once: bool = False
    attempt: int = 0

    def check(self, agents: tuple[str, ...]) -> None:
        """Raises RequestError unless it can be asked where these agents are."""
        if not self.text.strip():
            raise RequestError("the question is empty")
        if not 1 <= self.rounds <= MAX_ROUNDS:
            raise RequestError(f"{self.rounds} rounds; 1 to {MAX_ROUNDS} are possible")
        if self.rounds > 1 and self.at_once:
            raise RequestError("agents that answer at once have no rounds", "Ask for one of both")
        for name in self.names:
            check_name(name, agents)
        if self.at_once and len(set(self.names)) < len(self.names):
            raise RequestError("an agent that answers at once with others answers once", "Name each agent once")


@dataclass(frozen=True, slots=True)
class Weigh:
    """How many tokens a file would take."""

    file: TextFile


@dataclass(frozen=True, slots=True)
class AddFile:
    """Puts a file into the shared context."""

    file: TextFile


@dataclass(frozen=True, slots=True)
class Join:
    """Of the answers that were just given at once, only that of `agent` is to be part of the history."""

    agent: str


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """Leaves the conversation, which stays saved, and begins a new one with the same agents."""


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Takes the newest question and all that was answered to it out of the conversation and its transcript."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Leaves the conversation, which stays saved, and goes on with another; `conversation` is an id or its beginning,
    "" for the latest other one.
    """

    conversation: str


@dataclass(frozen=True, slots=True)
class AddAgent:
    """Lets another agent take part from now on: a known name, or NAME=FILE.gguf, as `--agents` takes it."""

    agent: str


@dataclass(frozen=True, slots=True)
class RemoveAgent:
    """Lets an agent take part no more; what it said stays."""

    agent: str


@dataclass(frozen=True, slots=True)
class ReloadAgent:
    """Reads an agent's description and adapter again, from files that have changed."""

    agent: str


@dataclass(frozen=True, slots=True)
class Transcribe:
    """The conversation as text: Markdown, or a JSON object a line for each turn."""

    form: Literal["md", "jsonl"]


Request = (
    Ask | Weigh | AddFile | Join | BeginAnew | TakeBack | Resume | AddAgent | RemoveAgent | ReloadAgent | Transcribe
)


def check_name(name: str, agents: tuple[str, ...]) -> None:
    """Raises RequestError where nobody has that name."""
    if name not in agents:
        raise RequestError(f"there is no agent @{name} here", f"Here are {', '.join(f'@{known}' for known in agents)}")
