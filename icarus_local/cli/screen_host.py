"""What the command does for the screens: opens chats, and knows bases, agents, conversations and settings."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from icarus_local.base_choices import Places
from icarus_local.chat.process import EngineProcess
from icarus_local.chat.reply import Chat
from icarus_local.chat.starting import Opening
from icarus_local.chat.store import Store
from icarus_local.cli.agents import known_agents
from icarus_local.cli.first_start import ModelPlaces
from icarus_local.cli.opening import SessionOptions, open_session, sessions_folder
from icarus_local.settings import read_settings, remember, settings_file


class ScreenHost:
    """`icarus_tui.host.Host` for one run of the command."""

    def __init__(
        self, session: SessionOptions, base: str | None, stack: ExitStack, rounds: int = 1, at_once: bool = False
    ) -> None:
        """Reads the settings; `stack` closes what is opened. `base` is None where one must be chosen.

        Raises:
            SettingsError: the settings are wrong.
        """
        self._session, self._stack = session, stack
        self.settings = read_settings(settings_file())
        self.places: Places = ModelPlaces(settings_file())
        self.base = base
        self.rounds, self.at_once = rounds, at_once

    def open(self, base: str, opening: Opening) -> Chat:
        """Loads the base in a process of its own."""
        session = replace(self._session, engine=replace(self._session.engine, base=base))
        return self._stack.enter_context(EngineProcess(partial(open_session, session), opening))

    def store(self) -> Store:
        """All saved conversations."""
        return Store(sessions_folder())

    def known_agents(self) -> list[tuple[str, str]]:
        """All agents that could take part."""
        return [(name, known.source) for name, known in known_agents(self._session.agents_file).items()]

    def remember(self, section: str, key: str, value: str) -> None:
        """Writes a choice into the settings file."""
        remember(settings_file(), section, key, value)
