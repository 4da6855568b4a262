"""Turns tokens into text as they come: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class Detokenizer:
    """Text of one answer, fed token by token.

    Attributes:
        stopped: the stop string that ended the text, or None.
    """

    def __init__(self, piece: Callable[[int], bytes], stop: Sequence[str] = ()) -> None:
        """Begins an empty text.

        Args:
            piece: token id -> bytes.
            stop: strings that end the text; neither they nor what follows is given out.
        """
        self._piece = piece
        self._stop = [text for text in stop if text]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped: str | None = None

    @property
    def holds(self) -> bool:
        """Whether text is held back that may yet be given out."""
        return bool(self._held or self._decoder.getstate()[0])

    def add(self, token: int) -> str:
        """The text that is certain after one more token; empty while a character or stop string may be under way."""
        if self.stopped is not None:
            return ""
        self._held += self._decoder.decode(self._piece(token))
        return self._release(final=False)

    def finish(self) -> str:
        """The rest of the text; an incomplete character becomes U+FFFD."""
        if self.stopped is not None:
            return ""
        self._held += self._decoder.decode(b"", final=True)
        return self._release(final=True)

    def _release(self, final: bool) -> str:
        hits = [(self._held.find(text), -len(text), text) for text in self._stop if text in self._held]
        if hits:
            position, _, self.stopped = min(hits)
            text, self._held = self._held[:position], ""
            return text
        keep = 0 if final else self._possible_stop()
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = 0
        for stop in self._stop:
            for n in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:n]):
                    longest = n
                    break
        return longest
