"""Conversations on disk: what was said is there again, whatever ended the program."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icarus_local.chat.conversation import Turn
from icarus_local.chat.store import SavedTurn, Store
from icarus_local.errors import IcarusError, RequestError
from icarus_local.text.template import Answer
from tests.chat.store_killed import BASE, version
from tests.kills import Killed

QUESTION, ANSWER = SavedTurn("user", "What?", None), SavedTurn("a", "That.", (5, 6))

ids = st.lists(st.integers(0, 1 << 20), max_size=5).map(tuple)
text = st.text(max_size=20)
turn = st.one_of(
    st.builds(SavedTurn, st.sampled_from(["user", "file", "hand-over"]), text, st.none(), st.booleans()),
    st.builds(SavedTurn, st.just("a"), text, ids, st.booleans(), st.integers(0, 5)),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(versions=st.lists(st.lists(turn, max_size=6), min_size=1, max_size=4))
def test_what_is_saved_last_is_what_is_there(store: Store, versions: list[list[SavedTurn]]) -> None:
    session = store.create(BASE, "ab", ["a"])
    for turns in versions:
        store.save(session, turns)
        assert Store(store.folder).turns(session) == turns
    store.delete(session)
    assert store.turns(session) == []


def test_ids_are_of_the_vocabulary_that_they_were_saved_with(store: Store) -> None:
    session = store.create(BASE, "ab", ["a"])
    store.save(session, [QUESTION, ANSWER])
    assert store.find(session).tokenizer_sha256 == "ab"
    store.save(session, [QUESTION, SavedTurn("a", "That.", (7,))], "cd")
    assert store.find(session).tokenizer_sha256 == "cd"


def code_points(text: str) -> list[int]:
    return [ord(character) for character in text]


@pytest.mark.parametrize(
    ("saved", "ids", "thought"),
    [
        (SavedTurn("a", "yes", (5,)), "yes", 0),
        (SavedTurn("a", "<think>a</think>b", (5, 6, 7), False, 2), "<think>a</think>b", 16),
        (SavedTurn("a", "a</think>b</think>c", (5, 6, 7), True, 2), "a</think>b</think>c", 18),
        # Told of, not thought.
        (SavedTurn("a", "a</think>b", (5, 6)), "a</think>b", 0),
        # Cut short.
        (SavedTurn("a", "<think>a", (5, 6), True, 2), "<think>a", 8),
        # The end of the thought is no text in its vocabulary.
        (SavedTurn("a", "ab", (5, 6), True, 1), "ab", 0),
        (SavedTurn("a", "", ()), "", 0),
    ],
)
def test_ids_for_another_vocabulary_are_made_of_the_text(saved: SavedTurn, ids: str, thought: int) -> None:
    assert saved.tokens is not None
    assert saved.turn() == Turn("a", Answer(saved.tokens), saved.in_context, saved.thought)
    assert saved.turn(code_points) == Turn("a", Answer(code_points(ids)), saved.in_context, thought)
    assert SavedTurn("file", "x", None, False).turn(code_points) == Turn("file", "x", False)


def test_conversations_are_found_by_the_beginning_of_their_id(store: Store) -> None:
    with pytest.raises(RequestError, match="there is no saved conversation"):
        store.find("")
    first, second, empty = (store.create(BASE, "ab", ["a", "b"]) for _ in range(3))
    store.save(first, [QUESTION, ANSWER])
    store.save(second, [SavedTurn("file", "name", None), SavedTurn("user", "x" * 100, None)])
    assert [saved.id for saved in store.sessions()] == [second, first]
    found = store.find(first[:5])
    assert (found.id, found.title, found.n_turns, found.agents) == (first, "What?", 2, ("a", "b"))
    assert store.find("").id == second
    assert store.find("").title == "x" * 59 + "…"
    for name in (empty, "nothing"):
        with pytest.raises(RequestError, match=f"there is no conversation {name}"):
            store.find(name)


def test_files_are_the_owners(store: Store) -> None:
    if sys.platform != "win32":
        assert store.folder.stat().st_mode & 0o777 == 0o700
        assert all(file.stat().st_mode & 0o777 == 0o600 for file in store.folder.iterdir())


# -- versions of the database ------------------------------------------------------------------------------------------

VERSION_1 = """
    PRAGMA journal_mode = WAL;
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY, created REAL NOT NULL, updated REAL NOT NULL,
        base TEXT NOT NULL, tokenizer_sha256 TEXT NOT NULL, agents TEXT NOT NULL
    );
    CREATE TABLE turns (
        session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE, position INTEGER NOT NULL,
        speaker TEXT NOT NULL, text TEXT NOT NULL, tokens BLOB,
        PRIMARY KEY (session, position)
    );
    PRAGMA user_version = 1;
    INSERT INTO sessions VALUES ('0123abcd', 10.0, 20.0, '/b.gguf', 'ab', '["a"]');
    INSERT INTO turns VALUES ('0123abcd', 0, 'system', 'Be good.', NULL);
    INSERT INTO turns VALUES ('0123abcd', 1, 'user', 'What?' || char(10, 10) || 'Reply.', NULL);
    INSERT INTO turns VALUES ('0123abcd', 2, 'a', 'That.', x'0500000006000000');
