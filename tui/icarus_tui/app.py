"""The screen: one conversation among several agents, with an input that is never blocked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.widgets import Footer

from icarus_local.chat.events import AnswerDone, AnswerStarted, TextDelta
from icarus_local.errors import IcarusError, RequestError
from icarus_tui.exchange import Exchange, Notice
from icarus_tui.lines import COMMANDS, Command, Question, parse
from icarus_tui.logs import held_logs
from icarus_tui.looks import colour
from icarus_tui.prompt import Prompt
from icarus_tui.reader import Outcome, Reader
from icarus_tui.status import Activity, Status
from icarus_tui.transcript import Transcript

if TYPE_CHECKING:
    from icarus_local.chat.worker import Worker

logger = logging.getLogger(__name__)

_DRAIN_S = 0.05
_HINT_S = 2.0
_PROMPT_ROWS = 8

_HELP = """\
A line is a question to all agents in turn; @name QUESTION asks one of them. You may type ahead.
Enter sends, Ctrl-J starts a new line, Up and Down recall what you sent, PageUp and PageDown scroll.
Esc stops the answer in progress; stopped before anything was said, the question goes back into the input.
Ctrl-C copies what the mouse selected; twice, it quits. Ctrl-Q quits.
"""


class IcarusApp(App[None]):
    """The conversation over a worker that is ready.

    Args:
        worker: answers the questions, in order.
        notices: what the person should be told at the start.
        n_ctx: tokens that the cache holds.
    """

    CSS = """
    Screen.-low Activity, Screen.-low Footer { display: none; }
    Screen.-low Status { max-height: 1; }
    """
    VERTICAL_BREAKPOINTS = [(0, "-low"), (9, "-high")]  # noqa: RUF012 -- Textual annotates it as it does
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", priority=True),
        Binding("ctrl+q", "quit", "Quit", priority=True),
        Binding("ctrl+c", "interrupt", "Copy, quit", show=False, priority=True),
        Binding("pageup", "scroll(-1)", "Back", show=False, priority=True),
        Binding("pagedown", "scroll(1)", "Forth", show=False, priority=True),
    ]

    def __init__(self, worker: Worker, notices: Sequence[str], n_ctx: int) -> None:
        super().__init__()
        self._worker, self._notices = worker, tuple(notices)
        names = [ready.name for ready in worker.session.agents]
        self._colours = {name: colour(index) for index, name in enumerate(names)}
        self._reader = Reader()
        self._open: deque[Exchange] = deque()
        self._drain_timer: Timer | None = None
        self._stoppable = False
        self._hint, self._hint_until = "", 0.0
        self._quit_until = 0.0
        self._transcript, self._prompt = Transcript(), Prompt(self._submit)
        self._status, self._activity = Status(names, n_ctx), Activity()

    def compose(self) -> ComposeResult:
        """Lays the screen out."""
        yield self._status
        yield self._transcript
        yield self._activity
        yield self._prompt
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Shows the notices and takes the keys."""
        for notice in self._notices:
            self._transcript.add(Notice(notice))
        self._prompt.focus()
        self._drain_timer = self.set_interval(_DRAIN_S, self._drain, pause=True)
        _on_termination(self.exit)

    def on_resize(self, event: events.Resize) -> None:
        """Leaves the conversation most of a small terminal."""
        self._prompt.styles.max_height = max(1, min(event.size.height // 4, _PROMPT_ROWS))

    def on_unmount(self) -> None:
        """Lets go of everything that is under way."""
        self.close()

    def close(self) -> None:
        """Stops all requests and the reader, so that the worker's end is not waited for."""
        for exchange in self._open:
            exchange.stop()
        self._reader.close()

    def _submit(self, line: str) -> bool:
        parsed = parse(line)
        return self._ask(line, parsed) if isinstance(parsed, Question) else self._command(parsed)

    def _command(self, command: Command) -> bool:
        if command.name not in COMMANDS:
            known = ", ".join(f"/{name}" for name in COMMANDS)
            self._transcript.add(Notice(f"there is no command /{command.name}. There are {known}", error=True))
            return False
        if command.name == "quit":
            self.exit()
        else:
            listed = "\n".join(f"/{name}: {what}" for name, what in COMMANDS.items())
            self._transcript.add(Notice(_HELP + listed))
        return True

    def _ask(self, line: str, question: Question) -> bool:
        try:
            request = self._worker.ask(question.text, question.names)
        except RequestError as error:
            self._transcript.add(Notice(str(error), error=True))
            return False
        exchange = Exchange(line, question.text, question.names, request)
        if self._open:
            exchange.show_state("queued")
        self._open.append(exchange)
        self._transcript.add(exchange)
        self._reader.follow(request)
        if self._drain_timer is not None:
            self._drain_timer.resume()
        self._show_activity()
        return True

    def _drain(self) -> None:
        """Shows what has come since the last time."""
        outcomes = self._reader.take()
        if not outcomes or not self._transcript.is_attached:
            return
        for outcome in outcomes:
            self._show(self._open[0], outcome)
        self._transcript.update()
        self._show_activity()
        if not self._open and self._drain_timer is not None:
            self._drain_timer.pause()

    def _show(self, exchange: Exchange, outcome: Outcome) -> None:
        if isinstance(outcome, AnswerStarted):
            exchange.begin_answer(outcome.agent, self._colours.get(outcome.agent, colour(0)))
        elif isinstance(outcome, TextDelta):
            exchange.append(outcome.text)
        elif isinstance(outcome, AnswerDone):
            exchange.end_answer(outcome)
            self._status.show(outcome)
        elif outcome is None:
            self._end(exchange)
        else:
            if not isinstance(outcome, IcarusError):
                logger.error("a request failed", exc_info=outcome)
            exchange.fail(outcome)

    def _end(self, exchange: Exchange) -> None:
        self._open.popleft()
        if self._open:
            self._open[0].show_state("")
        if exchange.answered:
            return
        # The session has taken the question out of the conversation, and so does the screen.
        where = "it is in the input again" if self._prompt.put_back(exchange.line) else "Up brings it back"
        if exchange.failed:
            exchange.show_state("taken back")
            return
        why = "Stopped before anybody answered" if exchange.stopping else "Nobody said anything"
        self._transcript.discard(exchange)
        self._transcript.add(Notice(f"{why}; the question was taken back, {where}."))

    def _show_activity(self) -> None:
        hinting = time.monotonic() < self._hint_until
        self._activity.show(self._hint if hinting else _activity(self._open))
        if self._stoppable != bool(self._open):
            # Not more often: the footer is made anew each time.
            self._stoppable = bool(self._open)
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The footer offers only what would do something."""
        return self._stoppable if action == "stop" else True

    def action_stop(self) -> None:
        """Stops the answer in progress; what is queued goes on."""
        if self._open:
            self._open[0].stop()
        self._show_activity()

    def action_scroll(self, pages: int) -> None:
        """Scrolls the conversation by pages."""
        if pages < 0:
            self._transcript.scroll_page_up(animate=False)
        else:
            self._transcript.scroll_page_down(animate=False)

    def action_interrupt(self) -> None:
        """Copies a selection; without one, quits when pressed twice."""
        if selected := self._prompt.selected_text or self.screen.get_selected_text():
            self.copy_to_clipboard(selected)
            self.screen.clear_selection()
            self._show_hint(f"{len(selected)} characters sent to the terminal's clipboard")
        elif time.monotonic() < self._quit_until:
            self.exit()
        else:
            self._quit_until = time.monotonic() + _HINT_S
            self._show_hint("Ctrl-C again quits" + ("; Esc stops the answer" if self._open else ""))

    def _show_hint(self, hint: str) -> None:
        self._hint, self._hint_until = hint, time.monotonic() + _HINT_S
        self.set_timer(_HINT_S + _DRAIN_S, self._show_activity)
        self._show_activity()


def run_tui(worker: Worker, notices: Sequence[str], n_ctx: int) -> None:
    """Runs the screen until the person quits; the terminal is as before afterwards.

    Args:
        worker: ready to answer; the caller closes it.
        notices: shown at the start.
        n_ctx: tokens that the cache holds.

    Raises:
        IcarusError: the screen failed; Textual has written the trace to stderr.
    """
    app = IcarusApp(worker, notices, n_ctx)
    try:
        with held_logs():
            app.run()
    finally:
        app.close()
    if app.return_code:
        raise IcarusError("the screen failed", "--plain works without it")


def _activity(exchanges: Sequence[Exchange]) -> str:
    if not exchanges:
        return ""
    current, queued = exchanges[0], len(exchanges) - 1
    if current.stopping:
        text = "stopping"
    elif not current.speaker:
        text = "waiting"
    else:
        text = f"{current.speaker} is {'answering' if current.speaking else 'reading'}"
    return f"{text}, {queued} queued" if queued else text


def _on_termination(leave: Callable[[], None]) -> None:
    """Leaves in order where the process is told to end, so that the shell gets its terminal back."""
    loop = asyncio.get_running_loop()
    for name in ("SIGTERM", "SIGHUP", "SIGINT"):
        # Windows has none of this; other threads may not.
        with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(getattr(signal, name), leave)
