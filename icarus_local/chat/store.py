"""Conversations on disk: a database of transcripts, and beside it the KV states that spare encoding them again."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from icarus_local.chat.conversation import Turn
from icarus_local.errors import IcarusError, RequestError
from icarus_local.text.template import Answer

_MIGRATIONS = (
    """
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY, created REAL NOT NULL, updated REAL NOT NULL,
        base TEXT NOT NULL, tokenizer_sha256 TEXT NOT NULL, agents TEXT NOT NULL
    );
    CREATE TABLE turns (
        session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE, position INTEGER NOT NULL,
        speaker TEXT NOT NULL, text TEXT NOT NULL, tokens BLOB,
        PRIMARY KEY (session, position)
    );
    """,
)
_WAIT_S = 5.0  # for another process that writes just now


@dataclass(frozen=True, slots=True)
class SavedTurn:
    """A message as it was said. `tokens` are those that an agent generated; None for a person's and the system's."""

    speaker: str
    text: str
    tokens: tuple[int, ...] | None

    def turn(self, encode: Callable[[str], Sequence[int]] | None = None) -> Turn:
        """As the conversation holds it; `encode` makes ids for another vocabulary than the answer was said in."""
        if self.tokens is None:
            return Turn(self.speaker, self.text)
        return Turn(self.speaker, Answer(encode(self.text) if encode else self.tokens))


@dataclass(frozen=True, slots=True)
class SavedSession:
    """A conversation that was saved.

    Attributes:
        created, updated: seconds since 1970. base: its file. agents: names, in the order in which they were given.
        tokenizer_sha256: of the vocabulary that its ids come from. title: how the first question begins.
    """

    id: str
    created: float
    updated: float
    base: str
    tokenizer_sha256: str
    agents: tuple[str, ...]
    title: str
    n_turns: int


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
            self._migrate()
        except (OSError, sqlite3.Error) as error:
            raise IcarusError(
                f"the conversations in {folder} cannot be opened: {error}", "Give --no-save to chat without saving"
            ) from error

    def _migrate(self) -> None:
        with self._connection() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > len(_MIGRATIONS):
                raise IcarusError(f"{self._file} was written by a newer version", "Update icarus-local")
            connection.execute("PRAGMA journal_mode = WAL")
            for number, script in enumerate(_MIGRATIONS[version:], version + 1):
                connection.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")

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
            connection.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", values)
        return session

    def save(self, session: str, turns: Sequence[SavedTurn]) -> None:
        """Makes a conversation's saved turns these; what is the same is not written again."""
        with self._connection() as connection:
            known = self._turns(connection, session)
            same = next((i for i, (a, b) in enumerate(zip(known, turns, strict=False)) if a != b), len(known))
            same = min(same, len(turns))
            connection.execute("DELETE FROM turns WHERE session = ? AND position >= ?", (session, same))
            connection.executemany(
                "INSERT INTO turns VALUES (?, ?, ?, ?, ?)",
                [
                    (session, i, turn.speaker, turn.text, _blob(turn.tokens))
                    for i, turn in enumerate(turns)
                    if i >= same
                ],
            )
            connection.execute("UPDATE sessions SET updated = ? WHERE id = ?", (time.time(), session))

    def sessions(self) -> list[SavedSession]:
        """All conversations in which something was said, the latest first."""
        query = """
            SELECT id, created, updated, base, tokenizer_sha256, agents,
                (SELECT text FROM turns WHERE session = id AND speaker = 'user' ORDER BY position LIMIT 1),
                (SELECT count(*) FROM turns WHERE session = id)
            FROM sessions ORDER BY updated DESC
        """
        with self._connection() as connection:
            rows = connection.execute(query).fetchall()
        return [
            SavedSession(id_, created, updated, base, tokenizer, tuple(json.loads(agents)), _title(text), n)
            for id_, created, updated, base, tokenizer, agents, text, n in rows
            if n
        ]

    def find(self, session: str) -> SavedSession:
        """A conversation by its id or the beginning of it; the latest for "".

        Raises:
            RequestError: there is none, or more than one.
        """
        found = [saved for saved in self.sessions() if saved.id.startswith(session)]
        if not found:
            what = f"there is no conversation {session}" if session else "there is no saved conversation"
            raise RequestError(what, "`icarus-local sessions list` shows those that there are")
        if session and len(found) > 1:
            raise RequestError(f"{session} is the beginning of {len(found)} conversations", "Give more of the id")
        return found[0]

    def turns(self, session: str) -> list[SavedTurn]:
        """What was said in a conversation."""
        with self._connection() as connection:
            return self._turns(connection, session)

    @staticmethod
    def _turns(connection: sqlite3.Connection, session: str) -> list[SavedTurn]:
        query = "SELECT speaker, text, tokens FROM turns WHERE session = ? ORDER BY position"
        rows = connection.execute(query, (session,)).fetchall()
        return [SavedTurn(speaker, text, _tokens(blob)) for speaker, text, blob in rows]

    def delete(self, session: str) -> None:
        """Removes a conversation, its state included; raises RequestError where another process holds it."""
        with self.held(session):
            with self._connection() as connection:
                connection.execute("DELETE FROM sessions WHERE id = ?", (session,))
            self.state_file(session).unlink(missing_ok=True)
        self._lock_file(session).unlink(missing_ok=True)

    def trim(self, max_bytes: int) -> int:
        """Removes the KV states used longest ago until all take at most `max_bytes`; gives how many went."""
        states = sorted(self.folder.glob("*.state"), key=lambda file: file.stat().st_mtime, reverse=True)
        total = removed = 0
        for file in states:
            size = file.stat().st_size
            total += size
            if total > max_bytes:
                file.unlink(missing_ok=True)
                total, removed = total - size, removed + 1
        return removed

    def _lock_file(self, session: str) -> Path:
        return self.folder / f"{session}.lock"

    @contextmanager
    def held(self, session: str) -> Iterator[None]:
        """Holds a conversation; the operating system lets go of it when the process ends, however it does.

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
            yield
        finally:
            lock.release()


def _blob(tokens: tuple[int, ...] | None) -> bytes | None:
    return None if tokens is None else np.array(tokens, "<i4").tobytes()


def _tokens(blob: bytes | None) -> tuple[int, ...] | None:
    return None if blob is None else tuple(np.frombuffer(blob, "<i4").tolist())


def _title(text: str | None) -> str:
    # The first message may go on with an agent's instruction, after a blank line.
    line = " ".join((text or "").partition("\n\n")[0].split())
    return line if len(line) <= 60 else f"{line[:59]}…"
