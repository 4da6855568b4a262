"""What several screens share: lists to choose from, and two small questions, yes or no and a line of text."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widgets import Footer, Input, OptionList, Static

from icarus_tui.looks import literal


class Picks(OptionList):
    """A list to choose from, which marks the choice by a bar, so that it is seen without colour."""

    DEFAULT_CSS = """
    Picks { height: 1fr; max-height: 1fr; background: $background; scrollbar-gutter: stable; }
    Picks:focus { background: $background; background-tint: $foreground 0%; }
    """

    def __init__(self) -> None:
        super().__init__(compact=True, markup=False)

    @property
    def chosen(self) -> str | None:
        """The id of the highlighted option."""
        return None if self.highlighted is None else self.get_option_at_index(self.highlighted).id

    def _get_left_gutter_width(self) -> int:
        return 2

    def render_line(self, y: int) -> Strip:
        """An option's row, with its mark."""
        row = super().render_line(y)
        style = next((segment.style for segment in row if segment.style), self.rich_style)
        marked = self.highlighted is not None and style.meta.get("option") == self.highlighted
        mark = ("▌ " if self.has_focus else "│ ") if marked else "  "
        return Strip([Segment(mark, style), *row])


class Title(Static):
    """The first line of a screen, and what it says for a while."""

    DEFAULT_CSS = """
    Title { height: 1; padding: 0 1; background: $panel; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self, text: str) -> None:
        super().__init__(literal(text), markup=False)

    def show(self, text: str, error: bool = False) -> None:
        """Says something else."""
        self.update(literal(text.replace("\n", " "), "bold $text-error" if error else ""))


_CSS = """
$NAME { align: center middle; background: $background 60%; }
$NAME > VerticalScroll {
    width: 70; max-width: 100%; height: auto; max-height: 100%; padding: 0 1; background: $panel;
    border: round $primary;
}
$NAME Static, $NAME Input { height: auto; }
"""


class Confirm(ModalScreen[bool]):
    """Asks whether to do something; only y does it."""

    DEFAULT_CSS = _CSS.replace("$NAME", "Confirm")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", id="confirm-yes"),
        Binding("n,escape", "answer(False)", "No", id="confirm-no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Lays the question out."""
        with VerticalScroll():
            yield Static(literal(self._question), markup=False)
        yield Footer(show_command_palette=False)

    def action_answer(self, yes: bool) -> None:
        """Takes the answer."""
        self.dismiss(yes)


class AskLine(ModalScreen[str | None]):
    """Asks for a line; None where none is given."""

    DEFAULT_CSS = _CSS.replace("$NAME", "AskLine")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "take", "Take it", id="line-take", priority=True),
        Binding("escape", "leave", "Back", id="line-back"),
    ]

    def __init__(self, question: str, text: str = "") -> None:
        """`text` stands there already."""
        super().__init__()
        self._question, self._text = question, text
        self._line = Input(compact=True, select_on_focus=False)

    def compose(self) -> ComposeResult:
        """Lays the question out."""
        with VerticalScroll():
            yield Static(literal(self._question), markup=False)
            yield self._line
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Takes the keys."""
        self._line.value = literal(self._text).plain
        self._line.focus()

    def action_take(self) -> None:
        """Takes the line."""
        self.dismiss(self._line.value)

    def action_leave(self) -> None:
        """Goes back without one."""
        self.dismiss(None)
