"""Who follows a session: what keeps it, for one."""

from __future__ import annotations

from typing import Protocol

from icarus_local.chat.events import Said


class Observer(Protocol):
    """Who follows a session, in the engine's thread; `id` is the conversation's."""

    id: str

    def changed(self) -> None:
        """The conversation has changed."""

    def idle(self) -> None:
        """Nothing was asked for some seconds."""

    def left(self) -> str:
        """The conversation is about to be left for a new one; gives what to tell the person, or ""."""

    def resume(self, conversation: str) -> tuple[tuple[Said, ...], tuple[str, ...]]:
        """Leaves the conversation for a saved one; gives what was said there, and what to tell the person.

        Raises:
            RequestError: that is impossible, and nothing has changed.
        """

    def title(self) -> str:
        """That a person gave the conversation, or ""."""
