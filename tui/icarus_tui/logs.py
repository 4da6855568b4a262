"""Log lines while the screen is up: none reaches the terminal, the last ones are kept, and a pane shows them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Footer, RichLog, Static

from icarus_tui.clipboard import copy
from icarus_tui.looks import literal

_KEPT = 2_000  # lines; wrapping as many takes a third of a second
_ROWS = 10_000  # on the screen
_LONGEST = 10_000  # characters of one
_FOLLOW_S = 0.25
_SETTLE_S = 0.1
_HINT_S = 3.0
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_OURS = "icarus_local"


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log record, put together.

    Attributes:
        number: counts from 1, over all that came. level: as of `logging`. name: of its logger.
        text: the message, with the trace where there is one. created: seconds since 1970.
    """

    number: int
    level: int
    name: str
    text: str
    created: float

    def __str__(self) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(self.created))
        return f"{clock} {logging.getLevelName(self.level)} {self.name}: {self.text}"


class LogBuffer(logging.Handler):
    """Keeps the last log lines, of any thread."""

    def __init__(self, kept: int = _KEPT) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=kept)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a record; one that cannot be put together is kept as what went wrong."""
        try:
            text = self.format(record)
        except Exception as error:  # whoever logs must not fail of it
            text = f"{record.msg!r} with {record.args!r}: {error}"
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]}… ({len(text)} characters)"
        self._count += 1
        self._lines.append(LogLine(self._count, record.levelno, record.name, text, record.created))

    def lines(self, after: int = 0) -> list[LogLine]:
        """The lines that are kept, those that came after number `after`."""
        self.acquire()
        try:
            n_new = min(max(self._count - after, 0), len(self._lines))
            return list(islice(self._lines, len(self._lines) - n_new, None))
        finally:
            self.release()


@contextmanager
def held_logs() -> Iterator[LogBuffer]:
    """Keeps log lines from the terminal, where Textual draws, and gives them: all of the program's own, its engine's
    process included, and warnings of others. What would have been written is written afterwards, as far as it is kept.
    """
    root, ours = logging.getLogger(), logging.getLogger(_OURS)
    root_level, our_level = root.level, ours.level
    shown = ours.getEffectiveLevel()
    buffer = LogBuffer()
    # A FileHandler is a StreamHandler too, and does no harm.
    held = [handler for handler in root.handlers if type(handler) is logging.StreamHandler]
    for handler in held:
        root.removeHandler(handler)
    others = [(handler, handler.level) for handler in root.handlers]
    for other, level in others:
        other.setLevel(max(level, shown))
    root.addHandler(buffer)
    root.setLevel(min(root_level, logging.WARNING))
    ours.setLevel(logging.DEBUG)
    try:
        yield buffer
    finally:
        root.setLevel(root_level)
        ours.setLevel(our_level)
        root.removeHandler(buffer)
        for other, level in others:
            other.setLevel(level)
        for handler in held:
            root.addHandler(handler)
            for line in buffer.lines():
                if line.level >= max(shown, handler.level):
                    handler.handle(logging.makeLogRecord(_as_record(line)))


def _as_record(line: LogLine) -> dict[str, object]:
    return {
        "name": line.name,
        "levelno": line.level,
        "levelname": logging.getLevelName(line.level),
        "msg": line.text,
        "created": line.created,
    }


class LogsScreen(ModalScreen[None]):
    """Shows the log lines, and those that come; it follows them while its end is in sight."""

    DEFAULT_CSS = """
    LogsScreen { background: $background; layout: vertical; }
    LogsScreen > Static { height: 1; padding: 0 1; background: $panel; text-wrap: nowrap; text-overflow: ellipsis; }
    LogsScreen > RichLog { height: 1fr; padding: 0 1; scrollbar-gutter: stable; background: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "Back", id="logs-back"),
        Binding("l", "level", "Level", id="logs-level"),
        Binding("c", "copy", "Copy all", id="logs-copy"),
    ]

    def __init__(self, buffer: LogBuffer) -> None:
        super().__init__()
        self._buffer, self._level = buffer, _LEVELS[0]
        self._shown, self._hint, self._said = 0, "", ""
        self._settle: Timer | None = None
        self._title = Static(markup=False)
        self._log = RichLog(wrap=True, max_lines=_ROWS, auto_scroll=False)

    def compose(self) -> ComposeResult:
        """Lays the screen out."""
        yield self._title
        yield self._log
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begins to follow."""
        self._log.focus()
        self.set_interval(_FOLLOW_S, self._follow)

    def on_resize(self) -> None:
        """Wraps all lines anew, once the size stays what it is."""
        if self._settle is not None:
            self._settle.stop()
        self._settle = self.set_timer(_SETTLE_S, self._anew)

    def _anew(self) -> None:
        self._shown = 0
        self._log.clear()
        self._follow(at_end=True)

    def _follow(self, at_end: bool = False) -> None:
        width = self._log.scrollable_content_region.width
        if width and (lines := self._buffer.lines(self._shown)):
            at_end = at_end or self._log.is_vertical_scroll_end
            for line in lines:
                if line.level >= self._level:
                    self._log.write(_drawn(line), width)
            self._shown = lines[-1].number
        if at_end:
            self._log.scroll_end(animate=False, immediate=True)
        self._show_title()

    def _show_title(self) -> None:
        level = logging.getLevelName(self._level).lower()
        following = "" if self._log.is_vertical_scroll_end else ", End follows"
        title = self._hint or f"Log: {level} and above, {len(self._lines())} lines{following}"
        if title != self._said:
            self._said = title
            self._title.update(literal(title))

    def _lines(self) -> list[LogLine]:
        return [line for line in self._buffer.lines() if line.level >= self._level]

    def action_level(self) -> None:
        """Shows the next level and those above."""
        self._level = _LEVELS[(_LEVELS.index(self._level) + 1) % len(_LEVELS)]
        self._anew()

    async def action_copy(self) -> None:
        """Copies all lines that are shown."""
        self._hint = await copy(self.app, "\n".join(map(str, self._lines())))
        self._show_title()
        self.set_timer(_HINT_S, self._end_hint)

    def _end_hint(self) -> None:
        self._hint = ""
        self._show_title()

    def action_leave(self) -> None:
        """Goes back."""
        self.dismiss()


def _drawn(line: LogLine) -> Text:
    style = "bold" if line.level >= logging.WARNING else "dim" if line.level < logging.INFO else ""
    return Text(literal(str(line)).plain, style, overflow="fold")
