"""What the transcript is made of: blocks of source lines, one below the other. Each keeps how high it is, and only what
has changed is wrapped again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, takewhile
from typing import Literal, NamedTuple

from icarus_local.chat.code import CodeBlock
from icarus_tui.lines import Form, Line, Look
from icarus_tui.looks import neutral

Kind = Literal["question", "answer", "code", "thought"]


class Mark(NamedTuple):
    """Lines that a person can stand on.

    Attributes:
        kind: what they are. first, end: the lines of their block. text: the source. agent: whose it is, "" where it is
            the person's. code: the block where it is one.
    """

    kind: Kind
    first: int
    end: int
    text: Callable[[], str]
    agent: str = ""
    code: Callable[[], CodeBlock] | None = None


class Cell(NamedTuple):
    """What one block shows in a row of the screen: the `part`-th row that its line at `index` wraps to.

    Attributes:
        number: the line's, counted from the first of the whole. x, width: its place and the cells it has.
    """

    block: Block
    line: int
    part: int
    number: int
    x: int
    width: int


class Node:
    """Something that takes rows.

    Attributes:
        height: rows, and count: source lines, as of the last `layout`. stale: whether that no longer holds.
        parent, place: what it stands in, and where there. dim: whether it is drawn as what counts no longer.
    """

    def __init__(self) -> None:
        self.height = self.count = self.width = 0
        self.stale, self.dim = True, False
        self.parent: Node | None = None
        self.place = 0

    def touch(self) -> None:
        """It has changed."""
        self.stale = True
        if self.parent is not None:
            self.parent.child_changed(self.place)

    def child_changed(self, place: int) -> None:
        """The node at `place` in it has changed."""
        self.touch()

    def layout(self, width: int) -> None:
        """Brings `height` and `count` up to date at `width` cells."""
        raise NotImplementedError

    def cells(self, row: int, number: int = 0, x: int = 0) -> list[Cell]:
        """What stands in a row, from left to right; `number` and `x` are those of its own first line and cell."""
        raise NotImplementedError

    def blocks(self) -> Iterator[Block]:
        """The blocks that are shown, in the order in which their lines are counted."""
        raise NotImplementedError

    def row_of(self, place: int) -> int:
        """The row at which the node at `place` in it begins."""
        return 0

    def line_of(self, place: int) -> int:
        """The number of the first line of the node at `place` in it."""
        return 0

    @property
    def top(self) -> int:
        """Its first row, counted from the first of the whole."""
        return 0 if self.parent is None else self.parent.top + self.parent.row_of(self.place)

    @property
    def number(self) -> int:
        """The number of its first line, counted from the first of the whole."""
        return 0 if self.parent is None else self.parent.number + self.parent.line_of(self.place)

    @property
    def dimmed(self) -> bool:
        """Whether it or what it stands in is dim."""
        return self.dim or (self.parent is not None and self.parent.dimmed)

    @property
    def root(self) -> Node:
        """What all stands in."""
        return self if self.parent is None else self.parent.root


class Block(Node):
    """Lines that belong together.

    Attributes:
        lines: as they are copied. marks: what of it a person can stand on.
    """

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        super().__init__()
        self.lines: list[Line] = list(lines)
        self.marks: tuple[Mark, ...] = ()
        self._breaks: list[tuple[int, ...]] = []
        self._starts = [0]
        self._settled = 0  # lines whose breaks stand
        self._grown = -1  # a line behind them that went on: its breaks stand as far as they go

    def replace(self, lines: Sequence[Line], first: int = 0) -> None:
        """Takes `lines` instead of those from `first` on; only those that differ are wrapped again."""
        pairs = zip(self.lines[first:], lines, strict=False)
        same = [
            old if old.spans == new.spans else new
            for old, new in takewhile(lambda pair: pair[0].wraps_as(pair[1]), pairs)
        ]
        settled = first + len(same)
        if len(same) < len(lines) and settled < len(self.lines):
            old, new = self.lines[settled], lines[len(same)]
            grown = old.form == new.form and not old.least and not new.least and new.text.startswith(old.text)
        else:
            grown = False
        self.lines[first:] = [*same, *lines[len(same) :]]
        self._unsettle(settled, grown)

    def append(self, text: str) -> None:
        """Continues the last line with `text`, which is neutral."""
        last, form = len(self.lines) - 1, self.lines[-1].form
        begun, *more = text.split("\n")
        self.lines[-1] = Line(self.lines[-1].text + begun, form)
        self.lines += [Line(line, form) for line in more]
        self._unsettle(last, grown=True)

    def layout(self, width: int) -> None:
        """Wraps what has changed."""
        if width != self.width:
            self.width, self._settled, self._grown = width, 0, -1
        known = self._breaks[self._grown] if self._grown >= 0 else ()
        del self._breaks[self._settled :]
        for index in range(self._settled, len(self.lines)):
            self._breaks.append(self.lines[index].breaks(width, known if index == self._grown else ()))
        del self._starts[self._settled + 1 :]
        rows = (len(line) + 1 for line in self._breaks[self._settled :])
        self._starts += accumulate(rows, initial=self._starts.pop())
        self._settled, self._grown = len(self.lines), -1
        self.count, self.height, self.stale = len(self.lines), self._starts[-1], False

    def cells(self, row: int, number: int = 0, x: int = 0) -> list[Cell]:
        """One."""
        index = bisect_right(self._starts, row) - 1
        return [Cell(self, index, row - self._starts[index], number + index, x, self.width)]

    def blocks(self) -> Iterator[Block]:
        """Itself."""
        yield self

    def row_of_line(self, index: int) -> int:
        """The row at which a line begins."""
        return self._starts[min(index, len(self._starts) - 1)]

    def part(self, index: int, part: int) -> tuple[int, int]:
        """Where the `part`-th row of a line begins and ends in it."""
        ends = self._breaks[index]
        shown = self.lines[index].shown(self.width)
        return ends[part - 1] if part else 0, ends[part] if part < len(ends) else len(shown)

    def part_at(self, index: int, character: int) -> int:
        """The row of a line in which one of its characters stands."""
        return bisect_right(self._breaks[index], character)

    def colour(self) -> None:
        """Makes the styles of its lines where they were dropped."""

    def drop_colours(self) -> None:
        """Drops the styles of its lines where they can be made again."""

    def _unsettle(self, first: int, grown: bool) -> None:
        """The breaks from `first` on do not stand; where it has `grown`, that line's do as far as they go."""
        if first < self._settled or (first == self._grown and first == self._settled):
            self._grown = first if grown else -1
        self._settled = min(self._settled, first)
        self.touch()


