"""Answers that are given at once: side by side where there is room, else one of them under a line of tabs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from textual.content import Span

from icarus_tui.answer import Answer
from icarus_tui.block import Block, Cell, Node
from icarus_tui.lines import Line
from icarus_tui.looks import colour, neutral

_WIDE = 98  # cells for text in a terminal of 100 columns, less the margin and the scroll bar
_NARROWEST = 30
_LINES = 10**6  # numbers of lines that a column has to itself
_BETWEEN = 2  # the line between two columns, and the margin of the second


class Columns(Node):
    """Answers beside each other.

    Attributes:
        answers: from left to right. active: the one that the person is at, and of tabs the one that is shown.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Answer] = []
        self.active = 0
        self._colours: list[int] = []
        self._tabs = Block()
        self._tabs.parent = self
        self._rule = Block([Line("│")])
        self._rule.layout(1)
        self._side_by_side = True
        self._shown: list[Answer] = []
        self._places: list[int] = []

    def add(self, answer: Answer, index: int) -> None:
        """Adds an answer on the right; `index` is its agent's colour."""
        answer.parent, answer.place = self, len(self.answers)
        self.answers.append(answer)
        self._colours.append(index)
        self._show_tabs()

    def show(self, active: int) -> None:
        """Goes to another answer."""
        if active != self.active:
            self.active = active
            self._show_tabs()

    @property
    def tabbed(self) -> bool:
        """Whether only one is shown, as of the last layout."""
        return not self._side_by_side

    def tab_at(self, character: int) -> int | None:
        """The answer whose tab stands at a character of the line of tabs."""
        for index, span in enumerate(self._tabs.lines[0].spans or ()):
            if span.start <= character < span.end:
                return index
        return None

    def layout(self, width: int) -> None:
        """Lays out those that are shown."""
        self.width = width
        n = len(self.answers)
        room = width - _BETWEEN * (n - 1)
        self._side_by_side = n < 2 or (width >= _WIDE and room // n >= _NARROWEST)
        if self._side_by_side:
            self._shown = self.answers
            widths = [room // n + (index < room % n) for index in range(n)]
            self._places = list(accumulate((each + _BETWEEN for each in widths), initial=0))[:n]
        else:
            self._shown, widths, self._places = [self.answers[self.active]], [width], [0]
        top = 0
        if self.tabbed:
            self._layout(self._tabs, width)
            top = self._tabs.height
        for answer, each in zip(self._shown, widths, strict=True):
            self._layout(answer, each)
        self.height = top + max((answer.height for answer in self._shown), default=0)
        self.count, self.stale = self.line_of(n), False

    def cells(self, row: int, number: int = 0, x: int = 0) -> list[Cell]:
        """Those of every column, and the lines between them."""
        top = self.row_of(0)
        if row < top:
            return self._tabs.cells(row, number, x)
        found: list[Cell] = []
        for answer, place in zip(self._shown, self._places, strict=True):
            first = self.line_of(answer.place)
            if found:
                found.append(Cell(self._rule, 0, 0, -1, x + place - _BETWEEN, 1))
            if row - top < answer.height:
                found += answer.cells(row - top, number + first, x + place)
            else:
                last = answer.cells(answer.height - 1, number + first, x + place)[0]
                found.append(last._replace(part=-1))
        return found

    def blocks(self) -> Iterator[Block]:
        """Those that are shown."""
        if self.tabbed:
            yield self._tabs
        for answer in self._shown:
            yield from answer.blocks()

    def row_of(self, place: int) -> int:
        """The row at which every answer begins."""
        return self._tabs.height if self.tabbed else 0

    def line_of(self, place: int) -> int:
        """The number of an answer's first line, which stays when others grow; the line of tabs has the first."""
        return 1 + place * _LINES

    def _layout(self, node: Node, width: int) -> None:
        if node.stale or node.width != width:
            node.layout(width)

    def _show_tabs(self) -> None:
        text, spans = "", []
        for index, answer in enumerate(self.answers):
            name = neutral(answer.agent)
            tab = f"[{name}]" if index == self.active else f" {name} "
            style = f"bold {colour(self._colours[index])}"
            spans.append(Span(len(text), len(text) + len(tab), style))
            text += f"{tab} "
        self._tabs.replace([Line(text.rstrip(" "), spans=tuple(spans))])
        self.touch()
