"""From the Markdown of one block of an answer to the lines that show it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from textual.content import Span
from textual.highlight import highlight

from icarus_local.chat.code import CodeBlock, code_blocks
from icarus_tui.inline import Text, inline_cell, inline_lines, padded, parser
from icarus_tui.lines import Form, Line, Look
from icarus_tui.looks import neutral

if TYPE_CHECKING:
    from markdown_it.token import Token

LONGEST_LINE = 5_000
"""Characters; a longer line is a piece of its own, without Markdown."""

_LONGEST_STYLED = 20_000  # characters of code; more stays plain, so that no answer holds the screen
_DEEPEST = 16  # of lists and quotes inside each other; what lies deeper is shown as it was written
_BLANK = re.compile(r"[\s>]*")
_PIPE = re.compile(r"(?<!\\)\|")
_PREFIX = re.compile(r"\A(?:\s|>|(?:[-+*]|\d{1,9}[.)])\s)*")  # of a row of a table in quotes and lists
_QUOTE, _CODE = "│ ", "▎ "
_HEADINGS = {"h1": "bold underline $text-primary", "h2": "bold underline $text-primary"}
_HEADING = "bold $text-primary"
_MARKER, _HEAD = "$text-primary", "bold"


class Code(NamedTuple):
    """A code block among lines. first, end: its lines, that of its language included. number: among those there."""

    first: int
    end: int
    number: int


class Shown(NamedTuple):
    """What a piece of Markdown comes to."""

    lines: list[Line]
    codes: list[Code]


def render(source: str, first: bool = False, highlighted: bool = True) -> Shown:
    """The lines of a piece of an answer, as `Stream` gives it. Blank lines before it stay, unless it is the `first`.

    Code is `highlighted` or not: that is what takes the time.
    """
    written = neutral(source)
    tokens = _tokens(written)
    if tokens is None:
        return Shown(plain(written.strip("\n") if first else written.rstrip("\n")), [])
    writer = _Writer(written.split("\n"), first, highlighted)
    writer.write(tokens)
    return Shown(writer.lines, writer.codes)


def code_at(source: str, number: int) -> CodeBlock:
    """What a code block of a piece holds, as the agent wrote it."""
    blocks, shown = code_blocks(source), code_blocks(neutral(source))
    # A carriage return ends lines for the one and not for the other.
    return blocks[number] if len(blocks) == len(shown) else shown[number]


def _tokens(written: str) -> list[Token] | None:
    """The tokens of a piece; None where it is one long line, or nested deeper than is shown."""
    if "\n" not in written.strip("\n") and len(written) > LONGEST_LINE:
        return None
    try:
        tokens = parser().parse(written)
    except RecursionError:
        return None
    return None if any(token.level >= _DEEPEST for token in tokens) else tokens


def plain(text: str) -> list[Line]:
    """Neutral text without Markdown."""
    return [Line(line) for line in text.split("\n")]


def code_lines(text: str, decoration: str = "") -> list[Line]:
    """Neutral code without colours, behind decoration."""
    form = _form("code", decoration + _CODE, decoration + _CODE)
    return [Line(line, form) for line in text.split("\n")]


def label_lines(info: str, decoration: str = "") -> list[Line]:
    """The line above code that says what stands behind its fence, where anything does."""
    form = _form("label", decoration + _CODE, decoration + _CODE)
    return [Line(info.strip(), form)] if info.strip() else []


@lru_cache(maxsize=256)
def _form(look: Look, lead: str, hang: str, marker: int = 0, fill: str = " ") -> Form:
    """A form that lines share: there are few, and many lines."""
    return Form(look, lead, hang, marker, fold=look == "code", fill=fill)


def _code_spans(code: str, info: str) -> list[tuple[Span, ...]]:
    """The colours of each line of code."""
    language = info.split(maxsplit=1)[0] if info.strip() else ""
    if not language or not code or len(code) > _LONGEST_STYLED:
        return []
    # A tab size of 0 leaves tabs alone; the offsets would be wrong else.
    coloured = highlight(code, language=language, tab_size=0)
    if coloured.plain != code:
        return []
    return [tuple(line.spans) for line in coloured.split("\n", allow_blank=True)]


@dataclass
class _Holder:
    """A quote, or an item of a list, around what is written. marker: "" for a quote."""

    marker: str
    fresh: bool = True
    began: int = 0

    @property
    def hang(self) -> str:
        return " " * cell_len(self.marker) if self.marker else _QUOTE


class _Writer:
    """Writes the lines of blocks; `_at` is the source line that it has reached."""

    def __init__(self, source: list[str], first: bool, highlighted: bool) -> None:
        self.lines: list[Line] = []
        self.codes: list[Code] = []
        self._source, self._first, self._highlighted = source, first, highlighted
        self._holders: list[_Holder] = []
        self._at = 0

    def write(self, tokens: Sequence[Token]) -> None:
        rest = iter(tokens)
        style = ""
        for token in rest:
            match token.type:
                case "blockquote_open":
                    self._holders.append(_Holder("", began=len(self.lines)))
                case "list_item_open":
                    marker = f"{token.info}{token.markup} " if token.info else "• "
                    self._holders.append(_Holder(marker, began=len(self.lines)))
                case "blockquote_close" | "list_item_close":
                    if self._holders[-1].began == len(self.lines):
                        self._put("")
                    self._holders.pop()
                case "heading_open":
                    style = _HEADINGS.get(token.tag, _HEADING)
                case "heading_close":
                    style = ""
                case "inline":
                    self._text(token, style)
                case "hr":
                    self._space(token)
                    self._put("───", fill="─")
                case "fence" | "code_block":
                    self._space(token)
                    self._code(token)
                case "table_open":
                    self._space(token)
                    self._table(token, rest)

    def _text(self, token: Token, style: str) -> None:
        self._space(token)
        lines = inline_lines(token.children or [], style)
        first, end = token.map or [0, 0]
        # A paragraph's lines keep their indentation, as verses and figures want it.
        written = self._source[first:end] if not self._holders and end - first == len(lines) else [""] * len(lines)
        for source, (text, spans) in zip(written, lines, strict=True):
            self._put(source[: len(source) - len(source.lstrip(" \t"))] + text, spans)

    def _code(self, token: Token) -> None:
        first, code = len(self.lines), token.content.removesuffix("\n")
        lead, marker, hang = self._decoration()
        label = label_lines(token.info, hang)
        lines = [*label, *code_lines(code, hang)]
        lines[0].form = lines[0].form._replace(lead=lead + marker + _CODE)
        if self._highlighted:
            for line, spans in zip(lines[len(label) :], _code_spans(code, token.info), strict=False):
                line.spans = spans
        self.lines += lines
        if token.type == "fence":
            self.codes.append(Code(first, len(self.lines), len(self.codes)))

    def _table(self, table: Token, tokens: Iterator[Token]) -> None:
        first = (table.map or [0, 0])[0]
        rows: list[list[Text]] = []
        aligns: list[str] = []
        numbers: list[int] = []
        for token in tokens:
            if token.type == "table_close":
                break
            if token.type == "tr_open":
                rows.append([])
                numbers.append((token.map or [first])[0])
            elif token.type == "th_open":
                aligns.append(str(token.attrGet("style") or "").removeprefix("text-align:"))
            elif token.type == "inline":
                rows[-1].append(inline_cell(token.children or [], _HEAD if len(rows) == 1 else ""))
        sources = [_PREFIX.sub("", self._source[number]) for number in (first, first + 1, *numbers[1:])]
        widths = [max(cell_len(row[column][0]) for row in rows) for column in range(len(aligns))]
        lines = [_row(row, widths, aligns) for row in rows]
        lines.insert(1, ("─┼─".join("─" * width for width in widths), ()))
        least = max(cell_len(text) for text, _ in lines)
        # Of a row with more cells than columns the parser drops some.
        whole = all(_n_cells(source) <= len(aligns) for source in sources)
        for (text, spans), source in zip(lines, sources, strict=True):
            if whole:
                self._put(text, spans, least=least, narrow=source)
            else:
                self._put(source)

    def _space(self, token: Token) -> None:
        """Writes the blank lines before a block."""
        first, end = token.map or [self._at, self._at]
        start = first
        while start > self._at and _BLANK.fullmatch(self._source[start - 1]):
            start -= 1
        if self.lines or not self._first:
            for line in self._source[start:first]:
                bars = _QUOTE * line.count(">")
                self.lines.append(Line("", _form("text", bars, bars)))
        self._at = max(self._at, end)

    def _put(
        self,
        text: str,
        spans: tuple[Span, ...] = (),
        *,
        fill: str = " ",
        least: int = 0,
        narrow: str = "",
    ) -> None:
        lead, marker, hang = self._decoration()
        moved = len(marker)
        if moved:
            spans = (
                Span(0, moved, _MARKER),
                *(Span(span.start + moved, span.end + moved, span.style) for span in spans),
            )
        form = _form("text", lead, hang, moved, fill)
        self.lines.append(Line(marker + text, form, spans, least, marker + narrow))

    def _decoration(self) -> tuple[str, str, str]:
        """What stands before the text of the next line: decoration, the markers of items that begin with it, and the
        decoration of the rows behind.
        """
        lead = marker = ""
        for holder in self._holders:
            piece = holder.marker if holder.marker and holder.fresh else holder.hang
            if marker or (holder.marker and holder.fresh):
                marker += piece
            else:
                lead += piece
            holder.fresh = False
        return lead, marker, "".join(holder.hang for holder in self._holders)


def _row(row: list[Text], widths: list[int], aligns: list[str]) -> Text:
    text, spans = "", []
    for column, (cell, width, align) in enumerate(zip(row, widths, aligns, strict=True)):
        text += " │ " if column else ""
        shown, styles = padded(cell, width, align)
        spans += [Span(span.start + len(text), span.end + len(text), span.style) for span in styles]
        text += shown
    return text, tuple(spans)


def _n_cells(row: str) -> int:
    cells = _PIPE.split(row.strip())
    return len(cells) - (not cells[0]) - (len(cells) > 1 and not cells[-1])
