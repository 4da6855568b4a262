"""The cell table against a model of it: sequences as plain lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icarus_local.engine.cache import CellTable
from icarus_local.errors import ContextFullError, RequestError

N_CELLS = 24
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["create", "append", "fork", "truncate", "drop", "abort"]), st.integers(0, 7), st.integers(0, 9)
    ),
    max_size=60,
)


def _apply(
    table: CellTable, model: dict[int, list[int]], action: str, sequence: int, n: int, counter: list[int]
) -> None:
    if action == "create":
        model[table.create()] = []
    elif action == "append":
        tokens = [counter[0] + i for i in range(n)]
        counter[0] += n
        if table.n_free < n:
            with pytest.raises(ContextFullError):
                table.reserve(n)
            return
        table.commit(sequence, tokens, table.reserve(n))
        model[sequence] += tokens
    elif action == "abort":
        if table.n_free >= n:
            table.give_back(table.reserve(n))
    elif action == "fork":
        length = min(n, len(model[sequence]))
        model[table.fork(sequence, length)] = model[sequence][:length]
    elif action == "truncate":
        length = min(n, len(model[sequence]))
        table.truncate(sequence, length)
        del model[sequence][length:]
    else:
        table.drop(sequence)
        del model[sequence]


@settings(max_examples=200, deadline=None)
@given(ACTIONS)
def test_sequences_are_lists_whose_shared_prefix_shares_cells(actions: list[tuple[str, int, int]]) -> None:
    table, model, counter = CellTable(N_CELLS), {}, [0]
    for action, which, n in actions:
        if action != "create" and not model:
            continue
        sequence = sorted(model)[which % len(model)] if model else -1
        _apply(table, model, action, sequence, n, counter)
        seen: dict[int, int] = {}
        for name, tokens in model.items():
            cells = table.cells(name)
            assert table.tokens(name).tolist() == tokens
            assert len(set(cells.tolist())) == len(tokens)
            assert np.flatnonzero(table.mask(name) == 0).tolist() == sorted(cells.tolist())
            for cell, token in zip(cells.tolist(), tokens, strict=True):
                assert seen.setdefault(cell, token) == token, "one cell serves two tokens"
        assert table.n_used == len(seen)
        assert table.end == max(seen, default=-1) + 1


def test_the_lowest_free_cell_is_taken_first() -> None:
    table = CellTable(8)
    sequence = table.create()
    table.commit(sequence, [1, 2, 3, 4], table.reserve(4))
    table.truncate(sequence, 1)
    assert table.reserve(2).tolist() == [1, 2]


def test_what_does_not_exist_is_said() -> None:
    table = CellTable(4)
    with pytest.raises(RequestError, match="no sequence 7"):
        table.tokens(7)
    sequence = table.create()
    with pytest.raises(RequestError, match="outside"):
        table.truncate(sequence, 1)
    with pytest.raises(ContextFullError, match="5 more tokens"):
        table.reserve(5)
    assert table.n_free == 4
