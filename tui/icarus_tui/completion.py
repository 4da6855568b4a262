"""What may follow what is being typed: commands, agents, themes, and files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from icarus_local.chat.figures import printable
from icarus_local.chat.lines import COMMANDS

_MAX_LISTED = 2_000  # of a folder: one with more must not hold the keys
_MAX_SHOWN = 50

_COMMAND = re.compile(r"/[\w-]*")
_ARGUMENT = re.compile(r"/(?P<name>[\w-]+)\s+(?P<rest>.*)", re.DOTALL)
_COMMANDS_BEFORE = re.compile(r"^/(all|rounds\s+\d+|edit)\s")
_ADDRESSES = re.compile(r"(?:\s*@[\w-]+[,:]?)*\s*")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word that may stand there: `text` replaces what was begun, `shown` and `note` are what is listed."""

    text: str
    shown: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """Where the word begins in what was typed, and what it may be, the best first."""

    start: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """What there is to name. agents: who takes part. known: who could. themes: of the screen."""

    agents: Sequence[str] = ()
    known: Sequence[str] = ()
    themes: Sequence[str] = ()


def complete(typed: str, names: Names) -> Completion | None:
    """What may follow `typed`, the text before the cursor; None where nothing is known."""
    if _COMMAND.fullmatch(typed):
        return _completion(0, _commands(typed[1:]))
    if (match := _ARGUMENT.fullmatch(typed)) and match["name"] in COMMANDS:
        return _argument(typed, match["name"], match["rest"], names)
    return _mention(typed, names)


def _commands(begun: str) -> Iterator[Candidate]:
    for name, info in COMMANDS.items():
        if name.startswith(begun):
            shown = f"/{name} {info.takes}".rstrip()
            yield Candidate(f"/{name} " if info.takes else f"/{name}", shown, info.does)


def _argument(typed: str, name: str, rest: str, names: Names) -> Completion | None:
    word = _last_word(rest)
    start = len(typed) - len(word)
    listed: dict[str, Callable[[], Iterator[Candidate]]] = {
        "keep": lambda: _names(word, names.agents),
        "agent": lambda: _names(word, [*names.agents, "all"]),
        "agents": lambda: _agents(rest, word, names),
        "theme": lambda: _names(word, names.themes),
        "add": lambda: _paths(word),
        "export": lambda: _paths(word),
        "save-code": lambda: _paths(word),
    }
    if name in listed:
        return _completion(start, listed[name]())
    return _mention(typed, names) if name in ("all", "rounds", "edit") else None


def _last_word(text: str) -> str:
    """What follows the last space, or a quote that is not closed, which it begins with then."""
    if text.count('"') % 2:
        return text[text.rindex('"') :]
    space = max((i for i, c in enumerate(text) if c.isspace()), default=-1)
    return text[space + 1 :]


def _agents(rest: str, word: str, names: Names) -> Iterator[Candidate]:
    verb = rest.removesuffix(word).strip()
    if not verb:
        yield from _names(word, ("add ", "remove ", "reload "))
    elif verb == "add":
        yield from _names(word, [name for name in names.known if name not in names.agents])
    else:
        yield from _names(word, names.agents)


def _names(word: str, names: Sequence[str]) -> Iterator[Candidate]:
    at, begun = ("@", word[1:]) if word.startswith("@") else ("", word)
    for name in names:
        if name.startswith(begun) and name.strip() != begun:
            yield Candidate(f"{at}{name}", name.strip())


def _mention(typed: str, names: Names) -> Completion | None:
    begun = _last_word(typed)
    start = len(typed) - len(begun)
    if begun.startswith('"') and typed[:start].endswith("@"):
        start -= 1
    elif not begun.startswith("@"):
        return None
    before, word = typed[:start], typed[start + 1 :]
    if before and not before[-1].isspace():
        return None
    found = [Candidate(f"@{path.text}", path.shown, path.note) for path in _paths(word)]
    # Only at the beginning does a name say who is asked.
    if _ADDRESSES.fullmatch(_COMMANDS_BEFORE.sub("", before)):
        agents = [name for name in names.agents if name.startswith(word)]
        found = [*[Candidate(f"@{name} ", f"@{name}", "agent") for name in agents], *found]
    return _completion(start, found)


def _paths(word: str) -> Iterator[Candidate]:
    """Files and folders whose path begins so; hidden ones only where the dot is typed."""
    path = word.removeprefix('"')
    folder, begun = os.path.split(path)
    entries: list[tuple[str, bool]] = []
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as listing:
            for entry in islice(listing, _MAX_LISTED):
                if entry.name.startswith(begun) and (begun.startswith(".") or not entry.name.startswith(".")):
                    entries.append((entry.name, entry.is_dir()))
    except (OSError, ValueError):
        return
    for name, is_folder in sorted(entries):
        full = os.path.join(folder, name) + ("/" if is_folder else "")
        if '"' in full or printable(full) != full or "\n" in full or "\t" in full:
            continue  # it could not be typed
        quoted = word.startswith('"') or any(c.isspace() for c in full)
        text = f'"{full}' + ("" if is_folder else '"') if quoted else full
        yield Candidate(text if is_folder else f"{text} ", full)


def _completion(start: int, found: Iterator[Candidate] | Sequence[Candidate]) -> Completion | None:
    candidates = tuple(islice(found, _MAX_SHOWN))
    return Completion(start, candidates) if candidates else None
