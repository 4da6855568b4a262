"""Conversations on disk: a database of transcripts, and beside it the KV states that spare encoding them again."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from icarus_local.chat.conversation import FILE, HAND_OVER, SYSTEM, Turn
from icarus_local.chat.events import Said
from icarus_local.chat.files import FILE_MESSAGE, one_line
from icarus_local.chat.schema import migrate
from icarus_local.chat.search import excerpt, find_folded
from icarus_local.chat.thoughts import ThoughtSplitter
from icarus_local.errors import IcarusError, RequestError
from icarus_local.text.template import THINK, THOUGHT, Answer

FAILURES = (IcarusError, OSError, sqlite3.Error)
"""What may come of anything that is done with saved conversations."""

_WAIT_S = 5.0  # for another process that writes just now
_MAX_TITLE = 120  # characters
_MAX_FOUND = 200


@dataclass(frozen=True, slots=True)
class SavedTurn:
    """A contribution as it was made; speakers are those of `Turn`.

    Attributes:
        tokens: those that an agent generated; None for all other text.
        in_context: whether agents still read it. thought: how many of the first tokens are the answer's thought.
    """

    speaker: str
    text: str
    tokens: tuple[int, ...] | None
    in_context: bool = True
    thought: int = 0

    def turn(self, encode: Callable[[str], Sequence[int]] | None = None) -> Turn:
        """As the conversation holds it; `encode` makes ids for another vocabulary than the answer was said in."""
        if self.tokens is None:
            return Turn(self.speaker, self.text, self.in_context)
        if encode is None:
            return Turn(self.speaker, Answer(self.tokens), self.in_context, self.thought)
        first, rest = (encode(text) if text else () for text in self._parts(len(self.tokens)))
        return Turn(self.speaker, Answer([*first, *rest]), self.in_context, len(first))

    @property
    def said(self) -> Said | None:
        """As it is shown; None for what is particular to the program."""
        if self.tokens is None:
            file = FILE_MESSAGE.match(self.text) if self.speaker == FILE else None
            if self.speaker in (SYSTEM, HAND_OVER):
                return None
            return Said("you", file[1] if file else self.text, False, self.in_context, file=file is not None)
        # A prompt may have opened the thought.
        splitter = ThoughtSplitter(bool(self.thought) and not self.text.lstrip().startswith(THINK))
        pieces = [*splitter.add(self.text), *splitter.finish()]
        thought, text = ("".join(piece for piece, of in pieces if of is which) for which in (True, False))
        return Said(self.speaker, text, True, self.in_context, thought)

    def _parts(self, n_tokens: int) -> tuple[str, str]:
        """The text of an answer's thought and what follows it."""
        if not self.thought:
            return "", self.text
        if self.thought == n_tokens:
            return self.text, ""  # it was cut short
        before, end, after = self.text.rpartition(THOUGHT)
        return before + end, after


@dataclass(frozen=True, slots=True)
class SavedSession:
    """A conversation that was saved.

    Attributes:
        created, updated: seconds since 1970. base: its file. agents: names of those who took part last.
        tokenizer_sha256: of the vocabulary that its ids come from.
        title: that it was given, else how the first question begins.
    """

    id: str
    created: float
    updated: float
    base: str
    tokenizer_sha256: str
    agents: tuple[str, ...]
    title: str
    n_turns: int


@dataclass(frozen=True, slots=True)
class Found:
    """A place that holds what was looked for.

    Attributes:
        turn: index among the conversation's `turns`, -1 for its title. speaker: as it is shown, "" for the title.
        excerpt: the place and some of what stands around it, in a line.
    """

    session: SavedSession
    turn: int
    speaker: str
    excerpt: str


