"""The screen while something opens that takes seconds: how far it is, stopping it, and the way back from an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import ClassVar, Generic, Protocol, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Static

from icarus_local.errors import CancelledError, IcarusError
from icarus_tui.logs import LogBuffer, LogsScreen
from icarus_tui.looks import literal

_POLL_S = 0.05
_BAR_CELLS = 40

Tell = Callable[[str, float | None], None]
"""Takes what is being done and how much of it, 0 to 1, or None where nobody knows; from any thread."""


class Closable(Protocol):
    """What holds something until it is closed."""

    def close(self) -> None:
        """Lets go of it."""
        ...


T = TypeVar("T", bound=Closable)


class Left(Enum):
    """What the person wants where nothing was opened."""

    AGAIN = "try it again"
    OTHER = "choose another base"
    QUIT = "quit"


class _Opening(Generic[T]):
    """The thread that opens. What it opened is taken by the screen or, where that is gone, closed: never lost."""

    def __init__(self, start: Callable[[Tell], T]) -> None:
        self._start, self._lock = start, threading.Lock()
        self._left = False
        self._opened: T | None = None
        self.error: BaseException | None = None
        self.progress: tuple[str, float | None] = ("", None)
        threading.Thread(target=self._run, name="icarus-opening", daemon=True).start()

    def _run(self) -> None:
        try:
            opened = self._start(self._tell)
        except BaseException as error:  # the screen shows it, whatever it is
            self.error = error
            return
        with self._lock:
            if not self._left:
                self._opened = opened
                return
        _close(opened)

    def _tell(self, text: str, fraction: float | None) -> None:
        self.progress = text, fraction

    def take(self) -> T | None:
        """What was opened, once; None where there is nothing yet."""
        with self._lock:
            opened, self._opened = self._opened, None
        return opened

    def leave(self) -> None:
        """Nobody takes it any more."""
        with self._lock:
            self._left = True
        if (opened := self.take()) is not None:
            _close(opened)


def _close(opened: Closable) -> None:
    # There is nobody left to be told.
    with suppress(IcarusError):
        opened.close()


class LoadingScreen(Screen[T | Left]):
    """Opens something in a thread and gives it, or what the person wants instead."""

    DEFAULT_CSS = """
    LoadingScreen { align: center middle; background: $background; }
    LoadingScreen > VerticalScroll { width: 72; max-width: 100%; height: auto; max-height: 100%; padding: 0 1; }
    LoadingScreen Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", id="loading-stop", priority=True),
        Binding("ctrl+c", "stop", "Stop", id="loading-stop", priority=True, show=False),
        Binding("r,enter", "leave('AGAIN')", "Try again", id="loading-again"),
        Binding("b", "leave('OTHER')", "Another base", id="loading-other"),
        Binding("l", "logs", "Log", id="loading-logs"),
        Binding("q", "leave('QUIT')", "Quit", id="loading-quit"),
        Binding("escape,ctrl+c", "leave('QUIT')", "Quit", id="loading-quit", priority=True, show=False),
    ]

    def __init__(
        self,
        what: str,
        start: Callable[[Tell], T],
        cancel: Callable[[], None],
        logs: LogBuffer | None = None,
    ) -> None:
        """Says what is opened; `start` opens it in a thread of its own.

        Args:
            what: its name.
            start: opens; is given what to tell its progress to.
            cancel: makes `start` end soon, from any thread.
            logs: what can be looked at.
        """
        super().__init__()
        self._what, self._start, self._cancel, self._logs = what, start, cancel, logs
        self._opening: _Opening[T] | None = None
        self._began = time.monotonic()
        self._stopping, self._ended = False, False
        self._text, self._shown = Static(markup=False), ""

    def compose(self) -> ComposeResult:
        """Lays the screen out."""
        with VerticalScroll():
            yield self._text
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begins."""
        self.query_one(VerticalScroll).focus()
        self._opening = _Opening(self._start)
        self._timer = self.set_interval(_POLL_S, self._poll)
        self._poll()

    def on_unmount(self) -> None:
        """Ends what is under way, however the screen was left."""
        if self._opening is not None and not self._ended:
            self._cancel()
            self._opening.leave()

    def _poll(self) -> None:
        assert self._opening is not None
        if not self.is_active:
            return  # the log is being read
        if (opened := self._opening.take()) is not None:
            self._ended = True
            self.dismiss(opened)
        elif (error := self._opening.error) is not None:
            self._timer.stop()
            self._ended = True
            self._show(self._reason(error))
            self.refresh_bindings()
        else:
            self._show(self._progress())

    def _progress(self) -> Content:
        assert self._opening is not None
        text, fraction = self._opening.progress
        waited = f"{time.monotonic() - self._began:.0f} s"
        if self._stopping:
            text, fraction = "stopping", None
        elif fraction is not None:
            waited = f"{bar(fraction, min(_BAR_CELLS, max(self.size.width - 16, 4)))}  {waited}"
        return literal(f"Loading {self._what}", "bold") + literal(f"\n{text}\n{waited}")

    def _reason(self, error: BaseException) -> Content:
        if isinstance(error, CancelledError):
            return literal(f"Loading {self._what} was stopped", "bold")
        title = literal(f"{self._what} cannot be loaded", "bold $text-error")
        if isinstance(error, IcarusError):
            return title + literal(f"\n\n{error.what}{f'{chr(10)}{error.hint}' if error.hint else ''}")
        return title + literal(f"\n\n{type(error).__name__}: {error}")

    def _show(self, content: Content) -> None:
        if content.plain != self._shown:
            self._shown = content.plain
            self._text.update(content)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The footer offers only what would do something."""
        if action == "stop":
            return not self._ended and not self._stopping
        if action == "logs":
            return self._logs is not None
        return self._ended or parameters == (Left.QUIT.name,) if action == "leave" else True

    def action_stop(self) -> None:
        """Stops the opening."""
        self._stopping = True
        self._cancel()
        self._poll()
        self.refresh_bindings()

    def action_leave(self, wanted: str) -> None:
        """Leaves for what is wanted."""
        self.dismiss(Left[wanted])

    def action_logs(self) -> None:
        """Shows the log."""
        if self._logs is not None:
            self.app.push_screen(LogsScreen(self._logs))


def bar(fraction: float, cells: int) -> str:
    """How much is done, drawn without colour."""
    done = max(0.0, min(fraction, 1.0))
    return f"{'█' * round(done * cells):░<{cells}} {done:4.0%}"
