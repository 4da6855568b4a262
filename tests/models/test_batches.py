"""The order of a run's batches: seeded, complete, packed without a row that is too long."""

from __future__ import annotations

import random
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from icarus_models.batches import plan_rows, rows_of_epoch


def test_the_plan_is_seeded_and_sees_every_sample_once_an_epoch() -> None:
    lengths = [(37 * index) % 101 for index in range(64)]
    order = list(chain.from_iterable(plan_rows(lengths, batch=4, steps=32, seed=5)))
    assert plan_rows(lengths, 4, 32, 5) == plan_rows(lengths, 4, 32, 5) != plan_rows(lengths, 4, 32, 6)
    assert sorted(order[:64]) == sorted(order[64:]) == list(range(64))
    # A shorter run's batches are the first of a longer one's: what makes --resume the same run.
    assert plan_rows(lengths, 4, 10, 5) == [(index,) for index in order[:40]]
    spread = [
        max(lengths[i] for i in order[s : s + 4]) - min(lengths[i] for i in order[s : s + 4]) for s in range(0, 128, 4)
    ]
    assert sum(spread) / len(spread) < 15  # by chance it would be about 60
    assert len(plan_rows(lengths[:3], batch=8, steps=2, seed=0)) == 16


@given(st.lists(st.integers(1, 50), min_size=1, max_size=80), st.integers(50, 120), st.integers(0, 3))
def test_packed_rows_hold_every_sample_once_and_fit(lengths: list[int], pack: int, seed: int) -> None:
    rows = rows_of_epoch(lengths, random.Random(seed), pack)
    assert sorted(chain.from_iterable(rows)) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in row) <= pack for row in rows)
    assert len(rows) <= len(lengths)


def test_packing_fills_rows() -> None:
    lengths = [20 + index % 60 for index in range(300)]
    rows = rows_of_epoch(lengths, random.Random(0), 256)
    assert sum(lengths) / (256 * len(rows)) > 0.9
    assert {len(row) for row in plan_rows(lengths, 2, 5, 0)} == {1}
