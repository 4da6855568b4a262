"""Leaving a conversation for another while the program runs: both are whole, whatever goes wrong."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from icarus_local.chat.agents import base_agent
from icarus_local.chat.events import CacheUsed, ConversationResumed, Said
from icarus_local.chat.keeper import Keeper
from icarus_local.chat.requests import AddAgent, BeginAnew, RemoveAgent, Resume, TakeBack
from icarus_local.chat.session import Session
from icarus_local.chat.store import Store
from icarus_local.engine.state import State
from icarus_local.errors import IcarusError, RequestError, StateError
from tests.chat.chats import agree
from tests.chat.keeping import World, Writes, ask, ids


def resumed(session: Session, conversation: str) -> ConversationResumed:
    event, *_ = session.run(Resume(conversation))
    assert isinstance(event, ConversationResumed)
    return event


def asked(store: Store, conversation: str) -> list[str]:
    return [turn.text for turn in store.turns(conversation) if turn.speaker == "user"]


def test_both_conversations_go_on_where_they_were(world: World, store: Store) -> None:
    with world.opened() as (session, keeper):
        first = keeper.id
        answer, one = ask(session, "one"), ids(session)
        list(session.run(BeginAnew()))
        second = keeper.id
        ask(session, "another")
        two = ids(session)
        event = resumed(session, first[:5])
        assert event == ConversationResumed(
            first,
            (Said("you", "one", False), Said("a", answer.text, True)),
            (f"conversation {first} goes on: {len(one)} tokens restored",),
        )
        assert (keeper.id, ids(session)) == (first, one)
        assert session.engine.cells.n_used == len(one)
        again = ask(session, "and now?")
        assert again.reused == len(one)
        agree(session)
        # The latest other one.
        assert resumed(session, "").conversation == second
        assert ids(session) == two
        assert ask(session, "go on").reused == len(two)
    assert asked(store, first) == ["one", "and now?"]
    assert asked(store, second) == ["another", "go on"]


def test_the_cache_that_it_takes_is_told(world: World) -> None:
    _, keeper = world.talk("one")
    with world.opened() as (session, _):
        (used,) = (event for event in session.run(Resume(keeper.id)) if isinstance(event, CacheUsed))
        assert used.tokens == len(ids(session))


def test_one_in_which_nothing_was_said_is_not_kept(world: World, store: Store) -> None:
    _, before = world.talk("one")
    with world.opened() as (session, keeper):
        empty = keeper.id
        resumed(session, before.id)
        assert [saved.id for saved in store.sessions(empty=True)] == [before.id]
        # Held by this process, and nothing else is.
        with pytest.raises(RequestError, match="open in another process"), store.held(before.id):
            pass
        with store.held(empty):
            pass
    with store.held(before.id):
        pass


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        ("nothing", "there is no conversation nothing"),
        ("", "there is no other saved conversation"),
        ("this", "is this one"),
        ("held", "is open in another process"),
    ],
)
def test_what_cannot_be_resumed_leaves_this_one_as_it_is(
    world: World, store: Store, conversation: str, message: str
) -> None:
    other = world.talk("one")[1].id if conversation else ""
    with world.opened() as (session, keeper):
        ask(session, "another")
        turns, tokens, id_ = session.conversation.turns, ids(session), keeper.id
        given = {"this": id_[:6], "held": other}.get(conversation, conversation)
        with store.held(other or "none"), pytest.raises(RequestError, match=message):
            list(session.run(Resume(given)))
        assert session.conversation.turns is turns
        assert (ids(session), keeper.id) == (tokens, id_)
        assert ask(session, "go on").reused == len(tokens)
        with pytest.raises(RequestError, match="open in another process"), store.held(id_):
            pass
    assert asked(store, id_) == ["another", "go on"]


def test_a_database_that_cannot_be_read_leaves_this_one_as_it_is(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, before = world.talk("one")

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with world.opened() as (session, keeper):
        ask(session, "another")
        tokens, id_ = ids(session), keeper.id
        with monkeypatch.context() as patch:
            patch.setattr(Store, "turns", fail)
            with pytest.raises(IcarusError, match="cannot be gone on with: disk I/O error"):
                list(session.run(Resume(before.id)))
        assert (ids(session), keeper.id) == (tokens, id_)
        # The other one is free again.
        with store.held(before.id):
            pass


def test_what_is_not_saved_has_no_others(session: Session) -> None:
    turns = session.conversation.turns
    with pytest.raises(RequestError, match=r"saves nothing.*Chat without --no-save"):
        list(session.run(Resume("")))
    assert session.conversation.turns is turns


def test_without_its_state_it_is_encoded_again(world: World, store: Store) -> None:
    first, before = world.talk("one")
    store.state_file(before.id).unlink()
    with world.opened() as (session, _):
        ask(session, "another")
        event = resumed(session, "")
        assert "tokens will be encoded again: there is no state" in event.notices[0]
        assert session.engine.cells.n_used == 0
        answer = ask(session, "and now?")
        assert answer.reused == 0
        assert answer.encoded > first.encoded + first.generated
        agree(session)


def test_what_cannot_be_saved_of_the_one_that_is_left_is_told(world: World, writes: Writes) -> None:
    _, before = world.talk("one")
    with world.opened() as (session, _):
        ask(session, "another")
        writes.errors = [StateError("no space left")]
        event = resumed(session, before.id)
        assert event.notices[0] == "no space left"
        assert "tokens restored" in event.notices[1]


def test_one_whose_state_is_older_than_its_end_counts_what_is_left_of_it(world: World, store: Store) -> None:
    """As after a kill between taking back and the next pause."""
    with world.opened() as (session, keeper):
        ask(session, "one")
        kept = len(ids(session))
        ask(session, "question")
    state = store.state_file(keeper.id).read_bytes()
    with world.opened("") as (session, _):
        list(session.run(TakeBack()))
    store.state_file(keeper.id).write_bytes(state)
    with world.opened() as (session, other):
        resumed(session, keeper.id)
        assert kept <= session.cached.length < len(ids(session))
        assert session.opened().cache.tokens == session.cached.length
        assert isinstance(other, Keeper)


def test_who_took_part_last_is_saved(world: World, store: Store) -> None:
    with world.opened() as (session, keeper):
        ask(session, "one")
        session.roster._choose = lambda _: base_agent()
        list(session.run(AddAgent("base")))
        assert store.find(keeper.id).agents == ("a", "base")
        list(session.run(RemoveAgent("a")))
        assert store.find(keeper.id).agents == ("base",)
        ask(session, "two")
    assert [turn.speaker for turn in store.turns(keeper.id)] == ["system", "user", "a", "user", "base"]


def test_on_another_vocabulary_ids_are_made_from_the_text(world: World, store: Store, tmp_path: Path) -> None:
    _, before = world.talk("one")
    store.save(before.id, store.turns(before.id), "another")
    with world.opened() as (session, keeper):
        event = resumed(session, "")
        assert len(event.before) == 2
        ask(session, "and now?")
        assert store.find(keeper.id).tokenizer_sha256 != "another"


def test_a_copy_for_which_there_is_no_memory_ends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> State:
        raise StateError("a copy of the KV state takes 9 MiB and 8 MiB are free")

    _, before = world.talk("one")
    with world.opened() as (session, _):
        ask(session, "another")
        with monkeypatch.context() as patch:
            patch.setattr("icarus_local.chat.keeper.take_state", full)
            event = resumed(session, before.id)
        assert "9 MiB and 8 MiB" in event.notices[0]
        assert ask(session, "go on").reused > 0
        # No copy of the sequence was left behind.
        assert session.engine.cells.n_used == len(ids(session))
