"""Draws rows of the transcript, and keeps those that were drawn last."""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_
from typing import NamedTuple

from rich.segment import Segment
from textual.cache import LRUCache
from textual.content import Content, Span
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget

from icarus_tui.block import Block, Cell
from icarus_tui.lines import TAB, Line, Look

MARGIN = 1
"""Cells before the text, for the mark of where the person stands."""

_STRIPS = 600  # rows of four columns on a large screen, and a little
_ROWS = 200  # of several columns
_BLOCKS = 200  # that keep their styles
_BAR = "▌"

# A place beside the text belongs to it too, for selecting: as a character that no line has.
_BESIDE = 1 << 32
_WIDEST = 1 << 12


class _Drawn(NamedTuple):
    """A strip, and what it was drawn for. number, width: the cell's."""

    number: int
    width: int
    marks: tuple[Span, ...]
    bar: bool
    dim: bool
    strip: Strip


class Painter:
    """Draws cells in the styles of a widget, which has a component class for each look."""

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._strips: LRUCache[tuple[Line, int], _Drawn] = LRUCache(_STRIPS)
        self._rows: LRUCache[int, tuple[list[Strip], Strip]] = LRUCache(_ROWS)
        self._blocks: dict[Block, None] = {}  # with styles, those drawn last at its end
        self._styles: dict[str, Style] = {}
        self._looks: dict[Look, Style] = {}

    def clear(self) -> None:
        """The width or the colours are others."""
        self._strips.clear()
        self._rows.clear()
        self._styles.clear()
        self._looks.clear()

    def strip(self, cell: Cell, marks: tuple[Span, ...] = (), bar: bool = False) -> Strip:
        """A cell behind its margin.

        Args:
            marks: styles for characters of its line, above its own. bar: whether the person stands there.
        """
        key = cell.block.lines[cell.line], cell.part
        drawn = self._strips.get(key)
        wanted = cell.number, cell.width, marks, bar, cell.block.dimmed
        if drawn is None or drawn[:-1] != wanted:
            self._colour(cell.block)
            drawn = _Drawn(*wanted, Strip(self._segments(cell, marks, bar)))
            self._strips[key] = drawn
        return drawn.strip

    def join(self, row: int, strips: list[Strip]) -> Strip:
        """What stands side by side in a row."""
        if len(strips) == 1:
            return strips[0]
        before, joined = self._rows.get(row) or ((), None)
        if joined is None or len(before) != len(strips) or not all(map(is_, before, strips)):
            joined = Strip.join(strips)
            self._rows[row] = strips, joined
        return joined

    def look(self, look: Look) -> Style:
        """How a look is drawn."""
        if look not in self._looks:
            self._looks[look] = self._widget.get_visual_style(f"transcript--{look}")
        return self._looks[look]

    def _colour(self, block: Block) -> None:
        self._blocks.pop(block, None)
        self._blocks[block] = None
        block.colour()
        while len(self._blocks) > _BLOCKS:
            self._blocks.pop(oldest := next(iter(self._blocks)))
            oldest.drop_colours()

    def _segments(self, cell: Cell, marks: tuple[Span, ...], bar: bool) -> Iterator[Segment]:
        line, form = cell.block.lines[cell.line], cell.block.lines[cell.line].form
        base, plain = self.look(form.look), self.look("text")
        shown = line.shown(cell.width)
        begin, end = (len(shown), len(shown)) if cell.part < 0 else cell.block.part(cell.line, cell.part)
        if cell.number >= 0:
            bar_style = plain + self._widget.get_visual_style("transcript--bar", partial=True)
            yield _beside(_BAR if bar else " ", bar_style if bar else plain, begin, cell.number)
        if cell.part < 0:
            yield _beside(" " * cell.width, plain, begin, cell.number)
            return
        dim = Style(dim=True) if cell.block.dimmed else Style()
        n = 0
        if decoration := form.margin(cell.width) and (form.hang if cell.part else form.lead):
            yield _beside(decoration, base + Style(dim=True), begin, cell.number)
            n = len(decoration)
        spans = [*(line.spans or ()), *marks] if shown is line.text else [*marks]
        text = shown[begin:end] if form.fold else shown[begin:end].rstrip(" ")
        last = begin + len(text)
        seen = (span for span in spans if span.end > begin and span.start < last)
        moved = [Span(max(0, start - begin), min(end, last) - begin, style) for start, end, style in seen]
        x, room = begin, cell.width - n
        for piece, style in Content(text, moved, strip_control_codes=False).render(base, "", self._style):
            for run in _runs(piece):
                width = TAB - (cell.width - n - room) % TAB if run == "\t" else 0
                rich = (style + dim).rich_style_with_offset(x, cell.number)
                segments = [Segment(" ", rich)] * width if run == "\t" else [Segment(run, rich)]
                yield from segments
                room -= width or segments[0].cell_length
                x += len(run)
        if room > 0:
            yield _beside(form.fill * room, base.background_style if form.fill == " " else base + dim, end, cell.number)

    def _style(self, style: str | Style) -> Style:
        if isinstance(style, Style):
            return style
        if style not in self._styles:
            try:
                self._styles[style] = Style.parse(style)
            except Exception:  # a variable that the app does not have; Textual has no one class for it
                self._styles[style] = Style()
        return self._styles[style]


def _beside(text: str, style: Style, character: int, number: int) -> Segment:
    """Cells that are no text; for selecting they are at `character` of their line."""
    return Segment(text, style.rich_style_with_offset(_BESIDE + character * _WIDEST, number))


def character_at(x: int) -> int:
    """The character that a place of a selection means."""
    return (x - _BESIDE) // _WIDEST if x >= _BESIDE else x


def _runs(text: str) -> Iterator[str]:
    """Text cut at its tabs, which are runs of their own."""
    for number, run in enumerate(text.split("\t")):
        if number:
            yield "\t"
        if run:
            yield run
