"""What the commands do on the screen, typed as lines, chosen in the palette, or as keys on what was said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from icarus_local.chat.commands import agents_named, block_to_save, file_to_export, roster_request
from icarus_local.chat.lines import Command, question
from icarus_local.chat.requests import (
    AddAgent,
    BeginAnew,
    Join,
    ReloadAgent,
    RemoveAgent,
    Resume,
    check_name,
)
from icarus_local.errors import IcarusError, RequestError
from icarus_tui.agents import AgentsScreen
from icarus_tui.errands import adding, asking_again, asking_instead, exporting, saving
from icarus_tui.exchange import Exchange
from icarus_tui.help import help_text
from icarus_tui.logs import LogsScreen
from icarus_tui.prompt import Taken
from icarus_tui.sessions import SessionsScreen
from icarus_tui.themes import apply, theme_names
from icarus_tui.transcript import Target

if TYPE_CHECKING:
    from icarus_tui.chat_screen import ChatScreen


class Commands:
    """Does what a command says; whatever changes the conversation waits for what is under way."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._by_name: dict[str, Callable[[str, str], Taken | None]] = {
            "add": self._add,
            "agent": self._address,
            "agents": self._agents,
            "copy": self._copy,
            "edit": self._edit,
            "export": self._export,
            "help": lambda _line, _rest: screen.tell(help_text(screen.app, screen.keymap)),
            "keep": lambda line, rest: screen.request(line, Join(self._agent(rest, "/keep"))),
            "logs": lambda _line, _rest: self.logs(),
            "new": lambda line, _rest: screen.request(line, BeginAnew()),
            "quit": lambda _line, _rest: screen.app.exit(),
            "regenerate": lambda line, _rest: self.regenerate(line),
            "rename": self._rename,
            "resume": lambda line, rest: screen.request(line, Resume(rest)),
            "save-code": self._save_code,
            "sessions": lambda _line, rest: self.sessions(rest),
            "theme": self._theme,
        }

    def run(self, line: str, command: Command) -> Taken:
        """Does it; a line that is only half of what is wanted stays.

        Raises:
            IcarusError: it cannot be done.
        """
        return self._by_name[command.name](line, command.rest) or "sent"

    # -- questions -----------------------------------------------------------------------------------------------------

    def regenerate(self, line: str = "/regenerate") -> None:
        """Asks the newest question again."""
        exchange = Exchange(line)
        self._screen.enqueue(exchange, asking_again(exchange, self._here))

    def _edit(self, line: str, text: str) -> Taken | None:
        screen = self._screen
        if text:
            exchange, other = Exchange(line), question(text)
            other.check(self._here())
            screen.enqueue(exchange, asking_instead(exchange, other, self._here))
            return None
        if screen.agenda.stoppable:
            raise RequestError("something is under way", "Wait for it, or stop it with Esc, and send /edit again")
        if (newest := screen.presenter.newest) is None:
            raise RequestError("there is no question to edit")
        screen.call_later(screen.begin_line, f"/edit {newest.text}")
        return "answered"

    def _here(self) -> tuple[str, ...]:
        return self._screen.chat.opened.agents

    def _address(self, _line: str, rest: str) -> None:
        names = agents_named(rest, self._screen.chat.opened.agents)
        self._screen.address(names)
        self._screen.show_hint(f"A line that names nobody asks {', '.join(names) or 'all'}")

    def _agent(self, rest: str, command: str) -> str:
        name, names = rest.removeprefix("@"), self._screen.chat.opened.agents
        if not name:
            raise RequestError(f"{command} wants the name of an agent", f"For example: {command} {names[0]}")
        check_name(name, names)
        return name

    # -- agents, sessions, logs ----------------------------------------------------------------------------------------

    def _agents(self, line: str, rest: str) -> None:
        if rest:
            request = roster_request(rest)
            if not isinstance(request, AddAgent):
                check_name(request.agent, self._screen.chat.opened.agents)
            self._screen.request(line, request)
        else:
            self.agents()

    def agents(self) -> None:
        """Lists who takes part, and who could; the person adds, removes or reloads one."""
        screen = self._screen

        def chosen(request: AddAgent | RemoveAgent | ReloadAgent | None) -> None:
            if request is not None:
                verb = type(request).__name__.removesuffix("Agent").lower()
                screen.request(f"/agents {verb} {request.agent}", request)

        screen.app.push_screen(AgentsScreen(screen.chat.opened.roster, screen.host.known_agents()), chosen)

    def sessions(self, text: str = "") -> None:
        """Lists the saved conversations; the person goes on with one."""
        screen = self._screen

        def chosen(conversation: str | None) -> None:
            if conversation is not None:
                screen.request(f"/resume {conversation}", Resume(conversation))

        screen.app.push_screen(SessionsScreen(screen.host.store(), screen.presenter.conversation, text), chosen)

    def _rename(self, _line: str, title: str) -> None:
        if not (conversation := self._screen.presenter.conversation):
            raise RequestError("this conversation is not saved, so it has no title")
        self._screen.host.store().rename(conversation, title)
        self._screen.show_hint("Renamed" if title else "It has the title again that its first question gives it")

    def logs(self) -> None:
        """Shows the log."""
        self._screen.app.push_screen(LogsScreen(self._screen.logs))

    def _theme(self, _line: str, name: str) -> None:
        screen = self._screen
        if name:
            apply(screen.app, name)
            screen.host.remember("screen", "theme", name)
            screen.show_hint(f"{name} is the theme from now on")
        else:
            screen.tell(f"The theme is {screen.app.theme}; there are {', '.join(theme_names(screen.app))}")

    # -- what was said -------------------------------------------------------------------------------------------------

    def _copy(self, _line: str, rest: str) -> None:
        answers = self._screen.presenter.answers
        if rest:
            block, _ = block_to_save(answers, rest)
            self._screen.copy(block.text)
        elif answers:
            self._screen.copy(answers[-1])
        else:
            raise RequestError("there is no answer to copy")

    def _add(self, line: str, rest: str) -> None:
        exchange = Exchange(line)
        self._screen.enqueue(exchange, adding(rest, exchange.tell))

    def _save_code(self, line: str, rest: str) -> None:
        # What was answered can be saved now, whatever is being answered.
        block, path = block_to_save(self._screen.presenter.answers, rest)
        exchange = Exchange(line)
        self._screen.agenda.do(exchange, saving(block, path, exchange.tell))

    def _export(self, line: str, rest: str) -> None:
        exchange = Exchange(line)
        path, form = file_to_export(rest, self._screen.presenter.conversation)
        self._screen.enqueue(exchange, exporting(path, form, exchange.tell))

    def on_target(self, action: str, target: Target) -> None:
        """Does what a key wants with something that was said."""
        screen = self._screen
        try:
            match action:
                case "copy":
                    screen.copy(target.text)
                case "save":
                    assert target.code is not None
                    block = target.code
                    exchange = Exchange(f"/save-code {block.suggested_name}")
                    screen.agenda.do(exchange, saving(block, Path(block.suggested_name), exchange.tell))
                    screen.set_focus(screen.prompt)
                case "keep":
                    screen.request(f"/keep {target.agent}", Join(target.agent))
                case "regenerate":
                    self.regenerate()
                    screen.set_focus(screen.prompt)
                case "edit":
                    self._edit_target(target)
                case "remove":
                    if isinstance(target.entry, Exchange):
                        screen.agenda.take_queued(target.entry)
        except IcarusError as error:
            screen.tell(str(error), error=True)

    def _edit_target(self, target: Target) -> None:
        screen = self._screen
        queued = screen.agenda.take_queued(target.entry) if isinstance(target.entry, Exchange) else None
        newest = screen.presenter.newest
        if queued is not None:
            screen.begin_line(queued)
        elif newest is not None and newest.text == target.text and not screen.agenda.stoppable:
            screen.begin_line(f"/edit {target.text}")
        else:
            screen.begin_line(target.text)
            screen.show_hint("Only the newest question can be replaced; this one is asked anew")
