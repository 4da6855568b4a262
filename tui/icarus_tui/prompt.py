"""The input: Enter sends, Tab completes, Up and Down go through what was sent before."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal

from textual import events
from textual.binding import Binding, BindingsMap, BindingType
from textual.widgets import TextArea

from icarus_local.chat.figures import printable
from icarus_local.chat.lines import COMMANDS
from icarus_tui.looks import literal

_HINT = "Ask all, or @name one. /help"
_COMMAND = re.compile(r"/(?P<begun>[\w-]*)")
_KEPT = re.compile(r"/keep\s+@?(?P<begun>[\w-]*)")
_ADDRESSED = re.compile(r".*(?:^|\s)@(?P<begun>[\w-]*)", re.DOTALL)

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
        Binding("enter", "send", "Send"),
        Binding("ctrl+j,shift+enter", "newline", "New line", show=False),
        Binding("tab", "complete", "Complete", show=False),
        Binding("up", "cursor_up", "Recall"),
    ]

    def __init__(self, submit: Callable[[str], Taken], agents: Sequence[str]) -> None:
        """`submit` gets a sent line, "" for a blank one; `agents` are the names that Tab completes."""
        super().__init__(compact=True, highlight_cursor_line=False, placeholder=literal(_HINT))
        self._submit, self._agents = submit, tuple(agents)
        self.recall = Recall()

    def action_send(self) -> None:
        """Submits what was typed. At once, as what is typed next belongs to the next question."""
        text, place = self.text, self.cursor_location
        # Empty before it is submitted: what comes of the line may put something back.
        self.text = ""
        taken = self._submit(text.rstrip())
        if taken == "stays":
            self.text = text
            self.move_cursor(place)
        elif taken == "sent":
            self.recall.add(text.rstrip())

    def action_complete(self) -> None:
        """Adds what can only follow."""
        if self.cursor_location == self.document.end:
            self.insert(_completion(self.text, self._agents))

    def hint(self, hint: str) -> None:
        """Says in the empty input what may be typed; "" says what always may."""
        self.placeholder = literal(hint or _HINT)

    def put_back(self, line: str) -> bool:
        """Puts a question back to be asked again; False where something else is being typed."""
        if self.text.strip():
            return False
        self._replace(line)
        return True

    def action_newline(self) -> None:
        """Starts another line of the same question."""
        self.insert("\n")

    def action_cursor_up(self, select: bool = False) -> None:
        """Up inside the text; from its first row, the line sent before."""
        if select or not self.navigator.is_first_wrapped_line(self.cursor_location):
            super().action_cursor_up(select)
        elif (line := self.recall.older(self.text)) is not None:
            self._replace(line)

    def action_cursor_down(self, select: bool = False) -> None:
        """Down inside the text; from its last row, the line sent after."""
        if select or not self.navigator.is_last_wrapped_line(self.cursor_location):
            super().action_cursor_down(select)
        elif (line := self.recall.newer()) is not None:
            self._replace(line)

    async def _on_key(self, event: events.Key) -> None:
        # Textual runs a key's action when the event has bubbled up to the app; by then, letters typed after it may
        # have been inserted, or with a priority binding, those before it may not.
        if action := _ACTIONS.get(event.key):
            event.stop()
            event.prevent_default()
            await self.app.run_action(action, self)

    async def _on_paste(self, event: events.Paste) -> None:
        # The widget would draw control characters as they are.
        event.stop()
        event.prevent_default()
        text = printable(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        await super()._on_paste(events.Paste(text))

    def _replace(self, line: str) -> None:
        self.text = line
        self.move_cursor(self.document.end)


_ACTIONS = {
    key: bindings[-1].action
    for key, bindings in BindingsMap([*TextArea.BINDINGS, *Prompt.BINDINGS]).key_to_bindings.items()
}


def _completion(text: str, agents: Sequence[str]) -> str:
    """What follows `text` as far as that is certain: the rest of a command's name, or of an agent's who is addressed
    or kept, and a space where more comes after it.
    """
    if match := _COMMAND.fullmatch(text):
        rest = _rest(match["begun"], COMMANDS)
        takes, _ = COMMANDS.get(match["begun"] + rest.rstrip(), ("", ""))
        return rest if takes else rest.rstrip()
    if match := _KEPT.fullmatch(text):
        return _rest(match["begun"], agents).rstrip()
    if match := _ADDRESSED.fullmatch(text):
        return _rest(match["begun"], agents)
    return ""


def _rest(begun: str, names: Iterable[str]) -> str:
    fitting = [name for name in names if name.startswith(begun)]
    rest = os.path.commonprefix(fitting)[len(begun) :]  # noqa: RUF071 -- of names, not of paths
    return f"{rest} " if len(fitting) == 1 else rest
