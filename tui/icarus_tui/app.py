"""The program on the screen: it finds a base, loads it, and holds the conversation."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.screen import Screen

from icarus_local.chat.lines import COMMANDS
from icarus_local.chat.reply import Chat
from icarus_local.chat.starting import Opening
from icarus_local.errors import IcarusError
from icarus_tui import themes
from icarus_tui.agents import AgentsScreen
from icarus_tui.chat_screen import ChatScreen
from icarus_tui.dialogs import AskLine, Confirm
from icarus_tui.find_bar import FindBar
from icarus_tui.host import Host
from icarus_tui.keymap import bound, keymap
from icarus_tui.loading import Left, LoadingScreen, Tell
from icarus_tui.logs import LogBuffer, LogsScreen, held_logs
from icarus_tui.looks import agent_variables
from icarus_tui.prompt import Prompt
from icarus_tui.sessions import SessionsScreen
from icarus_tui.transcript import Transcript
from icarus_tui.welcome import WelcomeScreen

_QUIT_S = 2.0

_PLACES: dict[str, type[DOMNode]] = {
    "the conversation": ChatScreen,
    "the input": Prompt,
    "what was said": Transcript,
    "finding": FindBar,
    "loading": LoadingScreen,
    "the first start": WelcomeScreen,
    "the sessions": SessionsScreen,
    "the agents": AgentsScreen,
    "the log": LogsScreen,
    "a question": Confirm,
    "a line": AskLine,
}
"""Where keys do something, for what the settings say of them."""


class IcarusApp(App[None]):
    """One program, one conversation at a time."""

    TITLE = "icarus-local"
    COMMAND_PALETTE_BINDING = "ctrl+p"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "quit", "Quit", priority=True, id="quit")]

    def __init__(self, host: Host, logs: LogBuffer) -> None:
        """Prepares.

        Raises:
            RequestError: the settings name keys, actions or a theme that do not exist.
        """
        self.keymap = keymap(host.settings.keys, bound(_PLACES | {"everywhere": IcarusApp}))
        super().__init__(ansi_color=themes.native_colours())
        themes.apply(self, host.settings.screen.theme)
        self._host, self.logs = host, logs
        self._chat_screen: ChatScreen | None = None
        self._quit_until = 0.0

    def on_mount(self) -> None:
        """Begins."""
        self.set_keymap(self.keymap)
        _on_termination(self.exit)
        self.run_worker(self._begin())

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """The agents' colours in the theme that there is."""
        return agent_variables(self.current_theme)

    async def _begin(self) -> None:
        """Loads a base, the person's choice where there is none or it cannot be loaded, and opens the conversation."""
        base = self._host.base
        while True:
            if base is None and (base := await self.push_screen_wait(WelcomeScreen(self._host.places))) is None:
                self.exit()
                return
            outcome = await self.push_screen_wait(self._loading(base))
            if not isinstance(outcome, Left):
                self._chat_screen = ChatScreen(outcome, self._host, self.logs, self.keymap)
                self.push_screen(self._chat_screen)
                return
            if outcome is Left.QUIT:
                self.exit()
                return
            base = base if outcome is Left.AGAIN else None

    def _loading(self, base: str) -> LoadingScreen[Chat]:
        opening = Opening(lambda _text, _fraction: None)

        def start(tell: Tell) -> Chat:
            opening.tell = tell
            return self._host.open(base, opening)

        return LoadingScreen(base, start, opening.cancel, self.logs)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the palette offers: the commands that can be sent as lines."""
        if isinstance(screen, ChatScreen):
            for name, info in COMMANDS.items():
                line = f"/{name}"
                act = partial(screen.begin_line, f"{line} ") if info.takes else partial(screen.command, line)
                yield SystemCommand(f"{line} {info.takes}".rstrip(), info.does, act)
        else:
            yield SystemCommand("Quit", "End the program", self.exit)

    def action_help_quit(self) -> None:
        """Ctrl-C twice quits where it has nothing to copy, beside the conversation too."""
        if time.monotonic() < self._quit_until:
            self.exit()
        else:
            self._quit_until = time.monotonic() + _QUIT_S
            self.notify("Ctrl-C again quits", timeout=_QUIT_S)

    def close(self) -> None:
        """Stops all that is under way, so that the worker's end is not waited for."""
        if self._chat_screen is not None:
            self._chat_screen.agenda.close()


def run_tui(host: Host) -> None:
    """Runs the screen until the person quits; the terminal is as before afterwards.

    Raises:
        IcarusError: the screen failed; Textual has written the trace to stderr.
    """
    with held_logs() as logs:
        app = IcarusApp(host, logs)
        try:
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
