"""The input: Enter sends, Tab completes, Up and Down go through what was sent before."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from textual import events
from textual.binding import Binding, BindingType
from textual.widgets import TextArea

from icarus_local.chat.figures import printable
from icarus_tui.choices import Choices
from icarus_tui.completion import Completion, Names, complete
from icarus_tui.looks import literal

_HINT = "Ask all, or @name one. /help"

Taken = Literal["sent", "answered", "stays"]
"""What became of a line: it is recalled by Up, it is not (an answer to the program), it stays to be corrected."""


class Recall:
    """The lines sent so far; what is being typed waits behind them."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._position = 0
        self._draft = ""

    def add(self, line: str) -> None:
        """Remembers a sent line; the same one twice in a row is one."""
        if self._lines[-1:] != [line]:
            self._lines.append(line)
        self._position, self._draft = len(self._lines), ""

    def older(self, typed: str) -> str | None:
        """The line before, None where there is none; `typed` is what stands in the input."""
        if self._position == 0:
            return None
        if self._position == len(self._lines):
            self._draft = typed
        self._position -= 1
        return self._lines[self._position]

    def newer(self) -> str | None:
        """The line after, the draft after the last, None beyond."""
        if self._position == len(self._lines):
            return None
        self._position += 1
        return self._draft if self._position == len(self._lines) else self._lines[self._position]


class Prompt(TextArea):
    """Where questions are typed. Pasted text keeps its lines."""

    DEFAULT_CSS = """
    Prompt { height: auto; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send", id="send"),
        Binding("ctrl+j,shift+enter", "newline", "New line", show=False, id="newline"),
        Binding("tab", "complete", "Complete", show=False, id="complete"),
    ]

    def __init__(
        self,
        choices: Choices,
        submit: Callable[[str], Taken],
        take_queued: Callable[[], str | None],
        names: Callable[[], Names],
    ) -> None:
        """Prepares.

        Args:
            choices: where it is listed what the word may become.
            submit: gets a sent line, "" for a blank one.
            take_queued: gives the line that was queued last, which is no longer, or None.
            names: what can be completed.
        """
        super().__init__(compact=True, highlight_cursor_line=False, placeholder=literal(_HINT))
        self._choices, self._submit, self._take_queued, self._names = choices, submit, take_queued, names
        self._put = ""  # what stands there without having been typed
        self.recall = Recall()

    # -- sending -------------------------------------------------------------------------------------------------------

    def action_send(self) -> None:
        """Submits what was typed. At once, as what is typed next belongs to the next question."""
        text, place = self.text, self.cursor_location
        # Empty before it is submitted: what comes of the line may put something back.
        self.put("")
        taken = self._submit(text.rstrip())
        if taken == "stays":
            self.put(text)
            self.move_cursor(place)
        elif taken == "sent":
            self.recall.add(text.rstrip())

    def put(self, line: str) -> None:
        """Puts a line there as if it had been typed."""
        self._put = line
        self.text = line
        self.move_cursor(self.document.end)
        self._choices.show(None)

    def put_back(self, line: str) -> bool:
        """Puts a question back to be asked again; False where something else is being typed."""
        if self.text.strip():
            return False
        self.put(line)
        return True

    def hint(self, hint: str) -> None:
        """Says in the empty input what may be typed; "" says what always may."""
        self.placeholder = literal(hint or _HINT)

    # -- completing ----------------------------------------------------------------------------------------------------

    def on_text_area_changed(self) -> None:
        """Lists what may follow what was typed."""
        self._choices.show(None if self.text == self._put else self._completion())

    def action_complete(self) -> None:
        """Takes the choice that stands out."""
        # Not what is listed: keys may have come faster than the list.
        if completion := self._completion():
            row, column = self.cursor_location
            typed = len(self._typed())
            begun = typed - completion.start
            self.replace(self._choices.chosen(completion).text, (row, column - begun), (row, column))

    def _typed(self) -> str:
        """The text before the cursor."""
        return self.get_text_range((0, 0), self.cursor_location)

    def _completion(self) -> Completion | None:
        return complete(self._typed(), self._names())

    # -- keys ----------------------------------------------------------------------------------------------------------

    def action_newline(self) -> None:
        """Starts another line of the same question."""
        self.insert("\n")

    def action_cursor_up(self, select: bool = False) -> None:
        """Up inside the text or the choices; from the first row, the line queued last or the line sent before."""
        if self._choices.shown and not select:
            self._choices.move(-1)
        elif select or not self.navigator.is_first_wrapped_line(self.cursor_location):
            super().action_cursor_up(select)
        elif not self.text and (queued := self._take_queued()) is not None:
            self.put(queued)
        elif (line := self.recall.older(self.text)) is not None:
            self.put(line)

    def action_cursor_down(self, select: bool = False) -> None:
        """Down inside the text or the choices; from the last row, the line sent after."""
        if self._choices.shown and not select:
            self._choices.move(1)
        elif select or not self.navigator.is_last_wrapped_line(self.cursor_location):
            super().action_cursor_down(select)
        elif (line := self.recall.newer()) is not None:
            self.put(line)

    async def _on_key(self, event: events.Key) -> None:
        # Textual runs a key's action when the event has bubbled up to the app; by then, letters typed after it may
        # have been inserted, or with a priority binding, those before it may not.
        bound = self.screen.active_bindings.get(event.key)
        if bound is not None and bound.node is self and not event.is_printable:
            event.stop()
            event.prevent_default()
            await self.app.run_action(bound.binding.action, self)

    async def _on_paste(self, event: events.Paste) -> None:
        # The widget would draw control characters as they are.
        event.stop()
        event.prevent_default()
        text = printable(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        await super()._on_paste(events.Paste(text))
