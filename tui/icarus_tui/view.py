"""Entries as one scrolling widget. It draws the rows that are seen, so that neither a long conversation nor a long
answer slows the keys down.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from textual.content import Span
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.timer import Timer

from icarus_tui.block import Block, Cell, Node, Stack
from icarus_tui.exchange import Entry
from icarus_tui.paint import MARGIN, Painter, character_at

_RESIZE_S = 0.1  # wrapping waits until the terminal has kept its size for so long
_END = 10**9  # behind the last character of any line


class _Anchor(NamedTuple):
    """The line at the top of the view, and how many rows that it wraps to are above it."""

    block: Block
    line: int
    part: int


class EntriesView(ScrollView):
    """Entries one below the other. It stays at its end until it is scrolled back."""

    DEFAULT_CSS = """
    EntriesView {
        height: 1fr; overflow-x: hidden; overflow-y: scroll; scrollbar-size-vertical: 1;
        & > .transcript--question { background: $boost; }
        & > .transcript--quiet { color: $text-muted; }
        & > .transcript--error { color: $text-error; }
        & > .transcript--break { background: $accent-muted; color: $text-accent; text-style: bold; }
        & > .transcript--code { background: $panel; }
        & > .transcript--label { background: $panel; color: $text-muted; text-style: italic; }
        & > .transcript--bar { color: $text-accent; text-style: bold; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "transcript--text",
        "transcript--question",
        "transcript--quiet",
        "transcript--error",
        "transcript--break",
        "transcript--code",
        "transcript--label",
        "transcript--bar",
    }

    def __init__(self) -> None:
        super().__init__()
        self._entries = Stack()
        self._painter = Painter(self)
        self._changed: list[Node] = []  # since the last update
        self._width = 0
        self._following = True
        self._top: _Anchor | None = None
        self._resize_timer: Timer | None = None

    # -- what stands in it ---------------------------------------------------------------------------------------------

    @property
    def allow_select(self) -> bool:
        """Text can be selected with the mouse."""
        return True

    @property
    def text(self) -> str:
        """Everything that is shown, as it is copied."""
        return "\n".join(line.shown(block.width) for block in self._entries.blocks() for line in block.lines)

    @property
    def entries(self) -> list[Entry]:
        """From top to bottom."""
        return [entry for entry in self._entries.nodes if isinstance(entry, Entry)]

    def add(self, entry: Entry) -> None:
        """Adds at the end and goes there."""
        self._entries.add(entry)
        self._following = True
        self.update()

    def discard(self, entry: Entry) -> None:
        """Takes an entry out."""
        self._entries.remove(entry)
        self.update()

    def clear(self) -> None:
        """Takes all out."""
        self._entries.splice(0, len(self._entries.nodes), [])
        self._following = True
        self.update()

    def update(self) -> None:
        """Shows what has changed in the entries."""
        if not self._width:
            return
        self.lay_out()
        changed, self._changed = self._changed, []
        self.entries_changed([entry for entry in changed if entry.parent is self._entries])
        self.virtual_size = Size(self._width, self._entries.height)
        self._follow()
        self._remember()
        self.refresh()

    def lay_out(self) -> None:
        """Brings the rows up to date, where entries have changed since the last `update`."""
        if self._entries.stale or self._entries.width != self._text_width:
            self._changed += self._entries.changed(self._text_width)
            self._entries.layout(self._text_width)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        """Wraps anew at another width, at once the first time, and else when the terminal has come to rest."""
        if not self._width:
            self._wrap_anew()
        elif self._width != self.scrollable_content_region.width:
            if self._resize_timer is not None:
                self._resize_timer.stop()
            self._resize_timer = self.set_timer(_RESIZE_S, self._wrap_anew)
        else:
            self._follow()

    def notify_style_update(self) -> None:
        """Draws everything anew in other colours."""
        super().notify_style_update()
        self._painter.clear()
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scrolled back, it stays there; at the end, it follows what comes."""
        super().watch_scroll_y(old_value, new_value)
        self._following = new_value >= self.max_scroll_y
        self._remember()

    def render_line(self, y: int) -> Strip:
        """One row of the screen."""
        self.lay_out()
        width = self.scrollable_content_region.width
        row = self.scroll_offset.y + y
        background = self._painter.look("text").rich_style
        if not 0 <= row < self._entries.height:
            return Strip.blank(width, background)
        strips: list[Strip] = []
        selection = self.text_selection
        x = 0
        for cell in self._entries.cells(row):
            begin = cell.x + MARGIN * (cell.number < 0)
            if begin > x:
                strips.append(Strip.blank(begin - x, background))
            strip = self._painter.strip(cell, self._marks(cell, selection), self.is_current(cell))
            strips.append(strip)
            x = begin + strip.cell_length
        return self._painter.join(row, strips).adjust_cell_length(width, background)

    def _marks(self, cell: Cell, selection: Selection | None) -> tuple[Span, ...]:
        """What is drawn in another style of a line: what is marked, and what is selected."""
        marks = self.marked(cell)
        if (span := self._selected(selection, cell.number)) is not None:
            start, end = span[0], min(span[1], len(cell.block.lines[cell.line].shown(cell.width)))
            style = Style.from_styles(self.screen.get_component_styles("screen--selection"))
            marks += [Span(start, end, style)] if start < end else []
        return tuple(marks)

    def _wrap_anew(self) -> None:
        self._width = self.scrollable_content_region.width
        self._painter.clear()
        self.update()

    @property
    def _text_width(self) -> int:
        return max(1, self._width - MARGIN)

    def _remember(self) -> None:
        """Notes what stands at the top of the view, so that it can stay there when entries change."""
        row = self.scroll_offset.y
        if not self._entries.stale and 0 <= row < self._entries.height:
            cell = self._entries.cells(row)[0]
            self._top = _Anchor(cell.block, cell.line, cell.part)

    def _follow(self) -> None:
        """Goes to the end, or keeps what stands at the top of the view there."""
        if self.is_vertical_scrollbar_grabbed:
            return
        if self._following:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
        elif self._top is not None and self._top.block.root is self._entries:
            block, line = self._top.block, min(self._top.line, len(self._top.block.lines) - 1)
            rows = block.row_of_line(line + 1) - block.row_of_line(line)
            row = block.top + block.row_of_line(line) + min(self._top.part, rows - 1)
            self.scroll_to(y=row, animate=False, force=True)

    # -- what those who know more of the entries add -------------------------------------------------------------------

    def entries_changed(self, changed: list[Node]) -> None:
        """These have changed and are laid out anew."""

    def is_current(self, cell: Cell) -> bool:
        """Whether the person stands on a cell's line."""
        return False

    def marked(self, cell: Cell) -> list[Span]:
        """Styles for characters of a cell's line."""
        return []

    # -- selecting -----------------------------------------------------------------------------------------------------

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text as it was written, without the breaks of wrapping."""
        chosen = []
        for block in self._entries.blocks():
            for number, line in enumerate(block.lines, block.number):
                if (span := self._selected(selection, number)) is not None:
                    chosen.append(line.shown(block.width)[span[0] : span[1]])
        return "\n".join(chosen), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Draws the selection."""
        self.refresh()

    def _selected(self, selection: Selection | None, number: int) -> tuple[int, int] | None:
        """The characters of a line that are selected."""
        span = None if selection is None else selection.get_span(number)
        if span is None:
            return None
        start, end = character_at(span[0]), _END if span[1] < 0 else character_at(span[1])
        return min(start, end), max(start, end)
