"""Where a person stands in the transcript: a question, an answer, a code block or a thought."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from icarus_tui.block import Block, Mark, Node, Stack
from icarus_tui.columns import Columns
from icarus_tui.exchange import Entry


class Spot(NamedTuple):
    """A mark of a block."""

    block: Block
    number: int

    @property
    def mark(self) -> Mark:
        """What stands there."""
        return self.block.marks[self.number]

    @property
    def rows(self) -> tuple[int, int]:
        """Its first row and the one behind it."""
        top = self.block.top
        return top + self.block.row_of_line(self.mark.first), top + self.block.row_of_line(self.mark.end)


class Place:
    """Where the person stands among the entries of `root`, and the ways from there.

    Attributes:
        spot: None where there is nothing to stand on.
    """

    def __init__(self, root: Stack) -> None:
        self._root = root
        self.spot: Spot | None = None

    @property
    def entry(self) -> Entry | None:
        """The entry that the spot is in."""
        node: Node | None = self.spot.block if self.spot is not None else None
        while node is not None and node.parent is not self._root:
            node = node.parent
        return node if isinstance(node, Entry) else None

    def check(self) -> None:
        """Leaves what is gone or no longer shown."""
        if self.spot is not None and self.spot not in (spots(self.entry) if self.entry is not None else []):
            self.spot = None

    def holds(self, block: Block, line: int) -> bool:
        """Whether a line belongs to the spot."""
        if self.spot is None or self.spot.block is not block or self.spot.number >= len(block.marks):
            return False
        return self.spot.mark.first <= line < self.spot.mark.end

    def move(self, step: int) -> None:
        """Goes to the next spot, or with -1 to the one before; at the end it stays."""
        entry = self.entry
        if self.spot is None or entry is None:
            return
        here = spots(entry)
        index = here.index(self.spot) + step
        if 0 <= index < len(here):
            self.spot = here[index]
            return
        places = range(entry.place + 1, len(self._root.nodes)) if step > 0 else range(entry.place - 1, -1, -1)
        for place in places:
            if there := spots(self._root.nodes[place]):
                self.spot = there[0 if step > 0 else -1]
                return

    def go_near(self, row: int) -> None:
        """Goes to the spot that is nearest to a row."""
        if not self._root.nodes or not self._root.height:
            self.spot = None
            return
        middle = self._root.place_at(min(max(row, 0), self._root.height - 1))
        near = [
            *self._first_with_spots(range(middle, -1, -1)),
            *self._first_with_spots(range(middle + 1, len(self._root.nodes))),
        ]
        self.spot = min(near, key=lambda spot: _distance(spot, row), default=None)

    def go_to(self, block: Block, line: int) -> bool:
        """Goes to the spot that a line belongs to; whether it does."""
        for number, mark in enumerate(block.marks):
            if mark.first <= line < mark.end:
                self.spot = Spot(block, number)
                return True
        return False

    @property
    def columns(self) -> Columns | None:
        """The answers beside each other that the person may go between."""
        columns = None if self.entry is None else self.entry.columns
        return columns if columns is not None and len(columns.answers) > 1 else None

    def go_aside(self, step: int) -> None:
        """Goes to the column or tab on the right, or with -1 on the left."""
        if self.columns is not None:
            self.show_column(self.columns, self.columns.active + step)

    def show_column(self, columns: Columns, active: int) -> None:
        """Goes to a column or tab, there to the spot at the height of this one."""
        if not 0 <= active < len(columns.answers):
            return
        row = self.spot.rows[0] if self.spot is not None and not columns.tabbed else 0
        columns.show(active)
        columns.root.layout(columns.root.width)
        self.spot = min(_marked(columns.answers[active]), key=lambda spot: _distance(spot, row), default=None)

    def _first_with_spots(self, places: range) -> list[Spot]:
        return next((there for place in places if (there := spots(self._root.nodes[place]))), [])


def spots(entry: Node) -> list[Spot]:
    """What there is to stand on in an entry; of answers beside each other, in the one where the person is."""
    assert isinstance(entry, Entry)
    shown = (node.answers[node.active] if isinstance(node, Columns) else node for node in entry.nodes)
    return [spot for node in shown for spot in _marked(node)]


def column_of(block: Block) -> tuple[Columns, int] | None:
    """The columns that a block stands in, and in which of them."""
    node: Node = block
    while node.parent is not None:
        if isinstance(node.parent, Columns):
            return node.parent, node.place
        node = node.parent
    return None


def _marked(node: Node) -> Iterator[Spot]:
    return (Spot(block, number) for block in node.blocks() for number in range(len(block.marks)))


def _distance(spot: Spot, row: int) -> int:
    first, end = spot.rows
    return max(first - row, row - end + 1, 0)
