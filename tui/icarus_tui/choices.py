"""The short list above the input of what the word that is being typed may become."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from icarus_tui.completion import Candidate, Completion
from icarus_tui.looks import literal

_ROWS = 6


class Choices(Static):
    """Shown while there is a choice; the input keeps the keys."""

    DEFAULT_CSS = """
    Choices {
        display: none; height: auto; padding: 0 1; background: $surface;
        text-wrap: nowrap; text-overflow: ellipsis;
        &.-shown { display: block; }
    }
    """

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self._completion: Completion | None = None
        self._index = 0

    @property
    def shown(self) -> bool:
        """Whether there is a choice."""
        return self._completion is not None

    def show(self, completion: Completion | None) -> None:
        """Offers these, or nothing."""
        if completion != self._completion:
            self._completion, self._index = completion, 0
            self.set_class(completion is not None, "-shown")
            self._draw()

    def move(self, step: int) -> None:
        """Goes to another."""
        if self._completion is not None:
            self._index = (self._index + step) % len(self._completion.candidates)
            self._draw()

    def chosen(self, completion: Completion) -> Candidate:
        """The one that stands out of these, the first where others are offered."""
        return completion.candidates[self._index if completion == self._completion else 0]

    def _draw(self) -> None:
        if self._completion is None:
            self.update("")
            return
        candidates = self._completion.candidates
        rows = max(1, min(_ROWS, self.screen.size.height // 4))
        first = min(max(self._index - rows + 1, 0), max(len(candidates) - rows, 0))
        lines = [self._line(i, candidates[i]) for i in range(first, min(first + rows, len(candidates)))]
        self.update(Content("\n").join(lines))

    def _line(self, index: int, candidate: Candidate) -> Content:
        here = index == self._index
        note = literal(f"  {candidate.note}", "dim") if candidate.note else Content("")
        return Content.assemble(literal("› " if here else "  "), literal(candidate.shown, "bold" if here else ""), note)
