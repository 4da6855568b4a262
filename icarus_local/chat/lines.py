"""What a line means that a person sends: a command, or a question to some agents or to all."""

from __future__ import annotations

import re
from dataclasses import dataclass

from icarus_local.chat.requests import Ask
from icarus_local.errors import RequestError

COMMANDS = {
    "add": ("PATH…", "put text files into the conversation, for all agents"),
    "all": ("QUESTION", "all agents answer at once, none reading the others"),
    "keep": ("AGENT", "of answers given at once, leave only this agent's in the conversation"),
    "rounds": ("N QUESTION", "the agents answer in turn N times, or until one accepts"),
    "save-code": ("[N] [FILE]", "write a code block of the latest answer to a file, after asking"),
    "new": ("", "begin a new conversation; this one stays saved"),
    "help": ("", "show keys and commands"),
    "quit": ("", "end the chat"),
}
"""Name -> what may follow it, and what it does."""

# A path such as /etc/passwd is no command: after the word comes a space or nothing.
_COMMAND = re.compile(r"/(?P<name>[\w-]+)(\s+(?P<rest>.*))?", re.DOTALL)
_NAME = re.compile(r"\s*@(?P<name>[\w-]+)[,:]?(?=\s|$)")
_ROUNDS = re.compile(r"(?P<n>\d{1,9})\s+(?P<text>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """`/name rest`, whether or not it exists."""

    name: str
    rest: str = ""


def parse(line: str, rounds: int = 1, at_once: bool = False) -> Command | Ask:
    """Reads a line; `rounds` and `at_once` are what a question means that says nothing else.

    A space before the slash makes a question of what would be a command.

    Raises:
        RequestError: `/rounds` without a number, or a command that does not exist, with those that do.
    """
    found = _COMMAND.fullmatch(line)
    if found is None:
        return _question(line, rounds, at_once)
    command = Command(found["name"], (found["rest"] or "").strip())
    if command.name == "all":
        return _question(command.rest, 1, at_once=True)
    if command.name == "rounds":
        given = _ROUNDS.fullmatch(command.rest)
        if given is None:
            raise RequestError("/rounds wants a number and a question", "For example: /rounds 2 Write a queue")
        return _question(given["text"], int(given["n"]), at_once=False)
    if command.name not in COMMANDS:
        known = ", ".join(f"/{name}" for name in COMMANDS)
        raise RequestError(f"there is no command /{command.name}", f"There are {known}")
    if command.rest and not COMMANDS[command.name][0]:
        raise RequestError(f"/{command.name} stands alone", f"Send {command.rest[:40]!r} as a line of its own")
    return command


def help_lines() -> list[str]:
    """A line for each command."""
    return [f"/{name}{f' {rest}' if rest else ''}: {what}" for name, (rest, what) in COMMANDS.items()]


def _question(text: str, rounds: int, at_once: bool) -> Ask:
    """`@name` at the beginning, once or several times, says who is asked."""
    names: list[str] = []
    while match := _NAME.match(text):
        names.append(match["name"])
        text = text[match.end() :]
    return Ask(text.lstrip() if names else text, tuple(names), rounds, at_once)
