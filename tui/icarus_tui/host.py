"""What the command line does for the screens: it alone knows bases, agents, settings and how a chat is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from icarus_local.base_choices import Places
from icarus_local.chat.reply import Chat
from icarus_local.chat.starting import Opening
from icarus_local.chat.store import Store
from icarus_local.settings import Settings


class Host(Protocol):
    """One run of the command.

    Attributes:
        settings: as they were read. places: where bases come from. base: to be loaded; None where none was named and
            none is installed. rounds, at_once: what a question means that says nothing else.
    """

    settings: Settings
    places: Places
    base: str | None
    rounds: int
    at_once: bool

    def open(self, base: str, opening: Opening) -> Chat:
        """Loads a base and opens the conversation; may be called again after an error. The host closes it in the end.

        Raises:
            IcarusError: it cannot be opened. CancelledError: `opening` was cancelled.
        """

    def store(self) -> Store:
        """All saved conversations.

        Raises:
            IcarusError: they cannot be opened.
        """

    def known_agents(self) -> Sequence[tuple[str, str]]:
        """Names of all agents that could take part, and where each comes from.

        Raises:
            RequestError: an agents file is wrong.
        """

    def remember(self, section: str, key: str, value: str) -> None:
        """Writes a choice into the settings file.

        Raises:
            IcarusError: it cannot be written.
        """
