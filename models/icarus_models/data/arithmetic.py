"""Word problems with worked answers for the agent math: reasoning-gym's gsm_symbolic (Apache-2.0), by template.

A template is held out as a whole. Others give held-out problems too, of numbers that training has not seen.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from icarus_local.errors import IcarusError
from icarus_models.data.shape import Group, reply, user

ANSWER = "Answer:"
_SHARE = 6  # one template in so many is held out
_Generator = Callable[[random.Random, float], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Problem:
    """A word problem: `worked` are the steps, `answer` is the number as text."""

    template: int
    question: str
    worked: str
    answer: str

    @property
    def told(self) -> str:
        """The answer as math gives it."""
        return f"{self.worked}\n{ANSWER} {self.answer}"


@functools.cache
def _generators() -> dict[int, _Generator]:
    """The templates that reasoning-gym itself holds to be right.

    Raises:
        IcarusError: it is not installed.
    """
    try:
        from reasoning_gym.arithmetic.gsm_symbolic.gsm_symbolic import (
            GSMSymbolicDataset,
            GSMSymbolicDatasetConfig,
            tasks_ok,
        )
    except ImportError as error:
        raise IcarusError(
            f"math problems come from reasoning-gym, which is not installed ({error.name})",
            "pip install 'icarus-local[data]'",
        ) from error
    found = GSMSymbolicDataset(GSMSymbolicDatasetConfig(seed=0, size=1)).generators
    return {index: found[index] for index in tasks_ok}


def templates(aside: bool) -> list[int]:
    """The numbers of the templates that training sees, or of those kept `aside`."""
    # Few as they are, a hash alone would hold out now many, now hardly any.
    by_hash = sorted(_generators(), key=lambda index: hashlib.sha256(f"gsm_symbolic {index}".encode()).digest())
    kept = len(by_hash) // _SHARE
    return sorted(by_hash[:kept] if aside else by_hash[kept:])


def problem(template: int, rng: random.Random) -> Problem:
    """A problem of a template with numbers and names of its own."""
    made = _generators()[template](rng, 1.0)
    # The last line repeats the answer as `#### 18`.
    worked = str(made["metadata"]["answer_cot"]).rpartition("\n")[0]
    return Problem(template, str(made["question"]), worked, str(made["answer"]))


def problems(of: list[int], rng: random.Random) -> Iterator[Problem]:
    """Problems without end, all templates as often as each other."""
    while True:
        turn = list(of)
        rng.shuffle(turn)
        for template in turn:
            yield problem(template, rng)


def math_records(rng: random.Random, *, aside: bool) -> Iterator[Group]:
    """Records without end."""
    for one in problems(templates(aside), rng):
        yield ({"messages": [user(one.question), reply("math", one.told)]},)
