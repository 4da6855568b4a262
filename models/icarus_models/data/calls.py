"""Questions with functions to call for the agent tools: bfcl-eval's data files (Apache-2.0), read from its wheel.

Functions that occur together in any question are held out together, so that none is on both sides.
"""

from __future__ import annotations

import functools
import json
import random
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icarus_local.errors import IcarusError
from icarus_models.data.shape import Group, held_out, reply, user

NO_CALL = "No function fits."
_WITH_ANSWERS = ("simple_python", "multiple", "live_simple", "live_multiple")
_TO_DECLINE = ("irrelevance", "live_irrelevance")
_FOLDER = "bfcl_eval/data"
_ONE_IN = 2  # groups of functions held out
_LARGE = 20  # questions on one group of functions: such a group is for training
_OPTIONAL = ""  # among the answers that are right it means that the argument may be missing


@dataclass(frozen=True, slots=True)
class Call:
    """The call that is right: for each argument the values that are."""

    name: str
    arguments: Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Request:
    """A question, the functions that are offered, and the right call; None where none of them fits."""

    id: str
    question: str
    functions: tuple[Mapping[str, Any], ...]
    call: Call | None

    @property
    def asked(self) -> str:
        """What a person says: the functions, one a line, and the question."""
        offered = "\n".join(map(_signature, self.functions))
        return f"Functions:\n{offered}\n\n{self.question}"

    @property
    def told(self) -> str:
        """The answer as tools gives it."""
        if self.call is None:
            return NO_CALL
        arguments = {name: _first(values) for name, values in self.call.arguments.items() if _OPTIONAL not in values}
        return json.dumps({"name": self.call.name, "arguments": arguments}, ensure_ascii=False)


def _first(values: Sequence[Any]) -> Any:
    """The first of the values that are right; in those that hold values of their own each is a list of such."""
    value = values[0]
    if isinstance(value, dict):
        return {
            name: _first(inner) if isinstance(inner, list) else inner
            for name, inner in value.items()
            if not (isinstance(inner, list) and _OPTIONAL in inner)
        }
    if isinstance(value, list):
        return [_first([item]) for item in value]
    return value


def _signature(function: Mapping[str, Any]) -> str:
    """A function in one line: the files' JSON schemas take five times as many tokens."""
    parameters = function["parameters"]
    required = parameters.get("required", [])
    shown = (
        f"{name}{'' if name in required else '?'}: {kind.get('type', 'any')}"
        for name, kind in parameters["properties"].items()
    )
    return f"{function['name']}({', '.join(shown)}) - {' '.join(function['description'].split())}"


def requests(wheel: Path | None, aside: bool) -> list[Request]:
    """The questions that training sees, or those kept `aside`, of bfcl-eval's wheel or of the folder it unpacks to.

    Raises:
        IcarusError: no wheel was given, or it is not one of bfcl-eval.
    """
    if wheel is None:
        raise IcarusError(
            "calls and refusals come from bfcl-eval's wheel", "pip download --no-deps bfcl-eval; give it with --bfcl"
        )
    split = _split(wheel)
    return split[1] if aside else split[0]


def tools_records(wheel: Path | None, rng: random.Random, *, aside: bool) -> Iterator[Group]:
    """A record of every question, the order shuffled: two calls to a refusal, as long as there are both."""
    of = requests(wheel, aside)
    calls, refusals = ([one for one in of if (one.call is None) is decline] for decline in (False, True))
    for some in (calls, refusals):
        rng.shuffle(some)
    while calls or refusals:
        for some in (calls, calls, refusals):
            if some:
                one = some.pop()
                yield ({"messages": [user(one.asked), reply("tools", one.told)]},)


@functools.cache
def _split(wheel: Path) -> tuple[list[Request], list[Request]]:
    of = list(_read(wheel))
    group = _groups(of)
    sizes: dict[str, int] = defaultdict(int)
    for one in of:
        sizes[group[one.functions[0]["name"]]] += 1
    sides: tuple[list[Request], list[Request]] = ([], [])
    for one in of:
        name = group[one.functions[0]["name"]]
        sides[sizes[name] <= _LARGE and held_out(name, _ONE_IN)].append(one)
    return sides


def _groups(of: Sequence[Request]) -> dict[str, str]:
    """For each function the first name, in the alphabet's order, of those that it is offered with, directly or not."""
    group: dict[str, str] = {}

    def find(name: str) -> str:
        while group.setdefault(name, name) != name:
            name = group[name]
        return name

    for one in of:
        roots = sorted({find(function["name"]) for function in one.functions})
        for root in roots[1:]:
            group[root] = roots[0]
    return {name: find(name) for name in list(group)}


def _read(wheel: Path) -> Iterator[Request]:
    for kind in (*_WITH_ANSWERS, *_TO_DECLINE):
        answers = {}
        if kind in _WITH_ANSWERS:
            answers = {row["id"]: row for row in _rows(wheel, f"possible_answer/BFCL_v4_{kind}.json")}
        for row in _rows(wheel, f"BFCL_v4_{kind}.json"):
            # Several turns, or a system prompt of their own, are another task.
            plain = len(row["question"]) == 1 and [message["role"] for message in row["question"][0]] == ["user"]
            if not plain or not row["function"]:
                continue
            call = None
            if kind in _WITH_ANSWERS:
                ((name, arguments),) = answers[row["id"]]["ground_truth"][0].items()
                if not all(arguments.values()):
                    continue  # two of them say of an argument that nothing is right
                call = Call(name, arguments)
            yield Request(row["id"], row["question"][0][0]["content"], tuple(row["function"]), call)


def _rows(wheel: Path, name: str) -> list[dict[str, Any]]:
    try:
        if wheel.is_dir():
            text = (wheel / _FOLDER / name).read_text(encoding="utf-8")
        else:
            with zipfile.ZipFile(wheel) as archive:
                text = archive.read(f"{_FOLDER}/{name}").decode("utf-8")
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise IcarusError(
            f"{wheel} is not bfcl-eval's wheel: {_FOLDER}/{name} cannot be read ({error})",
            "pip download --no-deps bfcl-eval",
        ) from error
