"""Saves a session as it goes and brings it back: the transcript after every answer, the KV state on leaving."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack
from types import TracebackType

from icarus_local.chat.conversation import Turn
from icarus_local.chat.session import Session
from icarus_local.chat.store import SavedSession, SavedTurn, Store
from icarus_local.engine.state import load_state, save_state
from icarus_local.errors import ContextFullError, IcarusError, StateError
from icarus_local.text.tokenizer import Tokenizer

MAX_STATE_BYTES = 4 << 30  # of the KV states of all conversations


class Keeper:
    """One session's place in the store. To be used from the engine's thread, and closed before the engine.

    Attributes:
        id: of the conversation. turns: what was said before, where it was resumed. notices: what to tell of that.
    """

    def __init__(self, store: Store, session: Session, tokenizer: Tokenizer, resume: str | None = None) -> None:
        """Begins a conversation in the store, or resumes one.

        Args:
            store, session, tokenizer: where, what, and what turns ids into text.
            resume: an id or its beginning, "" for the latest; None begins a new one.

        Raises:
            RequestError: no such conversation, or another process holds it.
        """
        self._store, self._session, self._tokenizer = store, session, tokenizer
        self.turns: list[SavedTurn] = []
        self.notices: list[str] = []
        self._known: list[tuple[Turn, SavedTurn]] = []
        self._failure: IcarusError | None = None
        with ExitStack() as stack:
            if resume is None:
                agents = [ready.name for ready in session.agents]
                self.id = store.create(session.engine.base.path, tokenizer.sha256, agents)
                stack.enter_context(store.held(self.id))
            else:
                saved = store.find(resume)
                self.id = saved.id
                stack.enter_context(store.held(self.id))
                self._resume(saved)
            self._stack = stack.pop_all()
        session.on_change = self.save

    def _resume(self, saved: SavedSession) -> None:
        session, store = self._session, self._store
        self.turns = store.turns(self.id)
        same = saved.tokenizer_sha256 == self._tokenizer.sha256
        encode = None if same else self._tokenizer.encode
        session.conversation.turns = tuple(turn.turn(encode) for turn in self.turns)
        file = store.state_file(self.id)
        try:
            restored = load_state(session.engine, file)
        except (StateError, ContextFullError) as error:
            n = len(session.conversation.prompt())
            self.notices.append(f"{n} tokens will be encoded again: {error.what}")
            return
        session.engine.cells.drop(session.sequence)
        session.sequence = restored
        self.notices.append(f"conversation {self.id} goes on: {session.engine.cells.length(restored)} tokens restored")

    def save(self) -> None:
        """Writes what is new of the transcript. Where that fails the conversation goes on, and its end says so."""
        try:
            turns = self._session.conversation.turns
            # Only what is new is decoded: a conversation may be long, and this is the engine's thread.
            before = {id(turn): saved for turn, saved in self._known}
            self._known = [(turn, before.get(id(turn)) or self._saved(turn)) for turn in turns]
            self._store.save(self.id, [saved for _, saved in self._known])
        except (OSError, sqlite3.Error) as error:
            self._session.on_change = None
            self._failure = IcarusError(
                f"the end of conversation {self.id} is not saved: {error}", "Free some space, or see to the folder"
            )

    def _saved(self, turn: Turn) -> SavedTurn:
        if isinstance(turn.content, str):
            return SavedTurn(turn.speaker, turn.content, None)
        return SavedTurn(turn.speaker, self._tokenizer.decode(turn.content), tuple(turn.content))

    def close(self) -> None:
        """Writes the KV state, or nothing where nothing was said, and lets go of the conversation.

        Raises:
            IcarusError: the state cannot be written, or not all of the transcript could.
        """
        session = self._session
        session.on_change = None
        try:
            if not any(turn.role == "assistant" for turn in session.conversation.turns):
                if not self.turns:
                    self._stack.close()
                    self._store.delete(self.id)
                return
            save_state(session.engine, session.sequence, self._store.state_file(self.id))
            self._store.trim(MAX_STATE_BYTES)
            if self._failure is not None:
                raise self._failure
        finally:
            self._stack.close()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self.close()
        except IcarusError:
            # What ended the session matters more.
            if error is None:
                raise