class Stack(Node):
    """Nodes one below the other. What stands above the first that has changed is not looked at."""

    def __init__(self, nodes: Sequence[Node] = ()) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self._rows, self._lines = [0], [0]
        self._settled = 0  # nodes above the first that has changed
        self.splice(0, 0, nodes)

    def add(self, node: Node) -> None:
        """Puts a node below the others."""
        self.splice(len(self.nodes), 0, [node])

    def insert(self, place: int, node: Node) -> None:
        """Puts a node above the one at `place`."""
        self.splice(place, 0, [node])

    def remove(self, node: Node) -> None:
        """Takes a node out, where it is there."""
        if node.parent is self:
            self.splice(node.place, 1, [])

    def splice(self, place: int, removed: int, nodes: Sequence[Node]) -> None:
        """Puts nodes instead of `removed` others at `place`."""
        for node in self.nodes[place : place + removed]:
            node.parent = None
        self.nodes[place : place + removed] = nodes
        for index in range(place, len(self.nodes)):
            self.nodes[index].parent, self.nodes[index].place = self, index
        self.child_changed(place)

    def child_changed(self, place: int) -> None:
        """The node at `place` in it has changed."""
        self._settled = min(self._settled, place)
        self.touch()

    def changed(self, width: int) -> list[Node]:
        """The nodes that a layout would change: all of them at another width."""
        return self.nodes[:] if width != self.width else [node for node in self.nodes[self._settled :] if node.stale]

    def layout(self, width: int) -> None:
        """Lays out those that have changed."""
        if width != self.width:
            self.width, self._settled = width, 0
        del self._rows[self._settled + 1 :], self._lines[self._settled + 1 :]
        rows, lines = self._rows[-1], self._lines[-1]
        for node in self.nodes[self._settled :]:
            if node.stale or node.width != width:
                node.layout(width)
            rows += node.height
            lines += node.count
            self._rows.append(rows)
            self._lines.append(lines)
        self._settled = len(self.nodes)
        self.height, self.count, self.stale = rows, lines, False

    def cells(self, row: int, number: int = 0, x: int = 0) -> list[Cell]:
        """Those of the node that stands in `row`."""
        place = bisect_right(self._rows, row) - 1
        return self.nodes[place].cells(row - self._rows[place], number + self._lines[place], x)

    def blocks(self) -> Iterator[Block]:
        """Those of its nodes."""
        for node in self.nodes:
            yield from node.blocks()

    def row_of(self, place: int) -> int:
        """The row at which the node at `place` begins."""
        return self._rows[place]

    def line_of(self, place: int) -> int:
        """The number of the first line of the node at `place`."""
        return self._lines[place]

    def place_at(self, row: int) -> int:
        """The place of the node that stands in `row`."""
        return bisect_right(self._rows, row) - 1


def text_block(text: str, look: Look = "text") -> Block:
    """A block of `text` as it is, in one look."""
    return Block([Line(line, Form(look)) for line in neutral(text).split("\n")])


def gap() -> Block:
    """An empty row."""
    return Block([Line("")])
