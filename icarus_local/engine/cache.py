"""Which cell of the KV cache holds which position of which sequence; no tensor is touched here."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icarus_local.errors import ContextFullError, RequestError

VISIBLE, HIDDEN = np.float16(0), np.float16(-np.inf)


@dataclass(slots=True, eq=False)
class _Sequence:
    """Tokens of one context: the token at position p stands in cell `cells[p]`, and `mask` shows these cells only."""

    tokens: npt.NDArray[np.int32]
    cells: npt.NDArray[np.int64]
    mask: npt.NDArray[np.float16]
    length: int = 0


class CellTable:
    """Cells, and the sequences that see them. A sequence's positions are 0 … length-1, without gaps.

    Sequences that were forked share cells; a cell is free again when no sequence sees it. The lowest free cell is
    taken first, so the same calls give the same cells.
    """

    def __init__(self, n_cells: int) -> None:
        self.n_cells = n_cells
        self._viewers = np.zeros(n_cells, np.int32)
        self._free = list(range(n_cells))
        self._sequences: dict[int, _Sequence] = {}
        self._next_id = 0
        self._end = 0

    @property
    def n_free(self) -> int:
        """Cells that no sequence sees."""
        return len(self._free)

    @property
    def n_used(self) -> int:
        """Cells that some sequence sees."""
        return self.n_cells - len(self._free)

    @property
    def end(self) -> int:
        """One past the highest cell in use: what attention must look at."""
        return self._end

    def _sequence(self, sequence: int) -> _Sequence:
        found = self._sequences.get(sequence)
        if found is None:
            raise RequestError(f"there is no sequence {sequence} (it was never made, or was dropped)")
        return found

    def create(self) -> int:
        """A new, empty sequence; ids are never used twice."""
        n = self.n_cells
        self._sequences[self._next_id] = _Sequence(
            np.zeros(n, np.int32), np.zeros(n, np.int64), np.full(n, HIDDEN, np.float16)
        )
        self._next_id += 1
        return self._next_id - 1

    def fork(self, sequence: int, length: int | None = None) -> int:
        """A new sequence that sees the first `length` positions of `sequence` (default all) in the same cells."""
        source = self._sequence(sequence)
        length = source.length if length is None else length
        self._check_length(source, length)
        fork = self.create()
        target, cells = self._sequences[fork], source.cells[:length]
        target.tokens[:length] = source.tokens[:length]
        target.cells[:length] = cells
        target.mask[cells] = VISIBLE
        target.length = length
        self._viewers[cells] += 1
        return fork

    @staticmethod
    def _check_length(sequence: _Sequence, length: int) -> None:
        if not 0 <= length <= sequence.length:
            raise RequestError(f"length {length} is outside the sequence's 0 to {sequence.length}")

    def truncate(self, sequence: int, length: int) -> None:
        """Forgets every position from `length` on."""
        found = self._sequence(sequence)
        self._check_length(found, length)
        cells = found.cells[length : found.length]
        found.mask[cells] = HIDDEN
        found.length = length
        self._release(cells)

    def drop(self, sequence: int) -> None:
        """Forgets a sequence."""
        self.truncate(sequence, 0)
        del self._sequences[sequence]

    def _release(self, cells: npt.NDArray[np.int64]) -> None:
        self._viewers[cells] -= 1
        for cell in cells[self._viewers[cells] == 0]:
            heapq.heappush(self._free, int(cell))
        used = np.flatnonzero(self._viewers)
        self._end = int(used[-1]) + 1 if len(used) else 0

    def reserve(self, n: int) -> npt.NDArray[np.int64]:
        """Takes `n` free cells, [n] int64, which belong to no sequence until `commit` or `give_back`.

        Raises:
            ContextFullError: fewer are free; nothing is taken then.
        """
        self.check_free(n)
        return np.array([heapq.heappop(self._free) for _ in range(n)], np.int64)

    def peek(self, n: int) -> npt.NDArray[np.int64]:
        """The cells that `reserve` would take for `n` tokens, or all that are free where they are fewer."""
        return np.array(heapq.nsmallest(n, self._free), np.int64)

    def check_free(self, n: int) -> None:
        """Raises ContextFullError unless `n` cells are free."""
        if n > len(self._free):
            raise ContextFullError(
                f"the context is full: {n} more tokens were asked for and {len(self._free)} of {self.n_cells} are free",
                "Start a new conversation, or give a larger --n-ctx",
            )

    def give_back(self, cells: npt.NDArray[np.int64]) -> None:
        """Returns reserved cells that were not committed."""
        for cell in cells:
            heapq.heappush(self._free, int(cell))

    def commit(self, sequence: int, tokens: SequenceOf[int], cells: npt.NDArray[np.int64]) -> None:
        """Appends `tokens` to a sequence, in the reserved `cells` that now hold their K and V."""
        found = self._sequence(sequence)
        start, end = found.length, found.length + len(tokens)
        found.tokens[start:end] = tokens
        found.cells[start:end] = cells
        found.mask[cells] = VISIBLE
        found.length = end
        self._viewers[cells] += 1
        if len(cells):
            self._end = max(self._end, int(cells.max()) + 1)

    def length(self, sequence: int) -> int:
        """Number of positions."""
        return self._sequence(sequence).length

    def tokens(self, sequence: int) -> npt.NDArray[np.int32]:
        """The token ids, [length] int32 (read-only view)."""
        found = self._sequence(sequence)
        view = found.tokens[: found.length]
        view.flags.writeable = False
        return view

    def cells(self, sequence: int) -> npt.NDArray[np.int64]:
        """The cells in order of position, [length] int64 (read-only view)."""
        found = self._sequence(sequence)
        view = found.cells[: found.length]
        view.flags.writeable = False
        return view

    def mask(self, sequence: int) -> npt.NDArray[np.float16]:
        """The attention mask of a row that sees the whole sequence, [n_cells] float16: 0 visible, -inf hidden."""
        return self._sequence(sequence).mask
