"""What a line means that a person sends: a command, or a question to some agents or to all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from icarus_local.chat.requests import Ask
from icarus_local.errors import RequestError


@dataclass(frozen=True, slots=True)
class CommandInfo:
    """What may follow a command, and what it does; `on_screen`: only there, not where lines are read."""

    takes: str
    does: str
    on_screen: bool = False


COMMANDS = {
    "add": CommandInfo("PATH…", "put text files into the conversation, for all agents"),
    "all": CommandInfo("QUESTION", "all agents answer at once, none reading the others"),
    "keep": CommandInfo("AGENT", "of answers given at once, leave only this agent's in the conversation"),
    "rounds": CommandInfo("N QUESTION", "the agents answer in turn N times, or until one accepts"),
    "agent": CommandInfo("NAME…|all", "who answers a line that names nobody"),
    "agents": CommandInfo("[add|remove|reload NAME]", "who takes part, and NAME=FILE.gguf for an adapter of one's own"),
    "regenerate": CommandInfo("", "take the newest question's answers back and ask it again"),
    "edit": CommandInfo("[TEXT]", "take the newest question and its answers back and ask another in its place"),
    "copy": CommandInfo("[N]", "copy the latest answer, or its code block N", on_screen=True),
    "save-code": CommandInfo("[N] [FILE]", "write a code block of the latest answer to a file, after asking"),
    "export": CommandInfo("[FILE]", "write the conversation to a file that ends in .md or .jsonl"),
    "new": CommandInfo("", "begin a new conversation; this one stays saved"),
    "resume": CommandInfo("[ID]", "go on with a saved conversation, the latest other one without ID"),
    "sessions": CommandInfo("[TEXT]", "list the saved conversations, or those that hold TEXT", on_screen=True),
    "rename": CommandInfo("TITLE", "give the conversation a title"),
    "theme": CommandInfo("[NAME]", "show the themes, or take one", on_screen=True),
    "logs": CommandInfo("", "show what the engine and its libraries log", on_screen=True),
    "help": CommandInfo("", "show keys and commands"),
    "quit": CommandInfo("", "end the chat"),
}
"""Name -> what it is."""

# A path such as /etc/passwd is no command: after the word comes a space or nothing.
_COMMAND = re.compile(r"/(?P<name>[\w-]+)(\s+(?P<rest>.*))?", re.DOTALL)
_NAME = re.compile(r"\s*@(?P<name>[\w-]+)[,:]?(?=\s|$)")
_ROUNDS = re.compile(r"(?P<n>\d{1,9})\s+(?P<text>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """`/name rest`, whether or not it exists."""

    name: str
    rest: str = ""


def parse(line: str, rounds: int = 1, at_once: bool = False, names: Sequence[str] = ()) -> Command | Ask:
    """Reads a line; `rounds`, `at_once` and `names` are what a question means that says nothing else.

    A space before the slash makes a question of what would be a command.

    Raises:
        RequestError: `/rounds` without a number, or a command that does not exist, with those that do.
    """
    found = _COMMAND.fullmatch(line)
    if found is None:
        return question(line, rounds, at_once, names)
    command = Command(found["name"], (found["rest"] or "").strip())
    if command.name == "all":
        return question(command.rest, 1, at_once=True)
    if command.name == "rounds":
        given = _ROUNDS.fullmatch(command.rest)
        if given is None:
            raise RequestError("/rounds wants a number and a question", "For example: /rounds 2 Write a queue")
        return question(given["text"], int(given["n"]), at_once=False, names=names)
    if command.name not in COMMANDS:
        known = ", ".join(f"/{name}" for name in COMMANDS)
        raise RequestError(f"there is no command /{command.name}", f"There are {known}")
    if command.rest and not COMMANDS[command.name].takes:
        raise RequestError(f"/{command.name} stands alone", f"Send {command.rest[:40]!r} as a line of its own")
    return command


def question(text: str, rounds: int = 1, at_once: bool = False, names: Sequence[str] = ()) -> Ask:
    """A question, whatever it begins with: `@name` there, once or several times, says who is asked, else `names`."""
    given: list[str] = []
    while match := _NAME.match(text):
        given.append(match["name"])
        text = text[match.end() :]
    return Ask(text.lstrip() if given else text, tuple(given or names), rounds, at_once)


def line_of(asked: Ask) -> str:
    """The line that asks this."""
    how = "/all " if asked.at_once else f"/rounds {asked.rounds} " if asked.rounds > 1 else ""
    return how + "".join(f"@{name} " for name in asked.names) + asked.text


def help_lines(on_screen: bool) -> list[str]:
    """A line for each command; without `on_screen` those that lines alone can do."""
    return [
        f"/{name}{f' {info.takes}' if info.takes else ''}: {info.does}"
        for name, info in COMMANDS.items()
        if on_screen or not info.on_screen
    ]
