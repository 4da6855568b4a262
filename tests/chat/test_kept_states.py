"""A session's KV state on disk: written while idle and on leaving, smaller where asked for, removed for others."""

from __future__ import annotations

import os
import random
import sys
import threading

import numpy as np
import pytest

from icarus_local.chat import keeper as keeper_module
from icarus_local.chat.store import Store
from icarus_local.engine.state import State
from icarus_local.errors import IcarusError, RequestError, StateError
from tests.chat.keeping import World, Writes, ask, finish_writing, ids
from tests.kills import Killed

# -- the state while idle ----------------------------------------------------------------------------------------------


def test_while_idle_the_state_is_written_where_it_is_not_the_one_on_disk(world: World, writes: Writes) -> None:
    with world.opened() as (session, keeper):
        keeper.idle()
        assert writes.n == 0  # nothing was said
        ask(session, "one")
        assert writes.n == 0
        for _ in range(3):
            keeper.idle()
            finish_writing(keeper)
        assert writes.n == 1
        assert world.restored(keeper.id) == (ids(session), session.engine.kv_bytes(session.sequence))
        # Another sequence of the same length, as after a fork.
        tokens = ids(session)
        session.cached.sequence = session.engine.cells.fork(session.sequence, len(tokens) - 2)
        session.engine.forward(encode=[(session.sequence, [9, 9])])
        keeper.idle()
        finish_writing(keeper)
        assert writes.n == 2
        assert world.restored(keeper.id)[0] == [*tokens[:-2], 9, 9]
        ask(session, "two")
        last = ids(session)[: session.cached.length]
    assert writes.n == 3
    assert world.restored(keeper.id)[0] == last
    # What comes back is on disk.
    with world.opened("") as (session, again):
        again.idle()
        assert ids(session) == last
    assert writes.n == 3


def test_on_leaving_a_state_that_is_on_disk_is_not_written_again_but_was_used(
    world: World, writes: Writes, store: Store
) -> None:
    with world.opened() as (session, keeper):
        ask(session, "one")
        keeper.idle()
        finish_writing(keeper)
        os.utime(store.state_file(keeper.id), (1, 1))
    assert writes.n == 1
    assert store.state_file(keeper.id).stat().st_mtime > 1
    with world.opened("") as (session, again):
        store.state_file(again.id).unlink()
    assert writes.n == 2
    assert store.state_file(keeper.id).exists()


def test_writing_holds_nobody_up_and_is_waited_for_at_the_end(world: World, writes: Writes) -> None:
    with world.opened() as (session, keeper):
        ask(session, "one")
        writes.may_go.clear()
        keeper.idle()
        first = ids(session)
        ask(session, "two")
        keeper.idle()
        keeper.idle()
        assert writes.n == 1
        assert not world.store.state_file(keeper.id).exists()
        threading.Timer(0.1, writes.may_go.set).start()
        # "two" is answered by an end of turn alone, and so taken back.
        last = ids(session)[: session.cached.length]
    assert (writes.n, writes.most) == (2, 1)
    assert first != last
    assert world.restored(keeper.id)[0] == last


@pytest.mark.parametrize("error", [StateError("no space left"), ValueError("a fault")])
def test_what_fails_while_idle_is_tried_again_on_leaving(world: World, writes: Writes, error: Exception) -> None:
    writes.errors = [error]
    with world.opened() as (session, keeper):
        ask(session, "one")
        for _ in range(3):
            keeper.idle()
            finish_writing(keeper)
        assert writes.n == 1  # not over and over
    assert writes.n == 2
    assert world.restored(keeper.id)[0] == ids(session)
    writes.errors = [StateError("no space left"), StateError("no space left")]
    with world.opened() as (session, keeper):
        ask(session, "one")
        keeper.idle()
        with pytest.raises(IcarusError, match="no space left"):
            keeper.close()
    assert writes.n == 4
    # It lets go all the same.
    with world.store.held(keeper.id):
        pass


