"""Source lines as they are shown, and where they wrap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from rich.cells import cell_len, split_graphemes
from textual.content import Span

Look = Literal["text", "question", "quiet", "error", "break", "code", "label"]
TAB = 4
"""Cells between the stops of a tab, counted from where its row begins."""

_NARROWEST = 8  # cells that decoration leaves the text; where it cannot, it goes


class Form(NamedTuple):
    """How a line stands.

    Attributes:
        look: how it is drawn. lead, hang: decoration before its first row and before those that it wraps to; it is not
            part of what is copied. marker: how many characters at its beginning stand before its rows, beside `lead`.
        fold: it breaks where the row is full, as code does, and not between words. fill: the character that the rest
        of its row is filled with.
    """

    look: Look = "text"
    lead: str = ""
    hang: str = ""
    marker: int = 0
    fold: bool = False
    fill: str = " "

    def room(self, width: int) -> int:
        """The cells for text in a row of `width`."""
        return max(1, width - self.margin(width))

    def margin(self, width: int) -> int:
        """The cells before the text: 0 where decoration would not leave it its room."""
        decoration = len(self.hang)
        return decoration if width - decoration >= _NARROWEST else 0


PLAIN = Form()


class Line:
    """A source line.

    Attributes:
        text: its characters. form: how it stands. spans: its styles, None where they were dropped. least: cells that
            `text` needs; with fewer `narrow` stands there instead.
    """

    __slots__ = ("form", "least", "narrow", "spans", "text")

    def __init__(
        self, text: str, form: Form = PLAIN, spans: tuple[Span, ...] = (), least: int = 0, narrow: str = ""
    ) -> None:
        self.text, self.form = text, form
        self.spans: tuple[Span, ...] | None = spans
        self.least, self.narrow = least, narrow

    def shown(self, width: int) -> str:
        """Its characters in a row of `width`."""
        return self.text if self.least <= self.form.room(width) else self.narrow

    def breaks(self, width: int, known: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Where it breaks in rows of `width`, as the function `breaks`."""
        form, text = self.form, self.shown(width)
        marker = form.marker if form.margin(width) else 0
        if not marker:
            return breaks(text, form.room(width), form.fold, known)
        found = breaks(text[marker:], form.room(width), form.fold, tuple(index - marker for index in known))
        return tuple(index + marker for index in found)

    def wraps_as(self, other: Line) -> bool:
        """Whether both break at the same places at every width."""
        return (self.text, self.form, self.least, self.narrow) == (other.text, other.form, other.least, other.narrow)


def breaks(text: str, width: int, fold: bool = False, known: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Where `text` breaks into rows of `width` cells: the indices at which its second, third … row begin.

    Spaces at a break stay at the end of the row. `known` are the breaks of what `text` continues: text that grows keeps
    its breaks.
    """
    if text.isascii() and "\t" not in text:
        if len(text) <= width:
            return ()
        return _ascii_breaks(text, width, fold, list(known))
    return _cell_breaks(text, width, fold, list(known))


def _ascii_breaks(text: str, width: int, fold: bool, found: list[int]) -> tuple[int, ...]:
    start, end = found[-1] if found else 0, len(text if fold else text.rstrip(" "))
    while end - start > width:
        full = start + width
        if not fold and text[full] == " ":
            start = full
            while text[start] == " ":
                start += 1
        else:
            space = -1 if fold else text.rfind(" ", start, full)
            start = space + 1 if space >= 0 and text[start:space].strip(" ") else full
        found.append(start)
    return tuple(found)


def _cell_breaks(text: str, width: int, fold: bool, found: list[int]) -> tuple[int, ...]:
    start = found[-1] if found else 0
    chance = used = since = 0  # where it may break, the cells of the row, and those behind `chance`
    word = False
    for begin, end, cells in graphemes(text, start):
        tab, space = text[begin] == "\t", not fold and text[begin:end] in (" ", "\t")
        n_cells = TAB - used % TAB if tab else cells
        if n_cells and used + n_cells > width and begin > start and not space:
            start, used = (chance, since) if chance > start and cells < 2 else (begin, 0)
            found.append(start)
            since, word, n_cells = used, used > 0, TAB if tab else cells
        used += n_cells
        since += n_cells
        word = word or not space
        if not fold and ((space and word) or cells > 1):
            chance, since = end, 0
    return tuple(found)


def graphemes(text: str, start: int = 0) -> Iterator[tuple[int, int, int]]:
    """What is drawn as one from `start` on: its first index, the one behind it, and its cells (0 for a tab)."""
    for number, piece in enumerate(text[start:].split("\t")):
        if number:
            yield start, start + 1, 0
            start += 1
        for begin, end, cells in split_graphemes(piece)[0]:
            # What follows a joiner that joins nothing has its own width after all.
            yield start + begin, start + end, cell_len(piece[begin:end]) if end - begin > 1 else cells
        start += len(piece)
