"""The rows of a step: which token stands at which position, and which cells each row sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icarus_local.engine.cache import HIDDEN, VISIBLE, CellTable

Encode = Sequence[tuple[int, Sequence[int]]]
DecoderRows = Sequence[tuple[int, int | None, int]]  # sequence, adapter, how far before the sequence's end


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Inputs of a graph, encoder rows first.

    Attributes:
        tokens, positions: [rows] int32. mask: [rows, n_kv] float16, 0 or -inf.
        window_mask: likewise for layers that see a window, or None.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    mask: npt.NDArray[np.float16]
    window_mask: npt.NDArray[np.float16] | None


def make_rows(
    table: CellTable, encode: Encode, decode: DecoderRows, cells: npt.NDArray[np.int64], *, n_kv: int, window: int
) -> Rows:
    """The rows of a step whose new K and V go to `cells`, [encoded tokens] int64; `window` 0 is none."""
    n_rows = len(cells) + len(decode)
    tokens, positions = np.empty(n_rows, np.int32), np.empty(n_rows, np.int32)
    mask = np.empty((n_rows, n_kv), np.float16)
    fresh: dict[int, tuple[Sequence[int], npt.NDArray[np.int64]]] = {}
    spans: list[tuple[int, slice]] = []
    start = 0
    for sequence, ids in encode:
        n, length = len(ids), table.length(sequence)
        rows, own = slice(start, start + n), cells[start : start + n]
        tokens[rows] = ids
        positions[rows] = np.arange(length, length + n)
        mask[rows] = table.mask(sequence)[:n_kv]
        mask[np.arange(start, start + n)[:, None], own] = np.where(np.tri(n, dtype=bool), VISIBLE, HIDDEN)
        fresh[sequence] = (ids, own)
        spans.append((sequence, rows))
        start += n
    for row, (sequence, _, back) in enumerate(decode, start):
        length = table.length(sequence)
        mask[row] = table.mask(sequence)[:n_kv]
        if sequence in fresh:
            ids, own = fresh[sequence]
            n = len(ids) - back
            tokens[row], positions[row] = ids[n - 1], length + n - 1
            mask[row, own[:n]] = VISIBLE
        else:
            tokens[row] = table.tokens(sequence)[-1]
            positions[row] = length - 1
        spans.append((sequence, slice(row, row + 1)))
    if not window:
        return Rows(tokens, positions, mask, None)
    at = {sequence: _position_of_cells(table, sequence, n_kv) for sequence in {sequence for sequence, _ in spans}}
    for sequence, (ids, own) in fresh.items():
        at[sequence][own] = table.length(sequence) + np.arange(len(ids))
    windowed = mask.copy()
    for sequence, rows in spans:
        windowed[rows][positions[rows, None] - at[sequence][None, :] >= window] = HIDDEN
    return Rows(tokens, positions, mask, windowed)


def _position_of_cells(table: CellTable, sequence: int, n_kv: int) -> npt.NDArray[np.int32]:
    """For each cell the position of a sequence that it holds, [n_kv] int32; anything for cells of others."""
    at = np.zeros(n_kv, np.int32)
    cells = table.cells(sequence)
    at[cells] = np.arange(len(cells))
    return at
