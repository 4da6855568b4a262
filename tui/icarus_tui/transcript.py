"""The conversation as one scrolling widget. It draws the rows that are seen, so that neither a long conversation nor
a long answer slows the keys down.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import ClassVar, NamedTuple

from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.timer import Timer
from textual.visual import Visual

from icarus_tui.block import Block, Look, Row
from icarus_tui.exchange import Entry

_RESIZE_S = 0.1  # wrapping waits until the terminal has kept its size for so long


class _Place(NamedTuple):
    block: Block
    row: Row
    source: int  # the row's source line, counted from the transcript's first


class Transcript(ScrollView, can_focus=False):
    """All entries. It stays at its end until it is scrolled back; the keys stay with the input."""

    DEFAULT_CSS = """
    Transcript {
        height: 1fr; padding: 0 0 0 1; overflow-x: hidden; overflow-y: scroll; scrollbar-size-vertical: 1;
        & > .transcript--question { background: $boost; }
        & > .transcript--quiet { color: $text-muted; }
        & > .transcript--error { color: $text-error; }
        & > .transcript--break { background: $accent-muted; color: $text-accent; text-style: bold; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "transcript--text",
        "transcript--question",
        "transcript--quiet",
        "transcript--error",
        "transcript--break",
    }

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[Entry] = []
        self._blocks: list[Block] = []
        self._row_starts: list[int] = []
        self._line_starts: list[int] = []
        self._width = 0
        self._following = True
        self._resize_timer: Timer | None = None

    @property
    def allow_select(self) -> bool:
        """Text can be selected with the mouse."""
        return True

    @property
    def text(self) -> str:
        """Everything that is shown, as it was written."""
        return "\n".join(line.plain for block in self._blocks for line in block.lines)

    def add(self, entry: Entry) -> None:
        """Adds at the end and goes there."""
        self._entries.append(entry)
        self._following = True
        self.update()

    def discard(self, entry: Entry) -> None:
        """Takes an entry out."""
        self._entries.remove(entry)
        self.update()

    def update(self) -> None:
        """Shows what has changed in the entries."""
        self._blocks = [block for entry in self._entries for block in entry.blocks]
        if self._width:
            for block in self._blocks:
                block.wrap(self._wrap)
        self._row_starts = list(accumulate((len(block.rows) for block in self._blocks), initial=0))
        self._line_starts = list(accumulate((len(block.lines) for block in self._blocks), initial=0))
        self.virtual_size = Size(self._width, self._row_starts[-1])
        self._follow()
        self.refresh()

    def on_resize(self) -> None:
        """Wraps anew at another width, at once the first time, and else when the terminal has come to rest."""
        self._follow()
        if not self._width:
            self._wrap_anew()
        elif self._width != self.scrollable_content_region.width:
            if self._resize_timer is not None:
                self._resize_timer.stop()
            self._resize_timer = self.set_timer(_RESIZE_S, self._wrap_anew)

    def notify_style_update(self) -> None:
        """Draws everything anew in other colours."""
        super().notify_style_update()
        if self._width:
            self._wrap_anew()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scrolled back, it stays there; at the end, it follows what comes."""
        super().watch_scroll_y(old_value, new_value)
        self._following = new_value >= self.max_scroll_y

    def render_line(self, y: int) -> Strip:
        """One row of the screen."""
        width = self.scrollable_content_region.width
        place = self._place(self.scroll_offset.y + y)
        if place is None:
            return Strip.blank(width, self.rich_style)
        strip = self._selected(place) or place.row.strip
        background = self._style(place.block.look).background_style.rich_style
        column = _column(strip)
        return strip.apply_offsets(column, place.source).adjust_cell_length(width, background)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text as it was written, without the breaks of wrapping."""
        lines = [line.plain for block in self._blocks for line in block.lines]
        spans = ((line, selection.get_span(number)) for number, line in enumerate(lines))
        chosen = [line[span[0] : None if span[1] == -1 else span[1]] for line, span in spans if span is not None]
        return "\n".join(chosen), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Draws the selection."""
        self.refresh()

    def _place(self, number: int) -> _Place | None:
        if not self._row_starts or not 0 <= number < self._row_starts[-1]:
            return None
        index = bisect_right(self._row_starts, number) - 1
        block = self._blocks[index]
        row = block.rows[number - self._row_starts[index]]
        return _Place(block, row, self._line_starts[index] + row.line)

    def _selected(self, place: _Place) -> Strip | None:
        selection = self.text_selection
        span = None if selection is None else selection.get_span(place.source)
        if span is None:
            return None
        line = place.block.lines[place.row.line]
        style = Style.from_styles(self.screen.get_component_styles("screen--selection"))
        marked = line.stylize(style, span[0], len(line) if span[1] == -1 else span[1])
        rows = self._wrap(marked, place.block.look)
        return rows[place.row.part] if place.row.part < len(rows) else None

    def _wrap(self, line: Content, look: Look) -> list[Strip]:
        strips = Visual.to_strips(self, line, self._width, None, self._style(look), apply_selection=False)
        return strips or [Strip.blank(0)]

    def _wrap_anew(self) -> None:
        self._width = self.scrollable_content_region.width
        for block in self._blocks:
            block.unsettle()
        self.update()

    def _style(self, look: Look) -> Style:
        return self.get_visual_style(f"transcript--{look}")

    def _follow(self) -> None:
        if self._following and not self.is_vertical_scrollbar_grabbed:
            self.scroll_end(animate=False, immediate=True, x_axis=False)


def _column(strip: Strip) -> int:
    """Where in its source line a row begins, as Textual noted it for selecting."""
    for segment in strip:
        if segment.style is not None and "offset" in segment.style.meta:
            column: int = segment.style.meta["offset"][0]
            return column
    return 0
