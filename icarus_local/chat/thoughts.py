"""Tells a model's thought (`<think>…</think>`) from what it says, in text that comes piece by piece."""

from __future__ import annotations

from typing import Literal

from icarus_local.text.template import THINK, THOUGHT

Piece = tuple[str, bool]
"""Text, and whether it is thought."""


class ThoughtSplitter:
    """Splits one answer's text. Only what opens an answer is its thought: later marks are text like any other.

    Attributes:
        state: "opening" until it is clear whether there is a thought, then "thinking", then "closed" until the answer
            proper begins, then "saying".
    """

    def __init__(self, thinking: bool = False) -> None:
        """Begins; `thinking` where the prompt has opened a thought already."""
        self.state: Literal["opening", "thinking", "closed", "saying"] = "thinking" if thinking else "opening"
        self._held, self._thought = "", False

    def add(self, text: str) -> list[Piece]:
        """Pieces that are certain after more text. The marks are in none of them, nor line ends beside the marks."""
        self._held += text
        pieces: list[Piece] = []
        if self.state == "opening":
            self._open()
        if self.state == "thinking":
            pieces.append((self._think(), True))
        if self.state == "closed":
            self._held = self._held.lstrip("\n")
            self.state = "saying" if self._held else "closed"
        if self.state == "saying":
            pieces.append((self._held, False))
            self._held = ""
        return [piece for piece in pieces if piece[0]]

    def finish(self) -> list[Piece]:
        """What was held back because it might have become a mark."""
        held, self._held = self._held, ""
        return [(held, self.state == "thinking")] if held else []

    def _open(self) -> None:
        start = self._held.lstrip()
        if start.startswith(THINK):
            self.state, self._held = "thinking", start.removeprefix(THINK)
        elif not THINK.startswith(start):
            self.state = "saying"

    def _think(self) -> str:
        if not self._thought:
            self._held = self._held.lstrip("\n")
        thought, mark, rest = self._held.partition(THOUGHT)
        if mark:
            self.state, self._held = "closed", rest
            return thought.rstrip("\n")
        # A mark may be under way, with line ends before it.
        keep = next((n for n in range(len(THOUGHT) - 1, 0, -1) if thought.endswith(THOUGHT[:n])), 0)
        certain = thought[: len(thought) - keep].rstrip("\n")
        self._held, self._thought = thought[len(certain) :], self._thought or bool(certain)
        return certain
