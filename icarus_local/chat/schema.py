"""The tables of the database of transcripts, and how an older database becomes one of this version."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from icarus_local.errors import IcarusError

# Each brings a database to its number; what is here is never changed.
_MIGRATIONS = (
    (
        """CREATE TABLE sessions (
            id TEXT PRIMARY KEY, created REAL NOT NULL, updated REAL NOT NULL,
            base TEXT NOT NULL, tokenizer_sha256 TEXT NOT NULL, agents TEXT NOT NULL
        )""",
        """CREATE TABLE turns (
            session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE, position INTEGER NOT NULL,
            speaker TEXT NOT NULL, text TEXT NOT NULL, tokens BLOB,
            PRIMARY KEY (session, position)
        )""",
    ),
    (
        "ALTER TABLE turns ADD COLUMN in_context INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE turns ADD COLUMN thought INTEGER NOT NULL DEFAULT 0",
    ),
    ("ALTER TABLE sessions ADD COLUMN title TEXT",),  # NULL is how the first question begins
)


def migrate(connection: sqlite3.Connection, file: Path) -> None:
    """Brings the database of `file` to this version; IcarusError where a newer one wrote it."""
    version = _version(connection)
    if version > len(_MIGRATIONS):
        raise IcarusError(f"{file} was written by a newer version", "Update icarus-local")
    # Readers do not wait for a writer. Where another process opens it just now, it or the next start does this.
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode = WAL")
    if version == len(_MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    # Another process may have done it meanwhile.
    for statement in (statement for step in _MIGRATIONS[_version(connection) :] for statement in step):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
