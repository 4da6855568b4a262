"""Text of models, people and errors as Textual may draw it: never markup, never a terminal's commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from textual.content import Content, Span
from textual.highlight import highlight

from icarus_local.chat.figures import printable

# Readable on Textual's own dark background; more agents than colours take them in turn.
_COLOURS = ("#7fb8ff", "#ffb86c", "#8fe388", "#e59cf0", "#f2d76b", "#6fd8d8", "#ff9a9a", "#c3b1ff")

_LONGEST_STYLED = 20_000  # characters; more stays plain, so that no answer holds the screen
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)[^`\n]*")
_HEADING = re.compile(r" {0,3}#{1,6} .*")
_INLINE = re.compile(r"(?P<code>`[^`\n]+`)|(?P<strong>\*\*[^*\n]+\*\*)")


def colour(index: int) -> str:
    """The colour of the agent who stands at `index` among the agents."""
    return _COLOURS[index % len(_COLOURS)]


def literal(text: str, style: str = "") -> Content:
    """`text` character by character; what could steer the terminal or cannot be encoded shows as a replacement."""
    shown = _LONE_SURROGATE.sub("\ufffd", printable(text))
    return Content(shown, [Span(0, len(shown), style)] if style and shown else None)


def answer(text: str) -> Content:
    """A finished answer: headings, bold, code and fenced code are coloured, and every character stays where it was,
    so that what is copied is what the agent wrote.
    """
    plain = literal(text)
    if len(plain.plain) > _LONGEST_STYLED:
        return plain
    return Content(plain.plain, list(_spans(plain.plain)))


def _spans(text: str) -> Iterator[Span]:
    start, fence, language, code_start = 0, "", "", 0
    for line in text.split("\n"):
        end = start + len(line)
        match = _FENCE.fullmatch(line)
        if fence:
            closing = line.strip()
            if closing.startswith(fence) and not closing.strip(fence[0]):
                yield from _code_spans(text, code_start, start - 1, language)
                yield Span(start, end, "dim")
                fence = ""
        elif match:
            fence, language, code_start = match["fence"], match["language"], end + 1
            yield Span(start, end, "dim")
        elif _HEADING.fullmatch(line):
            yield Span(start, end, "bold")
        else:
            for inline in _INLINE.finditer(line):
                style = "$text-accent" if inline["code"] else "bold"
                yield Span(start + inline.start(), start + inline.end(), style)
        start = end + 1
    if fence:
        yield from _code_spans(text, code_start, len(text), language)


def _code_spans(text: str, start: int, end: int, language: str) -> Iterator[Span]:
    code = text[start:end]
    if not language or not code:
        return
    # A tab size of 0 leaves tabs alone; the offsets would be wrong else.
    coloured = highlight(code, language=language, tab_size=0)
    if coloured.plain == code:
        for span in coloured.spans:
            yield Span(start + span.start, start + span.end, span.style)
