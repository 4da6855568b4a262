"""The screen: one conversation among several agents, with an input that is never blocked."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.widgets import Footer

from icarus_local.chat.commands import block_to_save
from icarus_local.chat.lines import Command, help_lines, parse
from icarus_local.chat.reply import Chat
from icarus_local.chat.requests import BeginAnew, Join, check_name
from icarus_local.errors import IcarusError, RequestError
from icarus_tui.agenda import Agenda
from icarus_tui.errands import adding, asking, saving
from icarus_tui.exchange import Exchange, Notice
from icarus_tui.logs import held_logs
from icarus_tui.prompt import Prompt, Taken
from icarus_tui.status import Activity, Status
from icarus_tui.transcript import Transcript

_DRAIN_S = 0.05
_HINT_S = 2.0
_PROMPT_ROWS = 8

_HELP = """\
A line is a question to all agents in turn; @name QUESTION asks one of them, or several. You may type ahead.
Enter sends, Ctrl-J starts a new line, Tab completes a name, Up and Down recall what you sent, PageUp, PageDown scroll.
Esc stops the answer in progress; stopped before anything was said, the question goes back into the input.
Where the program asks, y agrees; a line that says something else, or Esc, leaves things as they are.
Ctrl-C copies what the mouse selected; twice, it quits. Ctrl-Q quits.
"""


class IcarusApp(App[None]):
    """The conversation over a chat that is open.

    Args:
        chat: serves the requests, in order.
        rounds, at_once: what a question means that says nothing else, as in `Ask`.
    """

    CSS = """
    Screen.-low Activity, Screen.-low Footer { display: none; }
    Screen.-low Status { max-height: 1; }
    """
    VERTICAL_BREAKPOINTS = [(0, "-low"), (9, "-high")]  # noqa: RUF012 -- Textual annotates it as it does
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave it", priority=True),
        Binding("escape", "stop", "Stop", priority=True),
        Binding("ctrl+q", "quit", "Quit", priority=True),
        Binding("ctrl+c", "interrupt", "Copy, quit", show=False, priority=True),
        Binding("pageup", "scroll(-1)", "Back", show=False, priority=True),
        Binding("pagedown", "scroll(1)", "Forth", show=False, priority=True),
    ]

    def __init__(self, chat: Chat, rounds: int = 1, at_once: bool = False) -> None:
        super().__init__()
        self._chat, self._rounds, self._at_once = chat, rounds, at_once
        names = chat.opened.agents
        self._transcript, self._prompt = Transcript(), Prompt(self._submit, names)
        self._status, self._activity = Status(names, chat.opened.n_ctx), Activity()
        self._agenda = Agenda(chat, self._transcript, self._status, self._prompt, self._watch)
        self._drain_timer: Timer | None = None
        self._escape: tuple[bool, bool] = (False, False)
        self._hint, self._hint_until = "", 0.0
        self._quit_until = 0.0

    def compose(self) -> ComposeResult:
        """Lays the screen out."""
        yield self._status
        yield self._transcript
        yield self._activity
        yield self._prompt
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Shows the notices and takes the keys."""
        opened = self._chat.opened
        for notice in (*[said.shown for said in opened.before], *opened.notices):
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
        """Stops all that is under way, so that the worker's end is not waited for."""
        self._agenda.close()

    def _submit(self, line: str) -> Taken:
        """Takes a sent line."""
        taken = self._agenda.answer(line)
        if taken == "stays":
            self._show_hint("Left as it is; Enter sends the line")
        if taken is None:
            taken = self._do(line) if line else "stays"
        self._show_activity()
        return taken

    def _do(self, line: str) -> Taken:
        try:
            parsed = parse(line, self._rounds, self._at_once)
            if isinstance(parsed, Command):
                self._command(line, parsed)
            else:
                # Nobody answers twice at once.
                names = tuple(dict.fromkeys(parsed.names)) if parsed.at_once else parsed.names
                question = replace(parsed, names=names)
                question.check(self._chat.opened.agents)
                self._agenda.enqueue(Exchange(line, question), asking(question))
        except IcarusError as error:
            self._transcript.add(Notice(str(error), error=True))
            return "stays"
        return "sent"

    def _command(self, line: str, command: Command) -> None:
        exchange = Exchange(line)
        match command.name:
            case "quit":
                self.exit()
            case "add":
                self._agenda.enqueue(exchange, adding(command.rest, exchange.tell))
            case "save-code":
                # What was answered can be saved now, whatever is being answered.
                block, path = block_to_save(self._agenda.answers, command.rest)
                self._agenda.do(exchange, saving(block, path, exchange.tell))
            case "keep":
                name, names = command.rest.removeprefix("@"), self._chat.opened.agents
                if not name:
                    raise RequestError("/keep wants the name of an agent", f"For example: /keep {names[0]}")
                check_name(name, names)
                self._agenda.enqueue(exchange, asking(Join(name)))
            case "new":
                self._agenda.enqueue(exchange, asking(BeginAnew()))
            case _:
                self._transcript.add(Notice(_HELP + "\n".join(help_lines())))

    def _watch(self) -> None:
        if self._drain_timer is not None:
            self._drain_timer.resume()

    def _drain(self) -> None:
        """Shows what has come since the last time."""
        if not self._transcript.is_attached:
            return
        self._agenda.drain()
        self._show_activity()
        if not self._agenda.busy and self._drain_timer is not None:
            self._drain_timer.pause()

    def _show_activity(self) -> None:
        hinting = time.monotonic() < self._hint_until
        self._activity.show(self._hint if hinting else self._agenda.doing)
        escape = self._agenda.asks, self._agenda.stoppable
        if self._escape != escape:
            # Not more often: the footer is made anew each time.
            self._escape = escape
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The footer offers only what would do something."""
        if action == "leave":
            return self._agenda.asks
        return self._agenda.stoppable and not self._agenda.asks if action == "stop" else True

    def action_leave(self) -> None:
        """Leaves as it is what the program asks about."""
        self._agenda.leave()
        self._show_activity()

    def action_stop(self) -> None:
        """Stops the answer in progress; what is queued goes on."""
        self._agenda.stop()
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
            self._show_hint("Ctrl-C again quits" + ("; Esc stops the answer" if self.check_action("stop", ()) else ""))

    def _show_hint(self, hint: str) -> None:
        self._hint, self._hint_until = hint, time.monotonic() + _HINT_S
        self.set_timer(_HINT_S + _DRAIN_S, self._show_activity)
        self._show_activity()


def run_tui(chat: Chat, rounds: int = 1, at_once: bool = False) -> None:
    """Runs the screen until the person quits; the terminal is as before afterwards.

    Args:
        chat: open; the caller closes it.
        rounds, at_once: what a question means that says nothing else, as in `Ask`.

    Raises:
        IcarusError: the screen failed; Textual has written the trace to stderr.
    """
    app = IcarusApp(chat, rounds, at_once)
    try:
        with held_logs():
            app.run()
    finally:
        app.close()
    if app.return_code:
        raise IcarusError("the screen failed", "--plain works without it")


def _on_termination(leave: Callable[[], None]) -> None:
    """Leaves in order where the process is told to end, so that the shell gets its terminal back."""
    loop = asyncio.get_running_loop()
    for name in ("SIGTERM", "SIGHUP", "SIGINT"):
        # Windows has none of this; other threads may not.
        with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(getattr(signal, name), leave)
