"""Puts the records of an agent together: seeded, and nothing that is held out is seen in training."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from icarus_models.data.arithmetic import math_records
from icarus_models.data.calls import tools_records
from icarus_models.data.coder import coder_records
from icarus_models.data.reviewer import reviewer_records
from icarus_models.data.shape import Fits, Group, Record, distinct, held_out, reply, user
from icarus_models.data.sources import split_sources

# Of a hundred records at most so many are general questions.
_GENERAL = 8


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What is not in this package.

    Attributes:
        general: questions with the base's own answers. bfcl: bfcl-eval's wheel, for tools.
        pairs: the reviewer sees every function right and wrong, in the same words.
    """

    general: Sequence[tuple[str, str]]
    bfcl: Path | None = None
    pairs: bool = False


@dataclass(frozen=True, slots=True)
class Split:
    """Training and held-out records."""

    train: list[Record]
    heldout: list[Record]


def build(agent: str, ingredients: Ingredients, sizes: tuple[int, int], seed: int, fits: Fits) -> Split:
    """The records of one of the four specialists: `sizes` are the numbers for training and held-out.

    `fits` tells whether a record is short enough. Same arguments, Python and packages, same records.

    Raises:
        IcarusError: a package that the data comes from is missing, or there are not that many records.
    """
    sides = []
    for aside, size, salt in zip((False, True), sizes, ("train", "heldout"), strict=True):
        rng = random.Random(f"{agent} {salt} {seed}")
        pairs = [pair for pair in ingredients.general if held_out(pair[0]) is aside][: max(1, size * _GENERAL // 100)]
        general: Iterator[Group] = (({"messages": [user(asked), reply(agent, told)]},) for asked, told in pairs)
        own = _groups(agent, ingredients, rng, aside)
        sides.append(distinct(chain(general, own), fits, size, rng))
    return Split(*sides)


def _groups(agent: str, ingredients: Ingredients, rng: random.Random, aside: bool) -> Iterator[Group]:
    if agent == "math":
        return math_records(rng, aside=aside)
    if agent == "tools":
        return tools_records(ingredients.bfcl, rng, aside=aside)
    sources = split_sources(ingredients.general)[aside]
    if agent == "coder":
        return coder_records(sources, rng)
    return reviewer_records(sources, rng, pairs=ingredients.pairs)