class Store:
    """All saved conversations, in one folder. One process at a time may hold a conversation."""

    def __init__(self, folder: Path) -> None:
        """Opens or makes the folder and its database, both for their owner only.

        Raises:
            IcarusError: it cannot be used, or was written by a newer version.
        """
        self.folder = folder
        self._file = folder / "sessions.db"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._file.exists():
                os.close(os.open(self._file, os.O_CREAT | os.O_WRONLY, 0o600))
            with self._connection() as connection:
                migrate(connection, self._file)
        except (OSError, sqlite3.Error) as error:
            raise IcarusError(
                f"the conversations in {folder} cannot be opened: {error}", "Give --no-save to chat without saving"
            ) from error

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._file, timeout=_WAIT_S)) as connection:
            connection.execute("PRAGMA foreign_keys = ON")
            with connection:
                yield connection

    def state_file(self, session: str) -> Path:
        """Where a conversation's KV state lies, if it has one."""
        return self.folder / f"{session}.state"

    def create(self, base: Path, tokenizer_sha256: str, agents: Sequence[str]) -> str:
        """Begins a conversation and gives its id."""
        session, now = secrets.token_hex(4), time.time()
        values = (session, now, now, str(base.resolve()), tokenizer_sha256, json.dumps(list(agents)))
        with self._connection() as connection:
            connection.execute(
                "INSERT INTO sessions (id, created, updated, base, tokenizer_sha256, agents) VALUES (?, ?, ?, ?, ?, ?)",
                values,
            )
        return session

    def save(
        self,
        session: str,
        turns: Sequence[SavedTurn],
        tokenizer_sha256: str | None = None,
        agents: Sequence[str] | None = None,
    ) -> None:
        """Makes a conversation's saved turns these; what is the same is not written again.

        `tokenizer_sha256` says which vocabulary all their ids are of, and `agents` who takes part, where that may be
        another than the first.
        """
        query = """
            UPDATE sessions
            SET updated = ?, tokenizer_sha256 = coalesce(?, tokenizer_sha256), agents = coalesce(?, agents)
            WHERE id = ?
        """
        with self._connection() as connection:
            known = self._turns(connection, session)
            connection.execute("DELETE FROM turns WHERE session = ? AND position >= ?", (session, len(turns)))
            connection.executemany(
                "INSERT OR REPLACE INTO turns (session, position, speaker, text, tokens, in_context, thought) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (session, i, turn.speaker, turn.text, _blob(turn.tokens), turn.in_context, turn.thought)
                    for i, turn in enumerate(turns)
                    if i >= len(known) or turn != known[i]
                ],
            )
            named = None if agents is None else json.dumps(list(agents))
            connection.execute(query, (time.time(), tokenizer_sha256, named, session))

    def sessions(self, empty: bool = False) -> list[SavedSession]:
        """All conversations in which something was said, the latest first; with `empty` the others too."""
        query = """
            SELECT id, created, updated, base, tokenizer_sha256, agents,
                (SELECT text FROM turns WHERE session = id AND speaker = 'user' AND tokens IS NULL
                    ORDER BY position LIMIT 1),
                (SELECT count(*) FROM turns WHERE session = id), title
            FROM sessions ORDER BY updated DESC
        """
        with self._connection() as connection:
            rows = connection.execute(query).fetchall()
        return [
            SavedSession(
                id_, created, updated, base, tokenizer, tuple(json.loads(agents)), title or title_from(text), n
            )
            for id_, created, updated, base, tokenizer, agents, text, n, title in rows
            if n or empty
        ]

    def find(self, session: str, empty: bool = False) -> SavedSession:
        """A conversation by its id or the beginning of it; the latest for "". `empty` is as of `sessions`.

        Raises:
            RequestError: there is none, or more than one.
        """
        found = [saved for saved in self.sessions(empty) if saved.id.startswith(session)]
        if not found:
            what = f"there is no conversation {session}" if session else "there is no saved conversation"
            raise RequestError(what, "`icarus-local sessions list` shows those that there are")
        if session and len(found) > 1:
            raise RequestError(f"{session} is the beginning of {len(found)} conversations", "Give more of the id")
        return found[0]

    def title(self, session: str) -> str:
        """The title that a conversation was given, or ""."""
        with self._connection() as connection:
            found = connection.execute("SELECT title FROM sessions WHERE id = ?", (session,)).fetchone()
        return (found and found[0]) or ""

    def rename(self, session: str, title: str) -> None:
        """Gives a conversation a title, of which a line is made; "" gives it the one of its first question again.

        Raises:
            RequestError: there is no such conversation, or the title is too long.
        """
        line = one_line(" ".join(title.split()))
        if len(line) > _MAX_TITLE:
            raise RequestError(f"the title has {len(line)} characters; {_MAX_TITLE} are possible", "Give a shorter one")
        with self._connection() as connection:
            changed = connection.execute("UPDATE sessions SET title = ? WHERE id = ?", (line or None, session))
            if not changed.rowcount:
                raise RequestError(f"there is no conversation {session}", "It may have been removed")

    def search(self, text: str) -> list[Found]:
        """The turns and titles that hold a text, upper and lower case being the same; the latest conversation first.

        Only what is shown is looked through, and of a file its name. At most 200 places are given.
        """
        what, found = text.strip().casefold(), list[Found]()
        query = """
            SELECT position, speaker, text, tokens, in_context, thought FROM turns
            WHERE session = ? AND holds(text) ORDER BY position
        """
        if not what:
            return found
        sessions = self.sessions()
        with self._connection() as connection:
            connection.create_function("holds", 1, lambda text: what in text.casefold(), deterministic=True)
            titles = dict(connection.execute("SELECT id, title FROM sessions WHERE title NOT NULL").fetchall())
            for saved in sessions:
                title = titles.get(saved.id, "")
                if place := find_folded(title, what):
                    found.append(Found(saved, -1, "", excerpt(title, *place)))
                for position, *row in connection.execute(query, (saved.id,)):
                    if (said := _saved_turn(row).said) is None:
                        continue
                    shown = next((text for text in (said.text, said.thought) if find_folded(text, what)), "")
                    if place := find_folded(shown, what):
                        found.append(Found(saved, position, said.who, excerpt(shown, *place)))
                if len(found) >= _MAX_FOUND:
                    break
        return found[:_MAX_FOUND]

    def turns(self, session: str) -> list[SavedTurn]:
        """What was said in a conversation."""
        with self._connection() as connection:
            return self._turns(connection, session)

    @staticmethod
    def _turns(connection: sqlite3.Connection, session: str) -> list[SavedTurn]:
        query = "SELECT speaker, text, tokens, in_context, thought FROM turns WHERE session = ? ORDER BY position"
        return [_saved_turn(row) for row in connection.execute(query, (session,)).fetchall()]

    def delete(self, session: str) -> None:
        """Removes a conversation, its state included; raises RequestError where another process holds it."""
        with self.held(session):
            with self._connection() as connection:
                connection.execute("DELETE FROM sessions WHERE id = ?", (session,))
            self.state_file(session).unlink(missing_ok=True)
        self._lock_file(session).unlink(missing_ok=True)

    # -- what KV states take -------------------------------------------------------------------------------------------

    @property
    def state_bytes(self) -> int:
        """Bytes that the KV states of all conversations take."""
        return sum(size for _, size in self._states())

    def _states(self) -> list[tuple[str, int]]:
        """Conversation and bytes of each KV state, the one used longest ago first."""
        found = []
        for file in self.folder.glob("*.state"):
            # Another process may just have removed it.
            with contextlib.suppress(FileNotFoundError):
                facts = file.stat()
                found.append((facts.st_mtime_ns, file.stem, facts.st_size))
        return [(session, size) for _, session, size in sorted(found)]

    def _unfinished(self, session: str = "*") -> Iterator[Path]:
        """States that are being written, or were when their process was killed."""
        return self.folder.glob(f".{session}.state.*.part")

    def next_to_go(self, max_bytes: int, extra: int) -> list[SavedSession]:
        """Whose states `trim` would remove if `extra` bytes more were written, in the order in which they would go."""
        known = {saved.id: saved for saved in self.sessions()}
        total, going = self.state_bytes + extra, []
        for session, size in self._states():
            if total <= max_bytes:
                break
            with contextlib.suppress(RequestError, OSError), self.held(session):
                total -= size
                going.append(session)
        return [known[session] for session in going if session in known]

    def trim(self, max_bytes: int, keep: str = "") -> int:
        """Removes the KV states used longest ago until all take at most `max_bytes`; gives how many went.

        That of `keep` and those of conversations that a process holds stay, even where they take more.
        """
        removed, total = 0, self.state_bytes
        for session, size in self._states():
            if total <= max_bytes:
                break
            if session != keep:
                # Held by a process, or open in one.
                with contextlib.suppress(RequestError, OSError), self.held(session):
                    self.state_file(session).unlink(missing_ok=True)
                    removed, total = removed + 1, total - size
        for file in self._unfinished():
            with contextlib.suppress(RequestError, OSError), self.held(file.name.split(".")[1]):
                pass  # that removes it
        return removed

    # -- one process at a time -----------------------------------------------------------------------------------------

    def _lock_file(self, session: str) -> Path:
        return self.folder / f"{session}.lock"

    @contextmanager
    def held(self, session: str) -> Iterator[None]:
        """Holds a conversation; the operating system lets go of it when the process ends, however it does.

        What such a process has left of a state that it wrote is removed.

        Raises:
            RequestError: another process holds it.
        """
        # Taken in the engine's thread and let go of in another.
        lock = FileLock(self._lock_file(session), timeout=0, mode=0o600, thread_local=False)
        try:
            lock.acquire()
        except Timeout as error:
            raise RequestError(
                f"the conversation {session} is open in another process", "Close it there, or begin a new one"
            ) from error
        try:
            for file in self._unfinished(session):
                with contextlib.suppress(OSError):
                    file.unlink()
            yield
        finally:
            lock.release()


def _blob(tokens: tuple[int, ...] | None) -> bytes | None:
    return None if tokens is None else np.array(tokens, "<i4").tobytes()


def _tokens(blob: bytes | None) -> tuple[int, ...] | None:
    return None if blob is None else tuple(np.frombuffer(blob, "<i4").tolist())


def _saved_turn(row: Sequence[Any]) -> SavedTurn:
    speaker, text, blob, in_context, thought = row
    return SavedTurn(speaker, text, _tokens(blob), bool(in_context), thought)


def title_from(text: str | None) -> str:
    """How the first question begins, if there is one."""
    # Version 1 kept an agent's instruction in the question's message, after a blank line.
    line = " ".join((text or "").strip().partition("\n\n")[0].split())
    return line if len(line) <= 60 else f"{line[:59]}…"
