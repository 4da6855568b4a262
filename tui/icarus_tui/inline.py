"""Markdown inside a line: bold, italic, code, links. What is no syntax is shown as it was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from textual.content import Span

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_STYLES = {"strong": "bold", "em": "italic", "s": "strike", "link": "underline"}
_CODE, _ADDRESS = "$text-accent", "dim"

Text = tuple[str, tuple[Span, ...]]
"""Characters and their styles."""


@cache
def parser(inline: bool = True) -> MarkdownIt:
    """CommonMark with tables, without what would let text vanish: references, entities, escapes and HTML. Where it is
    not `inline`, it gives only the blocks.
    """
    from markdown_it import MarkdownIt, helpers

    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    markdown.disable(["reference", "entity", "escape", "html_block", "html_inline"], ignoreInvalid=True)
    # Addresses are shown and never followed: as they were written, whatever they are.
    markdown.normalizeLink = lambda url: url  # type: ignore[method-assign]
    markdown.validateLink = lambda url: True  # type: ignore[method-assign]
    markdown.helpers = SimpleNamespace(  # type: ignore[assignment]
        parseLinkLabel=helpers.parseLinkLabel,
        parseLinkDestination=_as_written(helpers.parseLinkDestination, "<", ">"),
        parseLinkTitle=_as_written(helpers.parseLinkTitle, "\"'(", "\"')"),
    )
    return markdown if inline else markdown.disable(["inline", "text_join"], ignoreInvalid=True)


def _as_written(parse: Callable[..., Any], opening: str, closing: str) -> Callable[..., Any]:
    """`parse` with a result that holds the characters of the source."""

    def parsed(source: str, position: int, maximum: int, *more: Any) -> Any:
        result = parse(source, position, maximum, *more)
        if result.ok:
            written = source[position : result.pos]
            enclosed = written[:1] in opening and written[-1:] in closing
            result.str = written[1:-1] if enclosed else written
        return result

    return parsed


class _Writer:
    """Lines under way, with the styles that are open."""

    def __init__(self, style: str) -> None:
        self.lines: list[tuple[list[str], list[Span]]] = [([], [])]
        self._length = 0
        self._open = [style] if style else []

    def write(self, text: str, style: str = "") -> None:
        pieces, spans = self.lines[-1]
        pieces.append(text)
        styles = [*self._open, style] if style else self._open
        if text:
            spans += [Span(self._length, self._length + len(text), each) for each in styles]
        self._length += len(text)

    def end_line(self) -> None:
        self.lines.append(([], []))
        self._length = 0

    def open(self, style: str) -> None:
        self._open.append(style)

    def close(self, style: str) -> None:
        self._open.reverse()
        self._open.remove(style)
        self._open.reverse()


def inline_lines(tokens: Sequence[Token], style: str = "") -> list[Text]:
    """The lines of a paragraph, broken where the source breaks, all in `style`."""
    writer = _Writer(style)
    _write(tokens, writer)
    return [("".join(pieces), tuple(spans)) for pieces, spans in writer.lines]


def inline_cell(tokens: Sequence[Token], style: str = "") -> Text:
    """What stands in one cell of a table, in one line."""
    ((text, spans),) = inline_lines(tokens, style)
    return text.replace("\t", " "), spans


def padded(cell: Text, width: int, align: str) -> Text:
    """`cell` at `width`, its characters moved as `align` says: "left", "right" or "center"."""
    text, spans = cell
    space = width - cell_len(text)
    before = space if align == "right" else space // 2 if align == "center" else 0
    moved = tuple(Span(span.start + before, span.end + before, span.style) for span in spans)
    return " " * before + text + " " * (space - before), moved


def _write(tokens: Sequence[Token], writer: _Writer) -> None:
    links: list[tuple[Token, int]] = []
    for token in tokens:
        kind, _, edge = token.type.rpartition("_")
        if token.type in ("softbreak", "hardbreak"):
            writer.end_line()
        elif token.type == "code_inline":
            writer.write(f"{token.markup}{token.content}{token.markup}", _CODE)
        elif token.type == "image":
            _write(token.children or [], writer)
            _write_address(token, "src", writer)
        elif edge == "open" and kind in _STYLES:
            writer.open(_STYLES[kind])
            links += [(token, 0)] if kind == "link" else []
        elif edge == "close" and kind in _STYLES:
            writer.close(_STYLES[kind])
            if kind == "link":
                _write_address(links.pop()[0], "href", writer)
        else:
            writer.write(token.content)


def _write_address(token: Token, key: str, writer: _Writer) -> None:
    """Behind what a link or an image shows: where it leads, and its title."""
    title = token.attrGet("title")
    address = f"{token.attrGet(key) or ''}{f' {title}' if title else ''}"
    # What leads to what it shows is an address between angle brackets, and shown already.
    if address and token.markup != "autolink":
        writer.write(f" ({address})", _ADDRESS)
