"""Conversations on disk: what was said is there again, whatever ended the program."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icarus_local.chat.agents import Agent
from icarus_local.chat.events import AnswerDone
from icarus_local.chat.keeper import Keeper
from icarus_local.chat.roster import make_ready
from icarus_local.chat.session import Session
from icarus_local.chat.store import SavedTurn, Store
from icarus_local.engine.engine import Engine
from icarus_local.errors import IcarusError, RequestError
from icarus_local.text.template import ChatTemplate
from icarus_local.text.tokenizer import Tokenizer
from tests.agents import add_agents, convert
from tests.gguf_files import quantised
from tests.tiny import Tiny

BASE = Path("base.gguf")
QUESTION, ANSWER = SavedTurn("user", "What?\n\nReply.", None), SavedTurn("a", "That.", (5, 6))

turn = st.one_of(
    st.builds(SavedTurn, st.just("user"), st.text(max_size=20), st.none()),
    st.builds(SavedTurn, st.just("a"), st.text(max_size=20), st.lists(st.integers(0, 1 << 20), max_size=5).map(tuple)),
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "sessions")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(versions=st.lists(st.lists(turn, max_size=6), min_size=1, max_size=4))
def test_what_is_saved_last_is_what_is_there(store: Store, versions: list[list[SavedTurn]]) -> None:
    session = store.create(BASE, "ab", ["a"])
    for turns in versions:
        store.save(session, turns)
        assert Store(store.folder).turns(session) == turns
    store.delete(session)
    assert store.turns(session) == []


def test_conversations_are_found_by_the_beginning_of_their_id(store: Store) -> None:
    with pytest.raises(RequestError, match="there is no saved conversation"):
        store.find("")
    first, second, empty = (store.create(BASE, "ab", ["a", "b"]) for _ in range(3))
    store.save(first, [QUESTION, ANSWER])
    store.save(second, [SavedTurn("user", "x" * 100, None)])
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


def test_the_oldest_states_go_and_their_transcripts_stay(store: Store) -> None:
    sessions = [store.create(BASE, "ab", ["a"]) for _ in range(4)]
    for i, session in enumerate(sessions):
        store.save(session, [QUESTION])
        store.state_file(session).write_bytes(bytes(100))
        os.utime(store.state_file(session), (i, i))
    assert store.trim(400) == 0
    assert store.trim(250) == 2
    assert [store.state_file(session).exists() for session in sessions] == [False, False, True, True]
    assert len(store.sessions()) == 4


def test_a_second_process_is_told(store: Store) -> None:
    session = store.create(BASE, "ab", ["a"])
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
        process.kill()
    with store.held(session):
        pass


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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
def test_killed_at_any_moment_a_transcript_has_all_that_was_saved(store: Store) -> None:
    rng = random.Random(5)
    for _ in range(25):
        command = [sys.executable, "-m", "tests.chat.store_killed", str(store.folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            session = process.stdout.readline().strip()
            time.sleep(rng.uniform(0, 0.1))
            process.kill()
            said = process.stdout.read().split()
        turns = store.turns(session)
        # What was said to be saved, and at most one more.
        assert len(turns) - int(said[-1] if said else 0) in (0, 1)
        assert [saved.text for saved in turns] == [f"question {i}" if i % 2 == 0 else f"{i}" for i in range(len(turns))]
        store.delete(session)


class World:
    """A base with an agent, opened anew for each part of a conversation."""

    def __init__(self, base: Path, adapter: Path, store: Store) -> None:
        self.base, self.adapter, self.store = base, adapter, store

    def talk(self, question: str, resume: str | None) -> tuple[AnswerDone, Keeper]:
        """One question in a program of its own."""
        agents = [Agent(name="a", adapter=str(self.adapter), max_tokens=12)]
        with ExitStack() as stack:
            engine = stack.enter_context(Engine(self.base, n_ctx=512, kv_type="f32", n_threads=1, device="cpu"))
            tokenizer = Tokenizer(self.base)
            stack.callback(tokenizer.close)
            assert tokenizer.template_source is not None
            template = ChatTemplate(tokenizer.template_source, tokenizer)
            session = Session(engine, tokenizer, template, make_ready(agents, engine, Path, "", template.sha256))
            keeper = stack.enter_context(Keeper(self.store, session, tokenizer, resume))
            (answer,) = (event for event in session.ask(question) if isinstance(event, AnswerDone))
            return answer, keeper


@pytest.fixture
def world(tiny: Tiny, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("ICARUS_HOME", str(tmp_path / "home"))
    return World(tiny.path, convert(add_agents(tiny.model, {"A": 0.3}), "A", tiny.path, tmp_path), store)


def test_a_conversation_goes_on_and_nothing_is_encoded_again(world: World) -> None:
    first, keeper = world.talk("one", resume=None)
    second, again = world.talk("two", resume=keeper.id[:4])
    assert again.id == keeper.id
    assert [(saved.speaker, saved.text) for saved in again.turns][-1] == ("a", first.text)
    # All but the answer's last token, which nothing had encoded yet.
    assert second.reused == first.reused + first.encoded + first.generated - 1
    assert "tokens restored" in again.notices[0]
    # The same two questions in one program.
    _, third = world.talk("one", resume=None)
    assert world.talk("two", resume=third.id)[0].text == second.text


def test_without_a_state_that_fits_it_is_said_and_encoded_again(world: World, tiny: Tiny, tmp_path: Path) -> None:
    first, keeper = world.talk("one", resume=None)
    world.store.state_file(keeper.id).write_bytes(b"nonsense")
    second, again = world.talk("two", resume="")
    assert second.reused == 0
    assert second.encoded > first.encoded + first.generated
    assert "tokens will be encoded again: the state" in again.notices[0]
    world.base = quantised(tiny.path, tmp_path / "q8.gguf", "Q8_0")
    third, again = world.talk("three", resume="")
    assert third.reused == 0
    assert "another base" in again.notices[0]


def test_nothing_said_leaves_nothing(world: World, tiny: Tiny) -> None:
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(tiny.path, n_ctx=256, n_threads=1, device="cpu"))
        tokenizer = Tokenizer(tiny.path)
        stack.callback(tokenizer.close)
        assert tokenizer.template_source is not None
        template = ChatTemplate(tokenizer.template_source, tokenizer)
        session = Session(engine, tokenizer, template, make_ready([Agent(name="a")], engine, Path, "", ""))
        stack.enter_context(Keeper(world.store, session, tokenizer))
    assert world.store.sessions() == []
    assert sorted(file.name for file in world.store.folder.iterdir()) == ["sessions.db"]


def test_a_full_disk_ends_the_saving_and_not_the_conversation(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Store, "save", full)
    with pytest.raises(IcarusError, match=r"is not saved: database or disk is full"):
        world.talk("one", resume=None)
