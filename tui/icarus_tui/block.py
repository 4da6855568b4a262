"""A piece of the transcript in one look: its source lines, and the rows that they wrap to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from textual.content import Content
from textual.strip import Strip

from icarus_tui.looks import literal

Look = Literal["text", "question", "quiet", "error", "break"]
Wrap = Callable[[Content, Look], list[Strip]]
"""Gives the rows of one source line, at the width there is."""


class Row(NamedTuple):
    """A row on the screen: the `part`-th one that the source line `line` of its block wraps to."""

    line: int
    part: int
    strip: Strip


class Block:
    """Only what changed is wrapped again, so that a stream costs its last line and not the whole answer.

    Attributes:
        look: how it is drawn. lines: the source lines, as they are copied. rows: as of the last `wrap`.
    """

    def __init__(self, content: Content, look: Look = "text") -> None:
        self.look = look
        self.lines: list[Content] = []
        self.rows: list[Row] = []
        self._settled = 0  # source lines whose rows stand
        self.replace(content)

    def replace(self, content: Content) -> None:
        """Takes `content` instead."""
        self.lines = list(content.split("\n", allow_blank=True)) or [Content("")]
        self._settled = 0

    def append(self, text: str) -> None:
        """Continues the last line with `text`."""
        first, *more = literal(text).plain.split("\n")
        self._settled = min(self._settled, len(self.lines) - 1)
        self.lines[-1] = Content(self.lines[-1].plain + first)
        self.lines += [Content(line) for line in more]

    def unsettle(self) -> None:
        """The width or the colours have changed."""
        self._settled = 0

    def wrap(self, wrap: Wrap) -> None:
        """Brings `rows` up to date."""
        if self._settled == len(self.lines):
            return
        while self.rows and self.rows[-1].line >= self._settled:
            self.rows.pop()
        for index in range(self._settled, len(self.lines)):
            strips = wrap(self.lines[index], self.look)
            self.rows += [Row(index, part, strip) for part, strip in enumerate(strips)]
        self._settled = len(self.lines)