def test_no_memory_for_a_copy_does_not_end_the_conversation(world: World) -> None:
    def full(*_: object) -> State:
        raise StateError("a copy of the KV state takes 9 MiB and 8 MiB are free")

    with pytest.MonkeyPatch.context() as patch, world.opened() as (session, keeper):
        ask(session, "one")
        patch.setattr(keeper_module, "take_state", full)
        keeper.idle()
        ask(session, "two")
        with pytest.raises(IcarusError, match="9 MiB and 8 MiB"):
            keeper.close()
    assert world.talk("three", resume="")[0].reused == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
def test_killed_while_idle_the_state_is_the_old_or_the_new(world: World, store: Store) -> None:
    rng, unfinished = random.Random(8), 0
    _, keeper = world.talk("one")
    (tokens, _), lengths = world.restored(keeper.id), set()
    with Killed("tests.chat.idle_killed", str(world.base), str(store.folder), keeper.id) as killed:
        for _ in range(40):
            killed.after(rng.uniform(0.01, 0.06))
            unfinished += len(list(store.folder.glob(".*.part")))
            with world.opened(keeper.id) as (session, again):
                assert "tokens restored" in again.notices[0]
                assert ids(session)[: len(tokens)] == tokens
                lengths.add(len(ids(session)))
            # What the killed one left is gone.
            assert list(store.folder.glob(".*.part")) == []
    assert lengths == {len(tokens), len(tokens) + 200}
    assert unfinished > 3


# -- smaller states, and the limit -------------------------------------------------------------------------------------


def test_a_smaller_state_is_said_to_be_one(world: World, writes: Writes, store: Store) -> None:
    first, keeper = world.talk("one")
    whole = store.state_file(keeper.id).stat().st_size
    # It replaces the one that is whole.
    with world.opened("", state_kv_type="q8_0") as (session, again):
        assert len(again.notices) == 1
        kv = session.engine.kv_rows(session.sequence)
    assert store.state_file(keeper.id).stat().st_size < whole / 2.5
    assert writes.n == 2
    # What was lost does not come back by writing it whole.
    with world.opened("") as (session, again):
        assert again.notices[1] == ("K and V were saved as q8_0: what is restored is not bit for bit what was computed")
        close = session.engine.kv_rows(session.sequence)
        for name, rows in kv.items():
            assert np.allclose(rows.view(np.float32), close[name].view(np.float32), atol=0.1)
        assert any(not np.array_equal(rows, close[name]) for name, rows in kv.items())
    with world.opened("", state_kv_type="q8_0"):
        pass
    assert writes.n == 2
    assert world.talk("two", resume="")[0].reused == first.reused + first.encoded + first.generated - 1


def test_a_type_that_is_not_smaller_is_refused_before_anything_is_written(world: World, store: Store) -> None:
    with pytest.raises(RequestError, match="K and V of type f32 cannot be saved as f32"):
        world.talk("one", state_kv_type="f32")
    assert store.sessions(empty=True) == []


def test_whose_states_may_go_is_told_at_the_beginning(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.opened() as (session, keeper):
        assert keeper.notices == []
        whole = session.engine.n_ctx * session.engine.kv_bytes_per_token
    saved = []
    for _ in range(5):
        saved.append(world.talk("one")[1].id)
        with store.state_file(saved[-1]).open("ab") as file:
            file.truncate(whole)
    monkeypatch.setattr(keeper_module, "MAX_STATE_BYTES", 6 * whole)
    with world.opened() as (_, keeper):
        assert keeper.notices == []
    monkeypatch.setattr(keeper_module, "MAX_STATE_BYTES", 5 * whole)
    with world.opened() as (_, keeper):
        (notice,) = keeper.notices
        assert notice == (
            f"saved KV states take 0.0 of 0.0 GiB: leaving this conversation may remove those of {saved[0]} (their "
            "transcripts stay)"
        )
    # Its own state makes room for the new one.
    with world.opened(saved[2]) as (_, keeper):
        assert len(keeper.notices) == 1
    monkeypatch.setattr(keeper_module, "MAX_STATE_BYTES", whole)
    with world.opened() as (session, keeper):
        assert f"those of {', '.join(saved[i] for i in (0, 1, 3))} and 2 more (" in keeper.notices[0]
        ask(session, "two")
    # Less than was feared: what was said takes no whole context.
    assert {id_ for id_ in [*saved, keeper.id] if store.state_file(id_).exists()} == {saved[2], keeper.id}
