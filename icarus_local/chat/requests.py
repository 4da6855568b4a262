"""What may be asked of a session: frozen records that can be pickled, for they cross to the engine's process."""

from __future__ import annotations

from dataclasses import dataclass

from icarus_local.chat.files import TextFile
from icarus_local.errors import RequestError

MAX_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the agents of `names`, to all of them where it is empty.

    They answer in turn, each reading the answers before, `rounds` times or until one accepts; or, `at_once`, all read
    the same and none the others.
    """

    text: str
    names: tuple[str, ...] = ()
    rounds: int = 1
    at_once: bool = False

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


Request = Ask | Weigh | AddFile | Join | BeginAnew


def check_name(name: str, agents: tuple[str, ...]) -> None:
    """Raises RequestError where nobody has that name."""
    if name not in agents:
        raise RequestError(f"there is no agent @{name} here", f"Here are {', '.join(f'@{known}' for known in agents)}")
