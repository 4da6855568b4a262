"""Finds text in what the transcript shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from icarus_tui.block import Block, Node


class Match(NamedTuple):
    """Where the text stands: characters of a line of a block."""

    block: Block
    line: int
    start: int
    end: int


class Finder:
    """Looks for one text, and again only in what has changed.

    Attributes:
        current: the match that the person is at, or None. count: how many there are.
    """

    def __init__(self) -> None:
        self.current: Match | None = None
        self.count = 0
        self._text = ""
        self._found: dict[Node, list[Match]] = {}
        self._lines: dict[tuple[Block, int], list[Match]] = {}

    def find(self, text: str, entries: Iterable[Node]) -> int:
        """Looks for another text; "" for none."""
        self._text, self.current, self.count = text.casefold(), None, 0
        self._found.clear()
        self._lines.clear()
        self.update(entries)
        return self.count

    def update(self, entries: Iterable[Node]) -> None:
        """Looks again in entries that have changed."""
        if not self._text:
            return
        for entry in entries:
            self.forget(entry)
            found = list(_matches(entry, self._text))
            if not found:
                continue
            self._found[entry] = found
            self.count += len(found)
            for match in found:
                self._lines.setdefault((match.block, match.line), []).append(match)

    def forget(self, entry: Node) -> None:
        """An entry has gone, or what was found in it."""
        for match in self._found.pop(entry, ()):
            self.count -= 1
            self._lines.pop((match.block, match.line), None)

    def on_line(self, block: Block, line: int) -> Sequence[Match]:
        """The matches in a line."""
        return self._lines.get((block, line), ())

    def step(self, step: int, row: int) -> int:
        """Goes `step` matches on and gives that one's index, -1 where there is none. Without a current one it is the
        first from `row` on, or for a step back the last up to there.
        """
        matches = [
            match for entry in sorted(self._found, key=lambda entry: entry.place) for match in self._found[entry]
        ]
        if not matches:
            self.current = None
            return -1
        if self.current in matches:
            index = (matches.index(self.current) + step) % len(matches)
        elif step > 0:
            index = next((n for n, match in enumerate(matches) if row_of(match) >= row), 0)
        else:
            index = next((n for n in reversed(range(len(matches))) if row_of(matches[n]) <= row), len(matches) - 1)
        self.current = matches[index]
        return index


def row_of(match: Match) -> int:
    """The row in which a match begins."""
    block, line, start, _ = match
    return block.top + block.row_of_line(line) + block.part_at(line, start)


def _matches(entry: Node, text: str) -> Iterator[Match]:
    for block in entry.blocks():
        for number, line in enumerate(block.lines):
            for start, end in spans(line.shown(block.width), text):
                yield Match(block, number, start, end)


def spans(line: str, text: str) -> Iterator[tuple[int, int]]:
    """Where a text that is case-folded stands in a line, in characters of the line."""
    folded = line.casefold()
    # A character may become several: "ß" is found as "ss".
    places = None if len(folded) == len(line) else [n for n, character in enumerate(line) for _ in character.casefold()]
    end = 0
    while (start := folded.find(text, end)) >= 0:
        end = start + len(text)
        yield (start, end) if places is None else (places[start], places[end - 1] + 1)
