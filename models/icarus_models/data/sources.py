"""What code records are made of: tasks of our own and the standard library, split into training and held-out."""

from __future__ import annotations

import ast
import functools
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from icarus_models.data.mutations import Mutant, mutants
from icarus_models.data.phrases import asked, asked_by_signature
from icarus_models.data.shape import held_out
from icarus_models.data.stdlib import Function, functions
from icarus_models.data.tasks import Task, all_tasks, renamed, right

_MAX_EVENTS = 20_000
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


def split_sources(general: Sequence[tuple[str, str]]) -> tuple[Sources, Sources]:
    """Training and held-out sources. A task or module is on one side as a whole, by a hash of its name."""
    tasks, library = _everything()
    train, heldout = (
        Sources(
            [task for task in tasks if held_out(task.name) is side],
            [function for function in library if held_out(function.module) is side],
            [pair for pair in general if held_out(pair[0]) is side],
        )
        for side in (False, True)
    )
    return train, heldout


@functools.cache
def _everything() -> tuple[Sequence[Task], Sequence[Function]]:
    """All tasks and functions: the library is thousands of files to parse."""
    return all_tasks(), functions()


def tasks_in_turn(tasks: Sequence[Task], rng: random.Random) -> Iterator[Task]:
    """Tasks without end; those written by hand come twice as often as the members of a family."""
    while True:
        turn = [task for task in tasks for _ in range(1 if task.family else 2)]
        rng.shuffle(turn)
        yield from turn


def functions_in_turn(some: Sequence[Function], rng: random.Random) -> Iterator[Function]:
    """Functions without end, in another order each time."""
    while some:
        turn = list(some)
        rng.shuffle(turn)
        yield from turn


def exercise(task: Task, rng: random.Random, *, by_signature: bool = False) -> tuple[str, str]:
    """A question for `task` and its right answer; a question that names the parameters may name them otherwise.

    `by_signature` asks for such a question.
    """
    names: dict[str, str] = {}
    if rng.random() < 0.6:
        used = _identifiers(task.code)
        for param in task.params:
            choices = [name for name in _SYNONYMS.get(param, ()) if name not in used and name not in names.values()]
            if choices:
                names[param] = rng.choice(choices)
    signature = f"{task.name}({', '.join(names.get(param, param) for param in task.params)})"
    if by_signature:
        return asked_by_signature(task.says, signature, rng), renamed(task.code, names) if names else task.code
    question, named = asked(task.says, signature, rng)
    return question, renamed(task.code, names) if named and names else task.code


def _identifiers(code: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(code)))
    return {n.id for n in nodes if isinstance(n, ast.Name)} | {n.arg for n in nodes if isinstance(n, ast.arg)}


def library_question(function: Function, rng: random.Random) -> str:
    """A wish for a function of the standard library."""
    says = function.docstring.split(". ")[0].rstrip(".")
    lowered = says[0].lower() + says[1:]
    if rng.random() < 0.4:
        return f"Write a Python function `{function.name}`: {lowered}."
    return f'Complete this function:\n```python\n{function.head.strip()}\n    """{says}."""\n```'


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
