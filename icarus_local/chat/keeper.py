"""Saves a session as it goes and brings it back: the transcript after every change, the KV state while it is idle."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from icarus_local.chat.conversation import HAND_OVER, USER, Turn
from icarus_local.chat.events import Said
from icarus_local.chat.session import Session
from icarus_local.chat.store import SavedSession, SavedTurn, Store
from icarus_local.chat.transcripts import history, saved_turn
from icarus_local.engine.kv import kv_bytes_per_token
from icarus_local.engine.state import State, check_saved_as, load_state, take_state, write_state
from icarus_local.errors import ContextFullError, IcarusError, RequestError, StateError
from icarus_local.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_STATE_BYTES = 4 << 30  # of the KV states of all conversations
_NAMED = 3  # conversations in a notice

Tokens = npt.NDArray[np.int32]


class Keeper:
    """One session's place in the store, and its observer. Used from the engine's thread, and closed before the engine.

    Attributes:
        id: of the conversation; "" where a new one could not be begun. turns: what was said before, where it was
            resumed. notices: what to tell of that, and of other conversations whose states may have to go.
    """

    def __init__(
        self,
        store: Store,
        session: Session,
        tokenizer: Tokenizer,
        resume: str | None = None,
        *,
        state_kv_type: str | None = None,
        take_back: bool = False,
    ) -> None:
        """Begins a conversation in the store, or resumes one.

        Args:
            store, session, tokenizer: where, what, and what turns ids into text.
            resume: an id or its beginning, "" for the latest; None begins a new one.
            state_kv_type: a smaller type than the cache's to save K and V in, which loses bits; None keeps all.
            take_back: leave a last question that nobody answered out of what is resumed, for it will be asked again.

        Raises:
            RequestError: no such conversation, another process holds it, or K and V have no such smaller type.
            IcarusError: nothing can be written.
        """
        if state_kv_type is not None:
            check_saved_as(session.engine, state_kv_type)
        self._store, self._session, self._tokenizer = store, session, tokenizer
        self._state_kv_type = state_kv_type
        self.id = ""
        self.turns: list[SavedTurn] = []
        self.notices: list[str] = []
        self._failure: IcarusError | None = None
        self._known: list[tuple[Turn, SavedTurn]] = []
        self._writer: threading.Thread | None = None
        # Token ids of the state on disk, and of the last that was to be written while idle.
        self._on_disk: Tokens | None = None
        self._tried: Tokens | None = None
        self._closed = False
        self._stack = ExitStack()
        try:
            if resume is None:
                self._begin()
            else:
                # The engine may have died before anything was said.
                saved = store.find(resume, empty=take_back)
                self._stack.enter_context(store.held(saved.id))
                said = store.turns(saved.id)
                said = _without_open_question(said) if take_back else said
                self._take_over(saved, said, self._turns(saved, said))
            self._tell_what_may_go()
        except BaseException:
            self._stack.close()
            raise
        session.observer = self

    def _begin(self) -> None:
        session = self._session
        try:
            id_ = self._store.create(session.engine.base.path, self._tokenizer.sha256, session.names)
            self._stack.enter_context(self._store.held(id_))
        except (OSError, sqlite3.Error) as error:
            raise IcarusError(
                f"no conversation can be begun in {self._store.folder}: {error}",
                "Give --no-save to chat without saving",
            ) from error
        self.id, self.turns, self._known = id_, [], []
        self._on_disk = self._tried = None

    def _turns(self, saved: SavedSession, said: list[SavedTurn]) -> list[Turn]:
        """What was said, as the conversation holds it."""
        encode = None if saved.tokenizer_sha256 == self._tokenizer.sha256 else self._tokenizer.encode
        return [turn.turn(encode) for turn in said]

    def _take_over(self, saved: SavedSession, said: list[SavedTurn], turns: list[Turn]) -> None:
        """Goes on with a conversation that is held already."""
        session, store = self._session, self._store
        self.id, self.turns = saved.id, said
        same = saved.tokenizer_sha256 == self._tokenizer.sha256
        self._known = list(zip(turns, said, strict=True)) if same else []
        self._on_disk = self._tried = None
        session.conversation.turns = tuple(turns)
        session.engine.cells.truncate(session.sequence, 0)
        try:
            restored = load_state(session.engine, store.state_file(self.id))
        except (StateError, ContextFullError) as error:
            n = len(session.conversation.next_prompt())
            self.notices.append(f"conversation {self.id} goes on: {n} tokens will be encoded again: {error.what}")
            return
        session.engine.cells.drop(session.sequence)
        session.cached.sequence = restored.sequence
        # The process may have died after something was taken back.
        session.cached.shorten()
        tokens = session.engine.cells.tokens(restored.sequence)
        self.notices.append(f"conversation {self.id} goes on: {len(tokens)} tokens restored")
        if restored.saved_as is not None:
            self.notices.append(
                f"K and V were saved as {restored.saved_as}: what is restored is not bit for bit what was computed"
            )
        # Bits that were lost do not come back by writing more; a smaller file is written where one is asked for now.
        if self._state_kv_type in (None, restored.saved_as):
            self._on_disk = tokens.copy()

    def _tell_what_may_go(self) -> None:
        """A notice where a whole context's state would push those of other conversations out."""
        engine, store = self._session.engine, self._store
        kv_type = self._state_kv_type or engine.kv_type
        whole = engine.n_ctx * kv_bytes_per_token(engine.base.hp, kv_type)
        going = [saved.id for saved in store.next_to_go(MAX_STATE_BYTES, whole - _size(store.state_file(self.id)))]
        if going:
            more = f" and {len(going) - _NAMED} more" if len(going) > _NAMED else ""
            self.notices.append(
                f"saved KV states take {store.state_bytes / 2**30:.1f} of {MAX_STATE_BYTES / 2**30:.1f} GiB: leaving "
                f"this conversation may remove those of {', '.join(going[:_NAMED])}{more} (their transcripts stay)"
            )

    # -- what the session tells ----------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Writes what is new of the transcript. Where that fails the conversation goes on, and it is tried again."""
        try:
            if not self.id:
                self._begin()
            turns = self._session.conversation.turns
            # Only what is new is decoded: a conversation may be long, and this is the engine's thread.
            before = {id(turn): saved for turn, saved in self._known}
            self._known = [(turn, before.get(id(turn)) or saved_turn(turn, self._tokenizer)) for turn in turns]
            saved_turns = [saved for _, saved in self._known]
            self._store.save(self.id, saved_turns, self._tokenizer.sha256, self._session.names)
            self._failure = None
        except IcarusError as error:
            self._failure = error
        except (OSError, sqlite3.Error) as error:
            self._failure = IcarusError(
                f"the end of conversation {self.id} is not saved: {error}", "Free some space, or see to the folder"
            )

    def idle(self) -> None:
        """Writes the KV state, in a thread of its own, where it is not the one on disk.

        Where that fails the state is written on leaving, and what is wrong then is told.
        """
        if not (self.id and self._answered) or (self._writer is not None and self._writer.is_alive()):
            return
        try:
            tokens = self._tokens()
            if _same(tokens, self._on_disk) or _same(tokens, self._tried):
                return
            self._tried = tokens.copy()
            state = self._state()
            file = self._store.state_file(self.id)
            self._writer = threading.Thread(target=self._write, args=(state, file), name="icarus-state")
            self._writer.start()
        except (IcarusError, RuntimeError) as error:  # no memory, no thread
            self._writer = None
            logger.warning("the KV state is not saved while idle: %s", error)

    def _write(self, state: State, file: Path) -> None:
        try:
            write_state(state, file, self._state_kv_type)
            self._on_disk = state.tokens
        except Exception as error:  # nobody waits for this thread who could be told now
            logger.warning("the KV state is not saved while idle: %s", error)

    def _tokens(self) -> Tokens:
        """What the cache holds of the conversation, and nothing that was taken back."""
        session = self._session
        return session.engine.cells.tokens(session.sequence)[: session.cached.length]

    def _state(self) -> State:
        """A copy of the same, with K and V."""
        session, cells = self._session, self._session.engine.cells
        fork = cells.fork(session.sequence, session.cached.length)
        try:
            return take_state(session.engine, fork)
        finally:
            cells.drop(fork)

    @property
    def _answered(self) -> bool:
        return any(turn.role == "assistant" for turn in self._session.conversation.turns)

    def left(self) -> str:
        """Leaves the conversation as `close` does and begins another for the same session; gives what failed, or ""."""
        failed = self._leave()
        self.id, self._failure = "", None
        try:
            self._begin()
        except IcarusError as error:
            # It is tried again with the first change.
            self._failure = error
            failed.append(error)
        return " ".join(map(str, failed))

    def resume(self, conversation: str) -> tuple[tuple[Said, ...], tuple[str, ...]]:
        """Leaves the conversation as `close` does and goes on with another, the latest for "".

        Gives what was said there, and what to tell the person, what could not be saved of this one included.

        Raises:
            RequestError: there is no such conversation, it is this one, or another process holds it. IcarusError: it
                cannot be read. This one goes on then.
        """
        try:
            saved = self._other(conversation)
            with ExitStack() as stack:
                stack.enter_context(self._store.held(saved.id))
                said = self._store.turns(saved.id)
                turns = self._turns(saved, said)
                held = stack.pop_all()
        except (OSError, sqlite3.Error) as error:
            raise IcarusError(f"conversation {conversation} cannot be gone on with: {error}") from error
        self.notices = [str(error) for error in self._leave()]
        self._failure, self._stack = None, held
        self._take_over(saved, said, turns)
        self._tell_what_may_go()
        return tuple(history(said)), tuple(self.notices)

    def _other(self, conversation: str) -> SavedSession:
        if not conversation:
            others = [saved for saved in self._store.sessions() if saved.id != self.id]
            if not others:
                raise RequestError("there is no other saved conversation")
            return others[0]
        saved = self._store.find(conversation)
        if saved.id == self.id:
            raise RequestError(f"the conversation {saved.id} is this one")
        return saved

    def title(self) -> str:
        """That a person gave the conversation, or ""."""
        try:
            return self._store.title(self.id)
        except (OSError, sqlite3.Error) as error:
            logger.warning("the title of conversation %s cannot be read: %s", self.id, error)
            return ""

    # -- leaving -------------------------------------------------------------------------------------------------------

    def _leave(self) -> list[IcarusError]:
        """Writes the KV state, removes old ones, lets go; removes the conversation where nothing was said.

        Gives what failed, the transcript first: what can be computed again matters less.
        """
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        failed = [] if self._failure is None else [self._failure]
        try:
            if self.id and self._answered:
                self._write_last(self._store.state_file(self.id))
                self._store.trim(MAX_STATE_BYTES, keep=self.id)
            elif self.id and not self.turns:
                self._stack.close()
                self._store.delete(self.id)
            elif self.id:
                # All answers were taken back.
                self._store.state_file(self.id).unlink(missing_ok=True)
        except IcarusError as error:
            failed.append(error)
        except (OSError, sqlite3.Error) as error:
            failed.append(IcarusError(f"the conversation {self.id} cannot be left as it should be: {error}"))
        finally:
            self._stack.close()
        return failed

    def _write_last(self, file: Path) -> None:
        if _same(self._tokens(), self._on_disk) and file.exists():
            os.utime(file)  # used now
        else:
            write_state(self._state(), file, self._state_kv_type)

    def close(self) -> None:
        """Writes the KV state, or nothing where nothing was said, and lets go of the conversation; may be called twice.

        Raises:
            IcarusError: the state cannot be written, or not all of the transcript could.
        """
        if not self._closed:
            self._closed = True
            self._session.observer = None
            if failed := self._leave():
                raise IcarusError("; ".join(error.what for error in failed), failed[0].hint)

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self.close()
        except IcarusError:
            # What ended the session matters more.
            if error is None:
                raise


def _without_open_question(turns: list[SavedTurn]) -> list[SavedTurn]:
    """Without what asks for an answer behind the last answer; files there stay."""
    answered = max((i for i, turn in enumerate(turns) if turn.tokens is not None), default=-1)
    return [turn for i, turn in enumerate(turns) if i <= answered or turn.speaker not in (USER, HAND_OVER)]


def _same(tokens: Tokens, others: Tokens | None) -> bool:
    return others is not None and np.array_equal(tokens, others)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