"""


def old_database(folder: Path) -> None:
    folder.mkdir()
    with closing(sqlite3.connect(folder / "sessions.db")) as connection:
        connection.executescript(VERSION_1)


def test_a_database_of_version_1_is_read_as_before(tmp_path: Path) -> None:
    old_database(tmp_path / "s")
    for _ in range(2):
        store = Store(tmp_path / "s")
        (saved,) = store.sessions()
        assert (saved.id, saved.created, saved.updated, saved.base) == ("0123abcd", 10.0, 20.0, "/b.gguf")
        assert (saved.tokenizer_sha256, saved.agents, saved.title, saved.n_turns) == ("ab", ("a",), "What?", 3)
        turns = store.turns("0123abcd")
        assert turns == [SavedTurn("system", "Be good.", None), SavedTurn("user", "What?\n\nReply.", None), ANSWER]
        assert all(turn.in_context and not turn.thought for turn in turns)
    more = [*turns, QUESTION, SavedTurn("a", "a</think>b", (1, 2), False, 1)]
    store.save("0123abcd", more)
    assert Store(tmp_path / "s").turns("0123abcd") == more
    store.rename("0123abcd", "Old")
    assert [saved.title for saved in Store(tmp_path / "s").sessions()] == ["Old"]
    assert store.search("what")[0].turn == 1


@pytest.mark.parametrize("old", [True, False])
def test_several_may_open_a_database_that_is_old_or_not_there_yet(tmp_path: Path, old: bool) -> None:
    failed: list[BaseException] = []

    def opened(folder: Path, together: threading.Barrier) -> None:
        together.wait()
        try:
            Store(folder).sessions()
        except BaseException as error:
            failed.append(error)

    for i in range(40):
        folder, together = tmp_path / f"{i}", threading.Barrier(4)
        if old:
            old_database(folder)
        threads = [threading.Thread(target=opened, args=(folder, together)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


def test_a_broken_or_newer_database_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path / "newer")
    with sqlite3.connect(store.folder / "sessions.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(IcarusError, match="newer version"):
        Store(store.folder)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sessions.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(IcarusError, match=r"cannot be opened.*--no-save"):
        Store(tmp_path / "broken")
    (tmp_path / "file").touch()
    with pytest.raises(IcarusError, match="cannot be opened"):
        Store(tmp_path / "file")


# -- what KV states take -----------------------------------------------------------------------------------------------


def with_states(store: Store, n: int) -> list[str]:
    """Conversations with states of 100 bytes, the oldest first."""
    sessions = [store.create(BASE, "ab", ["a"]) for _ in range(n)]
    for i, session in enumerate(sessions):
        store.save(session, [QUESTION])
        store.state_file(session).write_bytes(bytes(100))
        os.utime(store.state_file(session), (i + 1, i + 1))
    return sessions


def states(store: Store, sessions: list[str]) -> list[bool]:
    return [store.state_file(session).exists() for session in sessions]


def test_the_oldest_states_go_and_their_transcripts_stay(store: Store) -> None:
    sessions = with_states(store, 4)
    assert store.state_bytes == 400
    assert store.trim(400) == 0
    assert store.trim(250) == 2
    assert states(store, sessions) == [False, False, True, True]
    assert len(store.sessions()) == 4


def test_who_goes_next_is_said_before_it_goes(store: Store) -> None:
    sessions = with_states(store, 4)
    assert store.next_to_go(400, 0) == []
    assert [saved.id for saved in store.next_to_go(400, 101)] == sessions[:2]
    assert [saved.title for saved in store.next_to_go(100, 10**9)] == ["What?"] * 4
    with store.held(sessions[0]):
        assert [saved.id for saved in store.next_to_go(400, 101)] == sessions[1:3]
    # What has no conversation goes without being named.
    (store.folder / "nobody.state").write_bytes(bytes(100))
    os.utime(store.folder / "nobody.state", (0, 0))
    assert [saved.id for saved in store.next_to_go(400, 100)] == sessions[:1]
    assert states(store, sessions) == [True] * 4
    assert store.trim(400) == 1
    assert states(store, sessions) == [True] * 4
    assert store.trim(300) == 1
    assert states(store, sessions) == [False, True, True, True]


def test_what_was_just_written_and_what_is_held_stays(store: Store) -> None:
    sessions = with_states(store, 4)
    # Not the newest by its time, as where a clock was set back.
    with store.held(sessions[1]):
        assert store.trim(100, keep=sessions[2]) == 2
        assert states(store, sessions) == [False, True, True, False]
    assert store.trim(0, keep=sessions[2]) == 1
    assert states(store, sessions) == [False, False, True, False]


def test_what_a_killed_process_left_of_a_state_goes(store: Store) -> None:
    first, second, third = with_states(store, 3)
    parts = [store.folder / f".{session}.state.99.part" for session in (first, second, third)]
    parts[0].touch()
    with store.held(first):
        assert not parts[0].exists()
        for part in parts:
            part.touch()  # the first is being written
        assert store.trim(1000) == 0
    assert [part.exists() for part in parts] == [True, False, False]
    store.delete(first)
    assert not parts[0].exists()


# -- other processes ---------------------------------------------------------------------------------------------------


def test_a_second_process_is_told(store: Store) -> None:
    session, other = with_states(store, 2)
    code = (
        "import sys; from pathlib import Path; from icarus_local.chat.store import Store\n"
        f"with Store(Path({str(store.folder)!r})).held({session!r}): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        for use in (store.held(session).__enter__, lambda: store.delete(session)):
            with pytest.raises(RequestError, match="is open in another process"):
                use()
        assert [saved.id for saved in store.next_to_go(0, 0)] == [other]
        assert store.trim(0) == 1
        assert states(store, [session, other]) == [True, False]
        process.kill()
    with store.held(session):
        pass


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
def test_killed_200_times_a_transcript_is_one_that_was_saved(store: Store) -> None:
    rng, now, reached = random.Random(5), 0, 0
    with Killed("tests.chat.store_killed", str(store.folder)) as killed:
        (session,) = (saved.id for saved in store.sessions())
        for _ in range(200):
            said = killed.after(rng.uniform(0, 0.04))
            before = int(said[-1]) if said else now
            turns = store.turns(session)
            now = int(turns[-1].text)
            # What was said to be saved, or the one that was being saved.
            assert now in (before, before + 1)
            assert turns == version(now)
            reached += now > before
    # Kills did meet it between writing and saying so.
    assert now > 100
    assert reached > 5
    with closing(sqlite3.connect(store.folder / "sessions.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
