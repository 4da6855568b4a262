"""The task math: the number at the end is the right one."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from icarus_models.data.arithmetic import Problem, problem, problems, templates
from icarus_models.data.shape import user
from icarus_models.evaluation.items import Item, Scores, Task, with_score
from icarus_models.specialists import specialist

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_CLOSE = 1e-6


def math_task(n: int, seed: int) -> Task:
    """Problems of templates that training has not seen."""
    made = problems(templates(aside=True), random.Random(f"evaluation {seed}"))
    return _task("math", n, (next(made) for _ in range(100 * n)))


def math_numbers_task(n: int, seed: int) -> Task:
    """Problems of the templates that training saw, with numbers of a seed that it did not."""
    rng = random.Random(f"evaluation of numbers {seed}")
    of = templates(aside=False)
    return _task("math-numbers", n, (problem(rng.choice(of), rng) for _ in range(100 * n)))


def _task(name: str, n: int, made: Iterator[Problem]) -> Task:
    items: dict[str, Item] = {}
    for one in made:
        if len(items) == n:
            break
        items.setdefault(
            one.question, Item(f"{one.template}-{len(items)}", (user(one.question),), {"answer": one.answer})
        )
    return Task(name, specialist("math"), tuple(items.values()), _score)


def _score(item: Item, answer: str) -> Scores:
    said, right = last_number(answer), last_number(item.truth["answer"])
    return with_score(said is not None and right is not None and abs(said - right) < _CLOSE)


def last_number(text: str) -> float | None:
    """The last number of a text, thousands with or without commas; None where there is none."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None
