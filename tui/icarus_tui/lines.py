"""What a sent line means: a command, or a question to one agent or to all."""

from __future__ import annotations

import re
from dataclasses import dataclass

from icarus_local.chat.address import split_address

COMMANDS = {"help": "show keys and commands", "quit": "end the chat"}

# A path such as /etc/passwd is no command: after the word comes a space or nothing.
_COMMAND = re.compile(r"/(?P<name>\w+)(\s.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """`/name`, whether or not it exists."""

    name: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the agents of `names`, to all of them where it is empty."""

    text: str
    names: tuple[str, ...] = ()


def parse(line: str) -> Command | Question:
    """Reads a sent line. A space before the slash makes a question of what would be a command."""
    if command := _COMMAND.fullmatch(line):
        return Command(command["name"])
    return Question(*split_address(line))
