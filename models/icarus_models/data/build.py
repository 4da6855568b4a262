"""Puts the records of an agent together: seeded, and held-out tasks and modules never seen in training."""

from __future__ import annotations

import ast
import functools
import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from icarus_local.errors import IcarusError
from icarus_models.data.mutations import Mutant, mutants
from icarus_models.data.phrases import FIXES, FOLLOW_UPS, REVIEWS, asked
from icarus_models.data.stdlib import Function, functions
from icarus_models.data.tasks import Task, all_tasks, renamed, right

Record = dict[str, Any]
Fits = Callable[[Record], bool]
NO_ISSUE = "No issue found."
_HELD_OUT_SHARE = 10  # one task and one module in so many
_MAX_EVENTS = 20_000
_MAX_MISSES = 5_000  # records in a row that are too long or were there before
_SYNONYMS = {
    "text": ("s", "string", "sentence"),
    "numbers": ("nums", "values", "lst"),
    "items": ("lst", "values", "elements"),
    "n": ("number", "num", "x"),
    "mapping": ("d", "data", "dictionary"),
    "first": ("a", "left"),
    "second": ("b", "right"),
    "words": ("strings", "names"),
}


@dataclass(frozen=True, slots=True)
class Sources:
    """What records are made of, for one side of the split."""

    tasks: Sequence[Task]
    functions: Sequence[Function]
    general: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Split:
    """Training and held-out records."""

    train: list[Record]
    heldout: list[Record]


def split_sources(general: Sequence[tuple[str, str]]) -> tuple[Sources, Sources]:
    """Training and held-out sources. A task or module is on one side as a whole, by a hash of its name."""
    tasks, library = all_tasks(), functions()
    train = Sources(
        [task for task in tasks if not held_out(task.name)],
        [function for function in library if not held_out(function.module)],
        [pair for pair in general if not held_out(pair[0])],
    )
    heldout = Sources(
        [task for task in tasks if held_out(task.name)],
        [function for function in library if held_out(function.module)],
        [pair for pair in general if held_out(pair[0])],
    )
    return train, heldout


def held_out(name: str) -> bool:
    """Whether the task, module or question of that name is kept aside."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % _HELD_OUT_SHARE == 0


def build(agent: str, general: Sequence[tuple[str, str]], sizes: tuple[int, int], seed: int, fits: Fits) -> Split:
    """The records of `agent` ("coder" or "reviewer"): `sizes` are the numbers for training and held-out.

    `fits` tells whether a record is short enough. Same arguments and Python version, same records.
    """
    make = {"coder": coder_records, "reviewer": reviewer_records}[agent]
    sides = []
    for sources, size, salt in zip(split_sources(general), sizes, ("train", "heldout"), strict=True):
        rng = random.Random(f"{agent} {salt} {seed}")
        sides.append(_distinct(make(sources, size, rng), fits, size, rng))
    return Split(*sides)


def _distinct(records: Iterator[Record], fits: Fits, size: int, rng: random.Random) -> list[Record]:
    chosen: dict[str, Record] = {}
    misses = 0
    for record in records:
        if len(chosen) == size:
            break
        key = repr(record)
        if key not in chosen and fits(record):
            chosen[key] = record
            misses = 0
        else:
            misses += 1
        if misses == _MAX_MISSES:
            raise IcarusError(
                f"only {len(chosen)} of {size} different records fit", "Ask for fewer, or give a larger --max-tokens"
            )
    result = list(chosen.values())
    rng.shuffle(result)
    return result


def user(text: str) -> Record:
    """A person's message."""
    return {"role": "user", "content": text}


def reply(agent: str, text: str, weight: int = 1) -> Record:
    """An agent's message; `weight` 0 keeps it as context."""
    message: Record = {"role": "assistant", "agent": agent, "content": text}
    return message if weight else {**message, "weight": 0}


def fenced(code: str) -> str:
    """Code as the agents write it."""
    return f"```python\n{code.rstrip()}\n```"


def _tasks_in_turn(tasks: Sequence[Task], rng: random.Random) -> Iterator[Task]:
    """Tasks without end; those written by hand come twice as often as the members of a family."""
    while True:
        turn = [task for task in tasks for _ in range(1 if task.family else 2)]
        rng.shuffle(turn)
        yield from turn


def _exercise(task: Task, rng: random.Random) -> tuple[str, str]:
    """A question for `task` and its right answer; a question that names the parameters may name them otherwise."""
    names: dict[str, str] = {}
    if rng.random() < 0.6:
        used = _identifiers(task.code)
        for param in task.params:
            choices = [name for name in _SYNONYMS.get(param, ()) if name not in used and name not in names.values()]
            if choices:
                names[param] = rng.choice(choices)
    signature = f"{task.name}({', '.join(names.get(param, param) for param in task.params)})"
    question, by_signature = asked(task.says, signature, rng)
    return question, renamed(task.code, names) if by_signature and names else task.code


