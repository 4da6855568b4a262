"""The conversation: what is said, who takes part, and an input that is never blocked."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType, Keymap
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Footer

from icarus_local.chat.lines import Command, parse
from icarus_local.chat.mentions import MENTION
from icarus_local.chat.reply import Chat
from icarus_local.chat.requests import Ask, Request
from icarus_local.chat.store import FAILURES
from icarus_local.errors import IcarusError
from icarus_tui.agenda import Agenda
from icarus_tui.choices import Choices
from icarus_tui.clipboard import copy
from icarus_tui.commands import Commands
from icarus_tui.completion import Names
from icarus_tui.editor import edit
from icarus_tui.errands import Steps, asking, asking_about
from icarus_tui.exchange import Exchange, Notice
from icarus_tui.find_bar import FindBar
from icarus_tui.host import Host
from icarus_tui.logs import LogBuffer
from icarus_tui.presenter import Presenter, View
from icarus_tui.prompt import Prompt, Taken
from icarus_tui.status import Activity, AgentBar, Meter
from icarus_tui.themes import theme_names
from icarus_tui.transcript import Transcript

_DRAIN_S = 0.05
_HINT_S = 2.0
_PROMPT_ROWS = 8


class ChatScreen(Screen[None]):
    """One conversation among several agents over a chat that is open."""

    CSS = """
    ChatScreen.-low Activity, ChatScreen.-low Footer, ChatScreen.-low AgentBar { display: none; }
    """
    VERTICAL_BREAKPOINTS = [(0, "-low"), (9, "-high")]  # noqa: RUF012 -- Textual annotates it as it does
    # Both of escape have one id: a keymap moves all bindings of a key.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave it", priority=True, id="stop"),
        Binding("escape", "stop", "Stop", priority=True, id="stop"),
        Binding("escape", "close", "Close", priority=True, id="stop", show=False),
        Binding("ctrl+f", "find", "Find", priority=True, id="find"),
        Binding("shift+tab", "browse", "Browse", priority=True, id="browse"),
        Binding("f2", "sessions", "Sessions", priority=True, id="sessions"),
        Binding("f3", "agents", "Agents", priority=True, id="agents"),
        Binding("f4", "logs", "Logs", show=False, priority=True, id="logs"),
        Binding("ctrl+g", "edit_outside", "Editor", show=False, priority=True, id="editor"),
        Binding("ctrl+t", "thoughts", "Thoughts", show=False, priority=True, id="thoughts"),
        Binding("ctrl+c", "interrupt", "Copy, quit", show=False, priority=True, id="interrupt"),
        Binding("pageup", "scroll(-1)", "Back", show=False, priority=True, id="back"),
        Binding("pagedown", "scroll(1)", "Forth", show=False, priority=True, id="forth"),
    ]

    def __init__(self, chat: Chat, host: Host, logs: LogBuffer, keymap: Keymap) -> None:
        super().__init__()
        self.chat, self.host, self.logs, self.keymap = chat, host, logs, keymap
        opened = chat.opened
        self._choices, self._find = Choices(), FindBar()
        self.transcript = Transcript(thoughts_shown=host.settings.screen.thoughts == "shown")
        self._agents = AgentBar(opened.roster)
        self._meter = Meter(opened.n_ctx, opened.cache, opened.roster)
        self.prompt = Prompt(self._choices, self.submit, self._take_queued, self._names)
        view = View(self.transcript, self._agents, self._meter, self.prompt)
        self.presenter = Presenter(chat, view)
        self.agenda = Agenda(chat, view, self.presenter, self._watch)
        self._commands = Commands(self)
        self._activity = Activity()
        self._drain_timer: Timer | None = None
        self._asked: tuple[str, ...] = ()
        self._escape: tuple[bool, bool, bool] = (False, False, False)
        self._hint, self._hint_until = "", 0.0
        self._quit_until = 0.0

    def compose(self) -> ComposeResult:
        """Lays the screen out."""
        yield self._agents
        yield self._meter
        yield self.transcript
        yield self._find
        yield self._activity
        yield self._choices
        yield self.prompt
        yield Footer(show_command_palette=True)

    def on_mount(self) -> None:
        """Shows how the conversation begins and takes the keys."""
        self.presenter.open()
        _settle_memory()
        self.set_focus(self.prompt)
        self._drain_timer = self.set_interval(_DRAIN_S, self.drain, pause=True)

    def on_resize(self, event: events.Resize) -> None:
        """Leaves the conversation most of a small terminal."""
        self.prompt.styles.max_height = max(1, min(event.size.height // 4, _PROMPT_ROWS))

    def on_unmount(self) -> None:
        """Lets go of everything that is under way."""
        self.agenda.close()

    # -- lines ---------------------------------------------------------------------------------------------------------

    def submit(self, line: str) -> Taken:
        """Takes a sent line."""
        taken = self.agenda.answer(line)
        if taken == "stays":
            self.show_hint("Left as it is; Enter sends the line")
        if taken is None:
            taken = self._do(line) if line else "stays"
        self._show_activity()
        return taken

    def _do(self, line: str) -> Taken:
        try:
            # Those who have left are not asked any more.
            asked = tuple(name for name in self._asked if name in self.chat.opened.agents)
            parsed = parse(line, self.host.rounds, self.host.at_once, asked)
            if isinstance(parsed, Command):
                return self._commands.run(line, parsed)
            self.ask(line, parsed)
        except FAILURES as error:
            self.tell(str(error), error=True)
            return "stays"
        return "sent"

    def command(self, line: str) -> None:
        """Does what a line says that nobody typed: it answers nothing."""
        self._do(line)
        self._show_activity()

    def begin_line(self, line: str) -> None:
        """Begins a line that the person goes on with; what stood in the input comes back by Up."""
        if self.prompt.text.strip():
            self.prompt.recall.add(self.prompt.text)
        self.prompt.put(line)
        self.set_focus(self.prompt)

    def ask(self, line: str, question: Ask) -> None:
        """Asks after what is under way.

        Raises:
            RequestError: it asks agents who are not there, or nothing.
        """
        if question.at_once:
            # Nobody answers twice at once.
            question = replace(question, names=tuple(dict.fromkeys(question.names)))
        question.check(self.chat.opened.agents)
        # Whether there is such a file is looked up where nobody waits for it.
        steps = asking_about(question) if MENTION.search(question.text) else asking(question)
        self.agenda.enqueue(Exchange(line, question), steps)

    def request(self, line: str, request: Request) -> None:
        """Serves what is no question after what is under way."""
        self.enqueue(Exchange(line), asking(request))

    def enqueue(self, exchange: Exchange, steps: Steps) -> None:
        """Does a line after what is under way."""
        self.agenda.enqueue(exchange, steps)
        self._show_activity()

    def tell(self, text: str, error: bool = False) -> None:
        """Says something in the conversation."""
        self.transcript.add(Notice(text, error))

    def address(self, names: tuple[str, ...]) -> None:
        """From now on a line that names nobody asks these; all where it is empty."""
        self._asked = names
        self._agents.show_asked(names)

    def _take_queued(self) -> str | None:
        line = self.agenda.take_queued()
        self._show_activity()
        return line

    def _names(self) -> Names:
        known: tuple[str, ...] = ()
        if self.prompt.text.startswith("/agents"):
            # What is wrong with a file is said when an agent of it is asked for.
            with suppress(*FAILURES):
                known = tuple(name for name, _ in self.host.known_agents())
        return Names(self.chat.opened.agents, known, theme_names(self.app))

    # -- what comes ----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._drain_timer is not None:
            self._drain_timer.resume()

    def drain(self) -> None:
        """Shows what has come since the last time."""
        if not self.transcript.is_attached:
            return
        self.agenda.drain()
        self._show_activity()
        if not self.agenda.busy and self._drain_timer is not None:
            self._drain_timer.pause()
            _settle_memory()

    def _show_activity(self) -> None:
        hinting = time.monotonic() < self._hint_until
        self._activity.show(self._hint if hinting else self.agenda.doing)
        escape = self.agenda.asks, self.agenda.stoppable, self._closable
        if self._escape != escape:
            # Not more often: the footer is made anew each time.
            self._escape = escape
            self.refresh_bindings()

    def show_hint(self, hint: str) -> None:
        """Says something for two seconds."""
        self._hint, self._hint_until = hint, time.monotonic() + _HINT_S
        self.set_timer(_HINT_S + _DRAIN_S, self._show_activity)
        self._show_activity()

    # -- keys ----------------------------------------------------------------------------------------------------------

    @property
    def _closable(self) -> bool:
        return self._choices.shown or self._find.shown or self.transcript.has_focus

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The footer offers only what would do something."""
        if action == "close":
            return self._closable
        if action == "leave":
            return self.agenda.asks and not self._closable
        if action == "stop":
            return self.agenda.stoppable and not self.agenda.asks and not self._closable
        if action == "scroll":
            return not self.transcript.has_focus  # where the keys move from one thing said to another
        if action == "browse":
            return not self.transcript.has_focus
        return True

    def action_close(self) -> None:
        """Goes back to the input from what stands beside it."""
        if self._choices.shown:
            self._choices.show(None)
        elif self._find.shown:
            self._find.close()
        self.set_focus(self.prompt)
        self._show_activity()

    def action_leave(self) -> None:
        """Leaves as it is what the program asks about."""
        self.agenda.leave()
        self._show_activity()

    def action_stop(self) -> None:
        """Stops the answer in progress; what is queued goes on."""
        self.agenda.stop()
        self._show_activity()

    def action_scroll(self, pages: int) -> None:
        """Scrolls the conversation by pages."""
        if pages < 0:
            self.transcript.scroll_page_up(animate=False)
        else:
            self.transcript.scroll_page_down(animate=False)

    def action_interrupt(self) -> None:
        """Copies a selection; without one, quits when pressed twice."""
        if selected := self.prompt.selected_text or self.get_selected_text():
            self.copy(selected)
            self.clear_selection()
            self.prompt.move_cursor(self.prompt.cursor_location)
        elif time.monotonic() < self._quit_until:
            self.app.exit()
        else:
            self._quit_until = time.monotonic() + _HINT_S
            self.show_hint("Ctrl-C again quits" + ("; Esc stops the answer" if self.agenda.stoppable else ""))

    def copy(self, text: str) -> None:
        """Copies to the clipboards that there are, and says which took it."""

        async def copying() -> None:
            self.show_hint(await copy(self.app, text))

        self.run_worker(copying(), exclusive=True, group="clipboard")

    def action_find(self) -> None:
        """Searches the conversation."""
        self._find.open()
        self._show_activity()

    def action_browse(self) -> None:
        """Goes to what was said, to copy, save, unfold or ask it again."""
        self.set_focus(self.transcript)

    def action_thoughts(self) -> None:
        """Folds or unfolds all thoughts."""
        self.transcript.toggle_thoughts()

    def action_sessions(self) -> None:
        """Lists the saved conversations."""
        self._try(self._commands.sessions)

    def action_agents(self) -> None:
        """Lists the agents."""
        self._try(self._commands.agents)

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except FAILURES as error:
            self.tell(str(error), error=True)

    def action_logs(self) -> None:
        """Shows the log."""
        self._commands.logs()

    def action_edit_outside(self) -> None:
        """Writes the line in an editor."""
        try:
            text = edit(self.app, self.prompt.text, self.host.settings.screen.editor)
        except IcarusError as error:
            self.tell(str(error), error=True)
        else:
            if text is not None:
                self.prompt.put(text)

    # -- the conversation's own keys -----------------------------------------------------------------------------------

    def on_descendant_focus(self) -> None:
        """Other keys do something now."""
        self._show_activity()

    @on(AgentBar.Clicked)
    def _agents_clicked(self) -> None:
        self._try(self._commands.agents)

    def on_paste(self, event: events.Paste) -> None:
        """What is pasted while browsing belongs to the input."""
        if self.transcript.has_focus:
            self.set_focus(self.prompt)
            self.prompt.post_message(events.Paste(event.text))

    @on(Transcript.Left)
    def _left(self) -> None:
        self.set_focus(self.prompt)

    @on(Transcript.Typed)
    def _typed(self, event: Transcript.Typed) -> None:
        self.set_focus(self.prompt)
        self.prompt.insert(event.character)

    @on(Transcript.Asked)
    def _target_asked(self, event: Transcript.Asked) -> None:
        self._commands.on_target(event.action, event.target)
        self._show_activity()


def _settle_memory() -> None:
    """What stays for long is not looked through again at each collection, which takes as long as two frames."""
    gc.unfreeze()  # what has left since
    gc.collect()
    gc.freeze()
