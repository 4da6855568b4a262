"""A session in the store: what of it is saved, what comes back, and what is told where that fails."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icarus_local.chat.requests import BeginAnew
from icarus_local.chat.store import SavedTurn, Store
from icarus_local.errors import IcarusError, RequestError, StateError
from tests.chat.keeping import World, Writes, ask, finish_writing, ids
from tests.gguf_files import quantised
from tests.tiny import Tiny

# -- going on ----------------------------------------------------------------------------------------------------------


def test_a_conversation_goes_on_and_nothing_is_encoded_again(world: World) -> None:
    first, keeper = world.talk("one")
    second, again = world.talk("two", resume=keeper.id[:4])
    assert again.id == keeper.id
    assert [(saved.speaker, saved.text) for saved in again.turns][-1] == ("a", first.text)
    # All but the answer's last token, which nothing had encoded yet.
    assert second.reused == first.reused + first.encoded + first.generated - 1
    assert "tokens restored" in again.notices[0]
    # The same two questions in one program.
    _, third = world.talk("one")
    assert world.talk("two", resume=third.id)[0].text == second.text


def test_without_a_state_that_fits_it_is_said_and_encoded_again(world: World, tiny: Tiny, tmp_path: Path) -> None:
    first, keeper = world.talk("one")
    world.store.state_file(keeper.id).write_bytes(b"nonsense")
    second, again = world.talk("two", resume="")
    assert second.reused == 0
    assert second.encoded > first.encoded + first.generated
    assert "tokens will be encoded again: the state" in again.notices[0]
    world.base = quantised(tiny.path, tmp_path / "q8.gguf", "Q8_0")
    third, again = world.talk("three", resume="")
    assert third.reused == 0
    assert "another base" in again.notices[0]


def test_what_left_the_context_comes_back_as_that(world: World) -> None:
    with world.opened() as (session, keeper):
        session.conversation.add_file("File x:\n\n```\nhello\n```")
        ask(session, "one")
        session.conversation.leave_out([1, 2])
        keeper.changed()
        turns = session.conversation.turns
    assert [turn.in_context for turn in turns] == [True, False, False, *[True] * (len(turns) - 3)]
    with world.opened(keeper.id) as (session, again):
        assert session.conversation.turns == turns
        assert [saved.speaker for saved in again.turns][:3] == ["system", "file", "user"]


def test_half_of_a_character_does_not_end_the_conversation(world: World, store: Store) -> None:
    _, keeper = world.talk("one \ud800")
    assert "one ?" in [saved.text for saved in store.turns(keeper.id)]


def test_ids_of_another_vocabulary_are_made_anew_once(world: World, store: Store) -> None:
    first, keeper = world.talk("one")
    with sqlite3.connect(store.folder / "sessions.db") as connection:
        connection.execute("UPDATE sessions SET tokenizer_sha256 = 'another'")
        connection.execute("UPDATE turns SET tokens = x'ffffff7f' WHERE speaker = 'a'")
    with world.opened("") as (session, _):
        # Not the ids that mean nothing here.
        assert session.conversation.turns[-1].content == session._tokenizer.encode(first.text)
        ask(session, "two")
        turns = session.conversation.turns
        sha256 = session._tokenizer.sha256
    assert store.find("").tokenizer_sha256 == sha256
    with world.opened("") as (session, again):
        assert session.conversation.turns == turns
        assert "tokens restored" in again.notices[0]
    assert again.id == keeper.id


@pytest.mark.parametrize("answered", [True, False])
def test_a_question_that_the_engine_died_of_is_taken_back_where_that_is_asked_for(
    world: World, store: Store, answered: bool
) -> None:
    _, keeper = world.talk("one")
    said = store.turns(keeper.id) if answered else store.turns(keeper.id)[:1]
    file = SavedTurn("file", "File x:\n\n```\nhello\n```", None)
    asked = [SavedTurn("user", "two", None), file, SavedTurn("hand-over", "a, please answer.", None)]
    store.save(keeper.id, [*said, *asked])
    with world.opened(keeper.id) as (session, again):
        assert again.turns == [*said, *asked]
    # It stays in the transcript until it is asked again.
    with world.opened(keeper.id, take_back=True) as (session, again):
        assert again.turns == [*said, file]
        assert [turn.speaker for turn in session.conversation.turns] == [saved.speaker for saved in again.turns]
    assert store.turns(keeper.id) == [*said, *asked]
    with world.opened(keeper.id, take_back=True) as (session, again):
        ask(session, "two")
    assert store.turns(keeper.id)[: len(said) + 1] == [*said, file]
    assert [saved.text for saved in store.turns(keeper.id) if saved.speaker == "user"][-1] == "two"


def test_a_conversation_whose_engine_died_before_anything_was_said_goes_on(world: World, store: Store) -> None:
    id_ = store.create(world.base, "ab", ["a"])
    with pytest.raises(RequestError, match="there is no conversation"):
        world.talk("one", resume=id_)
    assert world.talk("one", resume=id_, take_back=True)[1].id == id_


# -- failures, and a new conversation ----------------------------------------------------------------------------------


def test_nothing_said_leaves_nothing(world: World) -> None:
    with world.opened():
        pass
    assert world.store.sessions(empty=True) == []
    assert sorted(file.name for file in world.store.folder.iterdir()) == ["sessions.db"]


def fail(times: int, method: Callable[..., Any]) -> Callable[..., Any]:
    """`method`, which fails that often before it works."""
    left = [times]

    def failing(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise sqlite3.OperationalError("database or disk is full")
        return method(*arguments, **named)

    return failing


def test_a_full_disk_ends_neither_the_conversation_nor_the_saving(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Store.save
    monkeypatch.setattr(Store, "save", fail(99, save))
    with pytest.raises(IcarusError, match=r"is not saved: database or disk is full.*Free some space"):
        world.talk("one")
    # Both at once: what can be computed again is told last.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("icarus_local.engine.state.host_memory", lambda: 0)
        with pytest.raises(IcarusError, match=r"is not saved.*; a copy of the KV state"):
            world.talk("one")
    monkeypatch.setattr(Store, "save", fail(1, save))
    answer, keeper = world.talk("one")
    assert [turn.text for turn in world.store.turns(keeper.id) if turn.tokens is not None] == [answer.text]


def test_a_store_that_cannot_be_written_is_told_at_the_beginning(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "create", fail(1, Store.create))
    with pytest.raises(IcarusError, match=r"no conversation can be begun.*disk is full.*--no-save"):
        world.talk("one")


def test_a_new_conversation_is_saved_under_an_id_of_its_own(world: World, store: Store) -> None:
    with world.opened() as (session, keeper):
        ask(session, "one")
        first, said = keeper.id, ids(session)
        keeper.idle()
        list(session.run(BeginAnew()))
        second = keeper.id
        assert first != second
        assert world.restored(first)[0] == said
        with store.held(first), pytest.raises(RequestError), store.held(second):
            pass
        keeper.idle()
        assert not store.state_file(second).exists()  # nothing was said yet
        ask(session, "one")
        assert ids(session) == said
        keeper.idle()
        finish_writing(keeper)
        assert store.state_file(second).exists()  # that of another conversation, though the same, is none of this one
        list(session.run(BeginAnew()))
        third = keeper.id
    for id_ in (first, second):
        assert [turn.text for turn in store.turns(id_) if turn.speaker == "user"] == ["one"]
    assert world.restored(second)[0] == said
    assert store.find("").id == second
    assert third not in {saved.id for saved in store.sessions(empty=True)}
    with world.opened(first) as (session, keeper):
        assert ids(session) == said
        list(session.run(BeginAnew()))
    assert {saved.id for saved in store.sessions(empty=True)} == {first, second}


def test_what_fails_on_leaving_for_a_new_conversation_is_told_and_tried_again(
    world: World, writes: Writes, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes.errors = [StateError("no space left")]
    with world.opened() as (session, keeper):
        ask(session, "one")
        first = keeper.id
        monkeypatch.setattr(Store, "create", fail(1, Store.create))
        told = keeper.left()
        assert "no space left" in told
        assert "no conversation can be begun" in told
        assert keeper.id == ""
        keeper.idle()
        session.conversation.begin_anew()
        ask(session, "two")
        assert keeper.id not in ("", first)
    assert [turn.text for turn in store.turns(keeper.id) if turn.speaker == "user"] == ["two"]
    assert [turn.text for turn in store.turns(first) if turn.speaker == "user"] == ["one"]
