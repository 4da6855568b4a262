"""The task reviewer: the line and the fix are right, and right code is left alone."""

from __future__ import annotations

import random
import re

from icarus_models.data.reviewer import reviews
from icarus_models.data.sources import split_sources
from icarus_models.evaluation.items import Item, Scores, Task, with_score
from icarus_models.specialists import specialist

# Nobody was told the form: "There is no bug in this code." says it too, and so does "The code is correct.".
_INTACT = re.compile(
    r"\bno (?:\w+ )?(?:issues?|bugs?|errors?|problems?|mistakes?)\b|\b(?:is|looks|seems) (?:correct|right|fine)\b",
    re.IGNORECASE,
)
_LINE = re.compile(r"Line (\d+)\b")
_BLOCK = re.compile(r"```(?:python)?\n(.*?)(?:\n```|$)", re.DOTALL)
_MAX_LINES = 14  # of a function: longer ones no specialist was trained on in number
_MAX_TRIES = 50  # reviews drawn for each that is taken


def reviewer_task(n: int, seed: int) -> Task:
    """Held-out functions, each right and, in the same words, with one bug."""
    _, sources = split_sources(())
    items: dict[str, Item] = {}
    made = reviews(sources, random.Random(f"evaluation {seed}"))
    for _ in range(_MAX_TRIES * n):
        if len(items) >= n:
            break
        review = next(made)
        if review.bug is None or len(review.code.splitlines()) > _MAX_LINES:
            continue
        right, wrong = review.record(None)["messages"][:-1], review.record(review.bug)["messages"][:-1]
        if repr(right) in items or repr(wrong) in items:
            continue
        number = len(items) // 2
        items[repr(right)] = Item(f"{review.name}-{number}-right", tuple(right), None)
        truth = {"line": review.bug.line, "fixed": review.bug.fixed}
        items[repr(wrong)] = Item(f"{review.name}-{number}-wrong", tuple(wrong), truth)
    return Task("reviewer", specialist("reviewer"), tuple(items.values())[:n], _score)


def _score(item: Item, answer: str) -> Scores:
    passed = is_passed(answer)
    if item.truth is None:
        return with_score(passed, intact=passed)
    line, block = _LINE.search(answer), _BLOCK.search(answer)
    found = not passed and line is not None and int(line[1]) == item.truth["line"]
    fixed = found and block is not None and block[1].strip() == item.truth["fixed"].strip()
    return with_score(found and fixed, line=found, fix=fixed)


def is_passed(answer: str) -> bool:
    """Whether a review lets code pass: its first sentence says that nothing is wrong, and names no line."""
    first = re.split(r"[.!\n]", answer.strip(), maxsplit=1)[0]
    return _INTACT.search(first) is not None and _LINE.search(first) is None
