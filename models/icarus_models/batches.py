"""Which samples stand in which row of which batch, for a whole run: seeded, so that a resumed run has the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

# Indices of the samples in one row of a batch.
Row = tuple[int, ...]
_POOL = 16  # batches that are sorted by length together
_OPEN = 32  # rows that are looked at for room


def plan_rows(lengths: Sequence[int], batch: int, steps: int, seed: int, pack: int | None = None) -> list[Row]:
    """The rows of `steps` batches: every sample once an epoch, rows of like length side by side.

    The whole run's order is known from the seed, so a resumed run goes on with exactly the batches it had left. A last
    batch that is short is filled from the epoch's start.

    Args:
        lengths: tokens of each sample.
        batch: rows of a batch.
        pack: most tokens of a row of several samples; None for one sample in each.

    Returns:
        `steps * batch` rows.
    """
    rng = random.Random(seed)
    order: list[Row] = []
    while len(order) < steps * batch:
        epoch = rows_of_epoch(lengths, rng, pack)
        epoch += [epoch[index % len(epoch)] for index in range(-len(epoch) % batch)]
        batches: list[list[Row]] = []
        for start in range(0, len(epoch), batch * _POOL):
            some = sorted(epoch[start : start + batch * _POOL], key=lambda row: sum(lengths[index] for index in row))
            batches.extend(some[cut : cut + batch] for cut in range(0, len(some), batch))
        rng.shuffle(batches)
        order.extend(row for one in batches for row in one)
    return order[: steps * batch]


def rows_of_epoch(lengths: Sequence[int], rng: random.Random, pack: int | None) -> list[Row]:
    """Every sample once, shuffled; packed, a sample goes into the first of the newest rows with room for it."""
    shuffled = list(range(len(lengths)))
    rng.shuffle(shuffled)
    if pack is None:
        return [(index,) for index in shuffled]
    rows: list[list[int]] = []
    room: list[int] = []
    for index in shuffled:
        newest = range(max(0, len(rows) - _OPEN), len(rows))
        place = next((i for i in newest if room[i] >= lengths[index]), None)
        if place is None:
            place = len(rows)
            rows.append([])
            room.append(pack)
        rows[place].append(index)
        room[place] -= lengths[index]
    return [tuple(row) for row in rows]