def _identifiers(code: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(code)))
    return {n.id for n in nodes if isinstance(n, ast.Name)} | {n.arg for n in nodes if isinstance(n, ast.arg)}


def _library_question(function: Function, rng: random.Random) -> str:
    says = function.docstring.split(". ")[0].rstrip(".")
    lowered = says[0].lower() + says[1:]
    if rng.random() < 0.4:
        return f"Write a Python function `{function.name}`: {lowered}."
    return f'Complete this function:\n```python\n{function.head.strip()}\n    """{says}."""\n```'


def coder_records(sources: Sources, size: int, rng: random.Random) -> Iterator[Record]:
    """Records for the coder without end: one question, two in a row, a fix after a review, the library, talk."""
    for question, answer in sources.general[: max(1, size * 8 // 100)]:
        yield {"messages": [user(question), reply("coder", answer)]}
    tasks, library = _tasks_in_turn(sources.tasks, rng), _shuffled(sources.functions, rng)
    while True:
        kind = rng.random()
        if kind < 0.16:
            function = next(library)
            yield {"messages": [user(_library_question(function, rng)), reply("coder", fenced(function.code))]}
            continue
        task = next(tasks)
        question, code = _exercise(task, rng)
        if kind < 0.72:
            yield {"messages": [user(question), reply("coder", fenced(code))]}
        elif kind < 0.88:
            other, other_code = _exercise(next(tasks), rng)
            messages = [user(other), reply("coder", fenced(other_code))]
            if rng.random() < 0.3:
                messages.append(reply("reviewer", NO_ISSUE))
            follow_up = rng.choice(FOLLOW_UPS).format(ask=question)
            yield {"messages": [*messages, user(follow_up), reply("coder", fenced(code))]}
        else:
            bugs = killed_mutants(task)
            if bugs:
                bug = rng.choice(bugs)
                yield {
                    "messages": [
                        user(asked(task.says, task.signature, rng)[0]),
                        reply("coder", fenced(bug.code), weight=0),
                        reply("reviewer", finding(bug)),
                        user(rng.choice(FIXES)),
                        reply("coder", fenced(task.code)),
                    ]
                }


def reviewer_records(sources: Sources, size: int, rng: random.Random) -> Iterator[Record]:
    """Records for the reviewer without end: two thirds with one planted bug, one third intact."""
    for question, answer in sources.general[: max(1, size * 8 // 100)]:
        yield {"messages": [user(question), reply("reviewer", answer)]}
    tasks, library = _tasks_in_turn(sources.tasks, rng), _shuffled(sources.functions, rng)
    while True:
        intact, direct = rng.random() < 1 / 3, rng.random() < 0.25
        if rng.random() < 0.2:
            function = next(library)
            question, code, says = _library_question(function, rng), function.code, ""
            bugs = mutants(code)
        else:
            task = next(tasks)
            (question, code), says = _exercise(task, rng), rng.choice(task.says)
            bugs = killed_mutants(task, code)
        if not intact and not bugs:
            continue
        # A kind first, then a bug of that kind: else operators and comparisons crowd out the rest.
        kind = rng.choice(sorted({bug.kind for bug in bugs})) if not intact else ""
        bug = None if intact else rng.choice([bug for bug in bugs if bug.kind == kind])
        shown, answer = (bug.code, finding(bug)) if bug else (code, NO_ISSUE)
        if direct:
            wording = rng.choice([review for review in REVIEWS if says or "{says}" not in review])
            yield {"messages": [user(f"{wording.format(says=says)}\n{fenced(shown)}"), reply("reviewer", answer)]}
        else:
            yield {"messages": [user(question), reply("coder", fenced(shown)), reply("reviewer", answer)]}


def finding(bug: Mutant) -> str:
    """The reviewer's fixed form."""
    return f"Line {bug.line}: found `{bug.found}`, should be `{bug.should}`.\n{fenced(bug.fixed)}"


def _shuffled(some: Sequence[Function], rng: random.Random) -> Iterator[Function]:
    while some:
        turn = list(some)
        rng.shuffle(turn)
        yield from turn


def killed_mutants(task: Task, code: str | None = None) -> list[Mutant]:
    """The mutants of a task that its examples prove wrong: an equivalent change would teach a false alarm."""
    return list(_killed(task, code or task.code))


@functools.cache
def _killed(task: Task, code: str) -> tuple[Mutant, ...]:
    return tuple(bug for bug in mutants(code) if not _still_right(bug.code, task))


class _TooLong(Exception):  # noqa: N818 - it is caught below, and means that a mutant does not end
    pass


def _still_right(code: str, task: Task) -> bool:
    """Whether `code` passes the task's examples; errors and endless loops are wrong too."""
    events = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal events
        events += 1
        if events > _MAX_EVENTS:
            raise _TooLong
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        return right(code, task)
    except Exception:  # whatever a planted bug raises
        return False
    finally:
        sys.settrace(before)
