"""Agents who come, go and are read again while a conversation goes on: nothing of the cache changes by it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from icarus_local.chat.agents import Agent
from icarus_local.chat.events import AgentsChanged, AnswerDone, CacheUsed, Event
from icarus_local.chat.requests import AddAgent, Join, ReloadAgent, RemoveAgent, Request
from icarus_local.chat.session import Session
from icarus_local.engine.engine import Engine
from icarus_local.errors import AdapterError, IcarusError, RequestError
from tests.chat.chats import agree, done, make_roster, make_session
from tests.tiny import Tiny

MIB_OF_ONE = "0.1 MiB"


@pytest.fixture
def known(agents: list[Agent], tmp_path: Path) -> list[Agent]:
    """Agents as files of their own hold them: a and b take part, base and c may be added."""
    a, b, base = agents
    assert a.adapter is not None
    assert b.adapter is not None
    mine, other = (shutil.copy(file, tmp_path / f"{name}.gguf") for name, file in (("a", a.adapter), ("b", b.adapter)))
    return [
        *(a.model_copy(update={"adapter": str(mine)}), b.model_copy(update={"adapter": str(other)}), base),
        Agent(name="c", adapter=str(other), instruction="Be c.", max_tokens=8),
    ]


@pytest.fixture
def session(tiny: Tiny, known: list[Agent]) -> Iterator[Session]:
    with ExitStack() as stack:
        yield make_session(tiny.path, known[:2], stack, known=known)


def changed(session: Session, request: Request) -> AgentsChanged:
    first, *_ = session.run(request)
    assert isinstance(first, AgentsChanged)
    return first


def cached(session: Session) -> tuple[list[int], bytes]:
    tokens = session.engine.cells.tokens(session.sequence).tolist()
    return tokens, session.engine.kv_bytes(session.sequence)


CHANGES = [
    [AddAgent("c"), AddAgent("base")],
    [AddAgent("c"), RemoveAgent("c")],
    [ReloadAgent("b"), ReloadAgent("a")],
    [AddAgent("c"), RemoveAgent("a"), ReloadAgent("b")],
]


@pytest.mark.parametrize("changes", CHANGES)
def test_the_others_go_on_bit_for_bit(tiny: Tiny, known: list[Agent], session: Session, changes: list[Request]) -> None:
    with ExitStack() as stack:
        undisturbed = make_session(tiny.path, known[:2], stack)
        for each in (session, undisturbed):
            list(each.ask("one", ["a"]))
        before = cached(session)
        for change in changes:
            list(session.run(change))
            assert cached(session) == before
        (answer,), (other,) = (done(each.ask("two", ["b"])) for each in (session, undisturbed))
        assert (answer.reused, answer.encoded, answer.text) == (other.reused, other.encoded, other.text)
        assert answer.reused == len(before[0])
        assert cached(session) == cached(undisturbed)
        logits = [
            each.engine.forward(decode=[(each.sequence, ready.adapter_id)]).decoder
            for each in (session, undisturbed)
            for ready in each.roster.agents
            if ready.name == "b"
        ]
        assert np.array_equal(logits[0], logits[1])


def test_one_who_is_added_speaks_as_if_it_had_been_there(tiny: Tiny, known: list[Agent], session: Session) -> None:
    list(session.ask("one", ["a"]))
    event = changed(session, AddAgent("c"))
    assert event.told == f"c takes part from now on: {MIB_OF_ONE}, in memory"
    assert event.notices == ("c: whoever converted b.gguf assumed that it was trained on the frozen cache",)
    assert [(agent.name, agent.given, agent.resident, agent.max_tokens) for agent in event.agents] == [
        *(("a", "a", True, 12), ("b", "b", True, 9), ("c", "c", True, 8))
    ]
    assert event.agents == session.roster.states
    assert changed(session, AddAgent("base")).told == "base takes part from now on, without an adapter"
    base = session.roster.states[-1]
    assert (base.adapter, base.n_bytes, base.resident) == ("", 0, True)
    (answer,) = done(session.ask("two", ["c"]))
    with ExitStack() as stack:
        from_the_start = make_session(tiny.path, known, stack)
        list(from_the_start.ask("one", ["a"]))
        (same,) = done(from_the_start.ask("two", ["c"]))
    assert (answer.text, answer.reused, answer.encoded) == (same.text, same.reused, same.encoded)
    # All who take part are asked where nobody is named.
    assert [each.agent for each in done(session.ask("three"))] == ["a", "b", "c", "base"]
    agree(session)


def test_what_an_adapter_takes_is_what_the_engine_allocates(session: Session) -> None:
    engine = session.engine
    a, b = session.roster.states
    # Slots for both, and one of zeros.
    assert engine.adapter_bytes == pytest.approx(a.n_bytes + b.n_bytes + a.n_bytes, rel=0.02)
    list(session.run(RemoveAgent("a")))
    assert engine.n_resident_adapters == 1
    list(session.run(AddAgent("base")))
    list(session.run(RemoveAgent("b")))
    assert engine.n_resident_adapters == 0
    assert engine.adapter_bytes == 0


def test_those_who_open_a_conversation_have_room_at_once(tiny: Tiny, known: list[Agent]) -> None:
    with Engine(tiny.path, n_ctx=256, device="cpu") as engine:
        roster, names = make_roster(known, engine), [agent.name for agent in known]
        roster.reserve([*names, "nobody"])
        reserved = engine.adapter_bytes
        for name in names:
            roster.add(name)
        assert engine.n_resident_adapters == 3
        assert engine.adapter_bytes == reserved
        assert engine._bank.generation == 0, "nothing has moved"
        with pytest.raises(RequestError, match="nobody"):
            roster.add("nobody")


def test_one_who_goes_is_asked_no_more_and_what_it_said_stays(session: Session) -> None:
    list(session.ask("one", ["a"]))
    said = session.conversation.turns
    event = changed(session, RemoveAgent("a"))
    assert (event.told, [agent.name for agent in event.agents]) == ("a takes part no more", ["b"])
    assert session.conversation.turns is said
    with pytest.raises(RequestError, match=r"no agent @a here\. Here are @b"):
        list(session.ask("two", ["a"]))
    assert [answer.agent for answer in done(session.ask("two"))] == ["b"]
    # What separate caches would take is told anew, for they would be fewer.
    (used,) = (event for event in session.run(AddAgent("base")) if isinstance(event, CacheUsed))
    assert (used.caches, used.n_bytes_separate) == (2, 2 * used.n_bytes)


REFUSED = [
    (AddAgent("nobody"), RequestError, "there is no agent 'nobody'"),
    (AddAgent("a"), RequestError, "the agent a takes part already"),
    (AddAgent("broken"), AdapterError, "agent broken: .*--instruction-only"),
    (AddAgent("gone"), AdapterError, "agent gone: "),
    (RemoveAgent("c"), RequestError, "no agent @c here. Here are @a, @b"),
    (ReloadAgent("c"), RequestError, "no agent @c here"),
]


@pytest.mark.parametrize(("request_", "kind", "message"), REFUSED)
def test_what_is_refused_changes_nothing(
    known: list[Agent], session: Session, tmp_path: Path, request_: Request, kind: type[IcarusError], message: str
) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    known += [Agent(name=name, adapter=str(tmp_path / f"{name}.gguf")) for name in ("broken", "gone")]
    list(session.ask("one"))
    ready, states, before = session.roster.agents, session.roster.states, cached(session)
    turns, n_bytes = session.conversation.turns, session.engine.adapter_bytes
    with pytest.raises(kind, match=message):
        list(session.run(request_))
    assert session.roster.agents is ready
    assert session.roster.states == states
    assert cached(session) == before
    assert (session.conversation.turns, session.engine.adapter_bytes) == (turns, n_bytes)
    assert len(done(session.ask("two"))) == 2


def test_the_last_one_cannot_go(session: Session) -> None:
    list(session.run(RemoveAgent("a")))
    with pytest.raises(RequestError, match=r"b is the only agent here\. Add another before"):
        list(session.run(RemoveAgent("b")))
    assert len(done(session.ask("one"))) == 1


def test_a_changed_file_speaks_next_under_the_same_name(tiny: Tiny, known: list[Agent], session: Session) -> None:
    (old,) = done(session.ask("question", ["a"]))
    assert known[0].adapter is not None
    assert known[1].adapter is not None
    shutil.copy(known[1].adapter, known[0].adapter)
    # Until it is read again it speaks as it was, and says so.
    assert "speaks as it was" in done(session.ask("again", ["a"]))[0].notice
    event = changed(session, ReloadAgent("a"))
    assert event.told == f"a was read again: {MIB_OF_ONE}, in memory"
    (answer,) = done(session.ask("and now?", ["a"]))
    assert answer.notice == ""
    with ExitStack() as stack:
        other = make_session(tiny.path, [known[0]], stack)
        assert done(other.ask("question"))[0].text != old.text, "both adapters say the same, so nothing is shown"
        # The same context, read by the adapter that the file holds now.
        other.conversation.turns = session.conversation.turns[:-3]
        (same,) = done(other.ask("and now?"))
    assert answer.text == same.text
    # In the order in which they were, and nothing of the old one remains.
    assert session.names == ("a", "b")
    assert session.engine.n_resident_adapters == 2


def test_a_reloaded_agent_has_its_new_description(known: list[Agent], session: Session) -> None:
    known[0] = known[0].model_copy(update={"instruction": "Be somebody else.", "max_tokens": 3})
    assert changed(session, ReloadAgent("a")).agents[0].max_tokens == 3
    (answer,) = done(session.ask("question", ["a"]))
    assert answer.generated <= 3
    assert session.conversation.turns[-2].content == "Be somebody else."


def test_what_cannot_be_read_again_leaves_the_agent_as_it_was(known: list[Agent], session: Session) -> None:
    assert known[0].adapter is not None
    first, ready = done(session.ask("question", ["a"]))[0], session.roster.agents
    Path(known[0].adapter).write_bytes(b"no adapter")
    with pytest.raises(AdapterError, match="a stays as it was: agent a: "):
        list(session.run(ReloadAgent("a")))
    assert session.roster.agents is ready
    del known[0]
    with pytest.raises(RequestError, match="a stays as it was: there is no agent 'a'"):
        list(session.run(ReloadAgent("a")))
    assert session.engine.n_resident_adapters == 2
    assert done(session.ask("question", ["a"]))[0].generated == first.generated


def test_instruction_only_holds_for_those_who_are_added(tiny: Tiny, known: list[Agent], tmp_path: Path) -> None:
    broken = Agent(name="broken", adapter=str(tmp_path / "none.gguf"), instruction="Be broken.")
    with ExitStack() as stack:
        session = make_session(tiny.path, known[:1], stack)
        session.roster = make_roster([*known, broken], session.engine, instruction_only=True)
        session.roster.add("a")
        event = changed(session, AddAgent("broken"))
        assert event.told == "broken takes part from now on, without an adapter"
        assert "broken speaks as the base, by its instruction only" in event.notices[0]
        assert len(done(session.ask("question", ["broken"]))) == 1
        # One that speaks by its adapter does not lose it.
        assert known[0].adapter is not None
        Path(known[0].adapter).unlink()
        with pytest.raises(AdapterError, match="a stays as it was"):
            list(session.run(ReloadAgent("a")))
        assert session.roster.states[0].resident
        assert changed(session, ReloadAgent("broken")).agents[1].adapter == ""


def test_changes_settle_answers_that_were_given_at_once(session: Session) -> None:
    list(session.ask("question", at_once=True))
    list(session.run(AddAgent("base")))
    assert session.engine.cells.n_used == session.engine.cells.length(session.sequence)
    with pytest.raises(RequestError, match="right after they were given at once"):
        list(session.run(Join("b")))
    agree(session)


# -- whose adapter is in memory ----------------------------------------------------------------------------------------


def test_who_leaves_memory_is_told(tiny: Tiny, known: list[Agent]) -> None:
    with ExitStack() as stack:
        session = make_session(tiny.path, known[:2], stack, max_adapters=1)
        assert [agent.resident for agent in session.opened().roster] == [False, True]
        events = list(session.ask("question"))
        kinds = [type(event) for event in events if isinstance(event, AnswerDone | AgentsChanged)]
        assert kinds == [AnswerDone, AgentsChanged, AnswerDone, AgentsChanged]
        told = [event for event in events if isinstance(event, AgentsChanged)]
        assert [[agent.resident for agent in event.agents] for event in told] == [[True, False], [False, True]]
        assert {event.told for event in told} == {""}
        # Nothing has changed for one who is there, and who is not has the same size.
        assert not any(isinstance(event, AgentsChanged) for event in session.ask("again", ["b"]))
        assert len({agent.n_bytes for event in told for agent in event.agents}) == 1


def test_a_request_that_fails_tells_what_it_changed_all_the_same(tiny: Tiny, known: list[Agent]) -> None:
    assert known[0].adapter is not None
    with ExitStack() as stack:
        session = make_session(tiny.path, known[:2], stack, max_adapters=1)
        list(session.ask("question", ["b"]))
        session.engine.cells.truncate(session.sequence, 0)
        list(session.run(ReloadAgent("b")))
        # It is not in memory, and not what it was.
        Path(known[0].adapter).write_bytes(b"no adapter")
        seen: list[Event] = []
        with pytest.raises(AdapterError):
            seen += session.ask("another", ["a"])
        (used,) = (event for event in seen if isinstance(event, CacheUsed))
        # The question is taken back; what was said before it is in the cache again.
        assert used.tokens == session.cached.length > 20
        assert session.engine.cells.length(session.sequence) > used.tokens
