"""The coder's records: one question, two in a row, a fix after a review, the library, talk."""

from __future__ import annotations

import random
from collections.abc import Iterator

from icarus_models.data.phrases import FIXES, FOLLOW_UPS, asked
from icarus_models.data.reviewer import NO_ISSUE, finding
from icarus_models.data.shape import Group, Record, fenced, reply, user
from icarus_models.data.sources import (
    Sources,
    exercise,
    functions_in_turn,
    killed_mutants,
    library_question,
    tasks_in_turn,
)


def coder_records(sources: Sources, rng: random.Random) -> Iterator[Group]:
    """Records without end, each for itself."""
    tasks, library = tasks_in_turn(sources.tasks, rng), functions_in_turn(sources.functions, rng)
    while True:
        kind = rng.random()
        if kind < 0.16:
            function = next(library)
            yield _record(user(library_question(function, rng)), reply("coder", fenced(function.code)))
            continue
        task = next(tasks)
        question, code = exercise(task, rng)
        if kind < 0.72:
            yield _record(user(question), reply("coder", fenced(code)))
        elif kind < 0.88:
            other, other_code = exercise(next(tasks), rng)
            messages = [user(other), reply("coder", fenced(other_code))]
            if rng.random() < 0.3:
                messages.append(reply("reviewer", NO_ISSUE))
            follow_up = rng.choice(FOLLOW_UPS).format(ask=question)
            yield _record(*messages, user(follow_up), reply("coder", fenced(code)))
        elif bugs := killed_mutants(task):
            bug = rng.choice(bugs)
            yield _record(
                user(asked(task.says, task.signature, rng)[0]),
                reply("coder", fenced(bug.code), weight=0),
                reply("reviewer", finding(bug)),
                user(rng.choice(FIXES)),
                reply("coder", fenced(task.code)),
            )


def _record(*messages: Record) -> Group:
    return ({"messages": list(messages)},)
