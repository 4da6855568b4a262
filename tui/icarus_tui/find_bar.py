"""Searching in the conversation: a line above the input, and where in how many matches one is."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Static

from icarus_tui.looks import literal
from icarus_tui.transcript import Transcript


class FindBar(Horizontal):
    """Finds as one types; Enter and Down go to the next match, Up to the one before."""

    DEFAULT_CSS = """
    FindBar { display: none; height: 1; padding: 0 1; background: $surface; }
    FindBar.-shown { display: block; }
    FindBar Input { width: 1fr; border: none; padding: 0; height: 1; background: $surface; }
    FindBar Static { width: auto; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,down", "find_next(1)", "Next", priority=True, id="find_next"),
        Binding("up", "find_next(-1)", "Before", priority=True, id="find_before"),
    ]

    def compose(self) -> ComposeResult:
        """Lays it out."""
        yield Static("Find:", markup=False)
        yield Input(compact=True, select_on_focus=True)
        yield Static("", id="found", markup=False)

    @property
    def shown(self) -> bool:
        """Whether it is open."""
        return self.has_class("-shown")

    def open(self) -> None:
        """Shows it and takes the keys; finds again what was looked for last."""
        self.add_class("-shown")
        field = self.query_one(Input)
        self.screen.set_focus(field)
        self._find(field.value)

    def close(self) -> None:
        """Hides it and what it marked."""
        self.remove_class("-shown")
        self._transcript.find("")

    def action_find_next(self, step: int) -> None:
        """Goes to another match."""
        self._show(self._transcript.find_next(step))

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.shown:
            self._find(event.value)

    @property
    def _transcript(self) -> Transcript:
        return self.screen.query_one(Transcript)

    def _find(self, text: str) -> None:
        self._n_found = self._transcript.find(text)
        self._show(self._transcript.find_next(-1) if self._n_found else 0)

    def _show(self, index: int) -> None:
        looking = bool(self.query_one(Input).value)
        said = f"{index + 1} of {self._n_found}" if self._n_found else "nothing found" if looking else ""
        self.query_one("#found", Static).update(literal(said))
