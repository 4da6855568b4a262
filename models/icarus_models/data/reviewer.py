"""The reviewer's records: functions with one planted bug, and functions that are right."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from icarus_models.data.mutations import Mutant, mutants
from icarus_models.data.phrases import REVIEWS
from icarus_models.data.shape import Group, Record, fenced, reply, user
from icarus_models.data.sources import (
    Sources,
    exercise,
    functions_in_turn,
    killed_mutants,
    library_question,
    tasks_in_turn,
)

NO_ISSUE = "No issue found."


@dataclass(frozen=True, slots=True)
class Review:
    """One function to be looked at: `name` of its task or library function, its right `code`, and one `bug` in it.

    `record` puts either before the reviewer, in the same words.
    """

    name: str
    code: str
    bug: Mutant | None
    record: Callable[[Mutant | None], Record]


def reviewer_records(sources: Sources, rng: random.Random, *, pairs: bool = False) -> Iterator[Group]:
    """Records without end: two thirds with a planted bug, one third intact.

    With `pairs` every function comes twice in the same words, right and wrong, so that nothing but a look at the code
    tells which answer is meant.
    """
    for review in reviews(sources, rng):
        if pairs:
            if review.bug is not None:
                yield review.record(None), review.record(review.bug)
        elif rng.random() < 1 / 3:
            yield (review.record(None),)
        elif review.bug is not None:
            yield (review.record(review.bug),)


def reviews(sources: Sources, rng: random.Random, library_share: float = 0.2) -> Iterator[Review]:
    """Functions to be looked at, without end."""
    tasks, library = tasks_in_turn(sources.tasks, rng), functions_in_turn(sources.functions, rng)
    while True:
        direct = rng.random() < 0.25
        if rng.random() < library_share:
            function = next(library)
            name, code, says = function.name, function.code, ""
            question, bugs = library_question(function, rng), mutants(code)
        else:
            task = next(tasks)
            (question, code), name, says = exercise(task, rng), task.name, rng.choice(task.says)
            bugs = killed_mutants(task, code)
        wording = rng.choice([review for review in REVIEWS if says or "{says}" not in review]).format(says=says)
        yield Review(name, code, _one_of(bugs, rng), _putting(code, wording if direct else "", question))


def _one_of(bugs: list[Mutant], rng: random.Random) -> Mutant | None:
    """A kind first, then a bug of that kind: else operators and comparisons crowd out the rest."""
    if not bugs:
        return None
    kind = rng.choice(sorted({bug.kind for bug in bugs}))
    return rng.choice([bug for bug in bugs if bug.kind == kind])


def _putting(code: str, wording: str, question: str) -> Callable[[Mutant | None], Record]:
    """The record of a function: a person shows it with `wording`, or coder wrote it where that is empty."""

    def record(bug: Mutant | None) -> Record:
        shown, answer = (bug.code, finding(bug)) if bug else (code, NO_ISSUE)
        if wording:
            return {"messages": [user(f"{wording}\n{fenced(shown)}"), reply("reviewer", answer)]}
        return {"messages": [user(question), reply("coder", fenced(shown)), reply("reviewer", answer)]}

    return record


def finding(bug: Mutant) -> str:
    """The reviewer's fixed form."""
    return f"Line {bug.line}: found `{bug.found}`, should be `{bug.should}`.\n{fenced(bug.fixed)}"
