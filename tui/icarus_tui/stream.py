"""The text of an answer as it comes, cut into pieces of Markdown. What an addition costs does not depend on how long
the answer is: only the last block at the top level is parsed again, and an open code block not even that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from icarus_tui.inline import parser
from icarus_tui.lines import Line
from icarus_tui.looks import neutral
from icarus_tui.markdown import LONGEST_LINE, Code, code_lines, label_lines, plain, render

_PARAGRAPH = 24  # lines of a paragraph in one piece: how text is cut depends on nothing but the text
_BITE = 400  # lines that are parsed at a time, or more where these are one block
_LARGE = 4_000, 100  # characters, lines: a block of more is parsed again only where it has grown by a quarter

_FENCE = re.compile(r"(?P<indent> {0,3})(?P<fence>`{3,}|~{3,})(?P<info>.*)")


class Edit(NamedTuple):
    """What has become of a piece of an answer.

    Attributes:
        piece: which. source: its Markdown. settled: whether no more comes to it. first: its lines before this one
            stand. lines: those from there on. codes: the code blocks among all its lines.
    """

    piece: int
    source: str
    settled: bool
    first: int
    lines: list[Line]
    codes: list[Code]


class _Unit(NamedTuple):
    """A block at the top level, or an item of a list there. start, end: its lines, without blank ones at its end."""

    kind: str
    start: int
    end: int


class _Opening(NamedTuple):
    """The first line of a code block. closing: what its last line looks like."""

    indent: int
    info: str
    closing: re.Pattern[str]


class _Fence(NamedTuple):
    """A code block that is open.

    Attributes:
        label: lines above its code. position: where in the text the line begins that is not whole yet. n_lines: lines
            of code before that.
    """

    opening: _Opening
    label: list[Line]
    position: int
    n_lines: int = 0


class _Large(NamedTuple):
    """A large block when it was parsed: the size of the text, how much of it was parsed, how many pieces that gave."""

    size: int
    parsed: int
    n_pieces: int


class Stream:
    """Cuts text into pieces.

    Attributes:
        count: the pieces that there are now. n_settled: of these, those to which no more comes. rest: the text that is
            in no settled piece.
    """

    def __init__(self) -> None:
        self.count = 0
        self.rest = ""
        self.n_settled = 0
        self._fence: _Fence | None = None
        self._large: _Large | None = None
        self._bite = _BITE

    def append(self, text: str) -> list[Edit]:
        """Takes more."""
        self.rest += text
        return list(self._edits(final=False))

    def finish(self) -> list[Edit]:
        """Nothing more comes."""
        return list(self._edits(final=True))

    def _edits(self, final: bool) -> Iterator[Edit]:
        before = None
        # Each round settles something, begins a code block or takes a larger bite, or it is the last.
        while before != (before := (len(self.rest), self._fence is None, self._bite)):
            self.count = self.n_settled
            if self._fence is not None:
                yield from self._go_on(self._fence, final)
            elif self.rest.strip():
                yield from self._parse(final)

    def _parse(self, final: bool) -> Iterator[Edit]:
        if self._large and not final and len(self.rest) < self._large.size * 1.25:
            yield from self._raw(self._large)
            return
        lines = self.rest.split("\n")
        n_whole = len(lines) if final else len(lines) - 1
        head = lines[: self._bite]
        long = next((index for index, line in enumerate(head) if len(line) > LONGEST_LINE), None)
        if long is not None and not "".join(head[:long]).strip():
            yield from self._piece(0, long + 1, lines, settled=long < n_whole)
            return
        # Where a large block is parsed, what comes after it begins with a line.
        head = head[:long]
        head = head[:n_whole] if self._is_large(len(lines)) else head
        units = _units(neutral("\n".join(head)))
        everything = final and len(head) == len(lines)
        at = 0
        for end in _settled(units, head, min(n_whole, len(head)), long is not None, everything):
            yield from self._piece(at, end, lines, settled=True)
            at = end
        if at:
            return
        if units and units[0].kind == "fence" and units[0].start < n_whole and not everything:
            self._open(units[0], lines)
        elif len(head) < min(n_whole, len(lines)) and long is None:
            self._bite *= 2
        else:
            for unit in units:
                yield from self._piece(at, unit.end, lines, settled=False)
                at = unit.end
            if self._is_large(len(lines)):
                self._large = _Large(len(self.rest), sum(len(line) + 1 for line in head), self.count)
                yield from self._raw(self._large)

    def _is_large(self, n_lines: int) -> bool:
        return len(self.rest) > _LARGE[0] or n_lines > _LARGE[1]

    def _piece(self, start: int, end: int, lines: list[str], settled: bool) -> Iterator[Edit]:
        """The next piece: `lines` from `start` to `end`, of which those before `start` are settled or shown."""
        if settled:
            source = "\n".join(lines[start:end]) + "\n"
            self.rest = self.rest[len(source) :]
            source = source if end < len(lines) else source[:-1]
            self.n_settled += 1
            self._bite, self._large = _BITE, None
        else:
            source = "\n".join(lines[start:end])
        shown = render(source, first=self.count == 0, highlighted=False)
        yield Edit(self.count, source, settled, 0, shown.lines, shown.codes)
        self.count += 1

    def _raw(self, large: _Large) -> Iterator[Edit]:
        """What has come to a large block since it was parsed, as it is."""
        self.count = large.n_pieces
        if source := self.rest[large.parsed :]:
            yield Edit(self.count, source, False, 0, plain(neutral(source)), [])
            self.count += 1

    def _open(self, unit: _Unit, lines: list[str]) -> None:
        opening = _opening(lines[unit.start])
        n_blank = unit.start if self.n_settled else 0
        label = [*([Line("")] * n_blank), *label_lines(neutral(opening.info))]
        self._fence = _Fence(opening, label, sum(len(line) + 1 for line in lines[: unit.start + 1]))

    def _go_on(self, fence: _Fence, final: bool) -> Iterator[Edit]:
        """Goes on with an open code block, up to its end where that has come."""
        *whole, last = self.rest[fence.position :].split("\n")
        if final:
            whole, last = [*whole, last], ""
        ends = accumulate((len(line) + 1 for line in whole), initial=fence.position)
        next(ends)
        end = next((end for line, end in zip(whole, ends, strict=True) if fence.opening.closing.fullmatch(line)), None)
        if end is not None or final:
            source = self.rest[:end]
            self.rest, self._fence = self.rest[len(source) :], None
            self.n_settled += 1
            shown = render(source, first=self.count == 0, highlighted=False)
            yield Edit(self.count, source, True, 0, shown.lines, shown.codes)
        else:
            # What may become the end is not shown as code.
            code = whole if not last.strip(" `~") else [*whole, last]
            indented = re.compile(f" {{0,{fence.opening.indent}}}")
            lines = [line for text in code for line in code_lines(neutral(indented.sub("", text, count=1)))]
            n_blank = sum(not line.form.lead for line in fence.label)
            codes = [Code(n_blank, len(fence.label) + fence.n_lines + len(lines), 0)]
            n_before = len(fence.label) + fence.n_lines if fence.n_lines else 0
            yield Edit(self.count, self.rest, False, n_before, lines if n_before else [*fence.label, *lines], codes)
            self._fence = fence._replace(
                position=fence.position + sum(len(line) + 1 for line in whole), n_lines=fence.n_lines + len(whole)
            )
        self.count += 1


def _settled(units: list[_Unit], lines: list[str], n_whole: int, cut: bool, everything: bool) -> Iterator[int]:
    """The ends of those units that nothing can change any more, one after another.

    A line that is not whole decides nothing, and the first line of a block neither: a second one may make it a table's.

    Args:
        n_whole: of `lines`, those that are whole. cut: what follows comes to no unit but to a code block.
        everything: nothing follows.
    """
    for number, unit in enumerate(units):
        following = units[number + 1] if number + 1 < len(units) else None
        is_fence, is_prose = unit.kind == "fence", unit.kind in ("paragraph", "heading")
        before_table = following is not None and following.kind == "table"
        n_prose = min(unit.end, n_whole) - unit.start + before_table - (unit.kind == "heading")
        if is_prose and n_prose >= _PARAGRAPH + 2:
            yield unit.start + _PARAGRAPH
            return
        closed = is_fence and unit.end <= n_whole and _closes(lines[unit.start], lines[unit.start + 1 : unit.end])
        followed = following is not None and following.start + 2 <= n_whole
        if not (everything or closed or followed or (cut and not is_fence)):
            return
        yield unit.end


def _units(text: str) -> list[_Unit]:
    """The blocks of neutral text."""
    units = []
    lines = text.split("\n")
    for token in parser(inline=False).parse(text):
        is_list = token.type.endswith("list_open")
        if token.map is None or token.nesting < 0 or is_list or token.level > (token.type == "list_item_open"):
            continue
        start, end = token.map
        while token.type != "fence" and end > start + 1 and not lines[end - 1].strip():
            end -= 1
        units.append(_Unit(token.type.removesuffix("_open"), start, min(end, len(lines))))
    return units


def _opening(line: str) -> _Opening:
    match = _FENCE.match(line)
    assert match is not None
    fence = match["fence"]
    closing = re.compile(rf" {{0,3}}{re.escape(fence[0])}{{{len(fence)},}}[ \t]*")
    return _Opening(len(match["indent"]), match["info"], closing)


def _closes(first: str, more: list[str]) -> bool:
    return bool(more) and _opening(first).closing.fullmatch(more[-1]) is not None
