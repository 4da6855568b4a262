"""Taking the newest question back, and asking it again: the prompt is there, and the answer another."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from icarus_local.chat.agents import Agent
from icarus_local.chat.conversation import FILE, Conversation
from icarus_local.chat.events import ContextCut, Event, QuestionTakenBack
from icarus_local.chat.files import TextFile
from icarus_local.chat.generation import _again
from icarus_local.chat.requests import AGAIN_TEMPERATURE, AddFile, Ask, TakeBack
from icarus_local.chat.session import Session
from icarus_local.chat.store import Store
from icarus_local.errors import RequestError
from icarus_local.text.sampler import Sampling
from tests.chat.chats import agree, done, make_session
from tests.chat.keeping import World, ask, finish_writing, ids
from tests.tiny import Tiny

FIRST, SECOND = TextFile("first.txt", "1\n", 2), TextFile("second.txt", "2\n", 2)


def taken_back(session: Session) -> QuestionTakenBack:
    event, *_ = session.run(TakeBack())
    assert isinstance(event, QuestionTakenBack)
    return event


def test_the_newest_question_and_its_answers_go(session: Session) -> None:
    list(session.ask("one"))
    before = session.conversation.turns
    list(session.ask("two", ["a", "b"]))
    assert taken_back(session) == QuestionTakenBack("two", 2)
    assert session.conversation.turns == before
    assert taken_back(session) == QuestionTakenBack("one", 3)
    assert [turn.speaker for turn in session.conversation.turns] == ["system"]
    with pytest.raises(RequestError, match="there is no question to take back"):
        list(session.run(TakeBack()))


def test_files_stay_whether_they_came_before_the_question_or_after_it(session: Session) -> None:
    for request in (AddFile(FIRST), Ask("one", ("a",)), AddFile(SECOND)):
        list(session.run(request))
    assert taken_back(session) == QuestionTakenBack("one", 1)
    assert [turn.content for turn in session.conversation.turns if turn.speaker == FILE] == [
        FIRST.message,
        SECOND.message,
    ]
    assert len(session.conversation.turns) == 3
    (answer,) = done(session.ask("what is in them?", ["a"]))
    assert answer.encoded > 20
    agree(session)


def test_agents_who_are_named_as_people_and_files_are_taken_for_agents(tiny: Tiny, agents: list[Agent]) -> None:
    named = [agents[0].model_copy(update={"name": name}) for name in ("user", "file")]
    with ExitStack() as stack:
        session = make_session(tiny.path, named, stack)
        list(session.ask("one"))
        assert taken_back(session) == QuestionTakenBack("one", 2)
        assert len(session.conversation.turns) == 1


@pytest.mark.parametrize("names", [("a",), ("b",), ("base",)])
def test_the_same_question_is_encoded_no_second_time(session: Session, names: tuple[str, ...]) -> None:
    list(session.ask("before"))
    (first,) = done(session.ask("question", names))
    prompt = first.reused + first.encoded
    taken_back(session)
    (again,) = done(session.run(Ask("question", names, attempt=1)))
    assert (again.reused, again.encoded) == (prompt, 0)
    agree(session)
    # The bits are those of the first time.
    taken_back(session)
    (same,) = done(session.ask("question", names))
    assert same.encoded == 0
    assert same.text == first.text


def test_another_question_is_encoded_from_where_it_differs(session: Session) -> None:
    list(session.ask("before"))
    list(session.ask("question", ["a"]))
    taken_back(session)
    kept = session.cached.length
    (answer,) = done(session.ask("another", ["a"]))
    assert kept <= answer.reused <= kept + 8  # as far as both questions begin alike
    agree(session)


def test_each_attempt_draws_otherwise_and_the_same_each_time(session: Session) -> None:
    def attempts(name: str) -> list[str]:
        said = []
        for attempt in (0, 1, 2, 1):
            (answer,) = done(session.run(Ask("question", (name,), attempt=attempt)))
            said.append(answer.text)
            taken_back(session)
        return said

    for name in ("a", "b"):  # greedy, and sampled with a seed
        first, second, third, again = attempts(name)
        assert len({first, second, third}) == 3
        assert again == second


def test_at_once_each_attempt_draws_otherwise_too(session: Session) -> None:
    first = {answer.agent: answer for answer in done(session.ask("question", at_once=True))}
    taken_back(session)
    again = {answer.agent: answer for answer in done(session.run(Ask("question", at_once=True, attempt=1)))}
    assert all(first[name].text != again[name].text for name in ("a", "b"))
    # What their prompts share is there.
    assert again["a"].reused > again["a"].encoded


def test_how_an_attempt_draws() -> None:
    greedy, seeded, random = Sampling(), Sampling(temperature=0.5, seed=2**32 - 2), Sampling(temperature=0.5)
    for sampling in (greedy, seeded, random):
        assert _again(sampling, 0) is sampling
    assert _again(greedy, 3).temperature == AGAIN_TEMPERATURE
    assert (_again(seeded, 1).temperature, _again(seeded, 1).seed) == (0.5, 0)
    assert _again(random, 2) == random
    # They stay within what the sampler takes.
    for attempt in (1, 2, 2**33):
        for sampling in (greedy, seeded, random):
            Sampling(**_again(sampling, attempt).model_dump())


def test_what_left_the_context_because_of_it_stays_out(tiny: Tiny, agents: list[Agent]) -> None:
    with ExitStack() as stack:
        session = make_session(tiny.path, agents, stack, n_ctx=256)
        events: list[Event] = []
        while not any(isinstance(event, ContextCut) for event in events):
            events = list(session.ask("a question of some words", ["a"]))
        n_out = sum(not turn.in_context for turn in session.conversation.turns)
        taken_back(session)
        assert sum(not turn.in_context for turn in session.conversation.turns) == n_out > 0
        assert done(session.ask("and now?", ["a"]))


def test_a_conversation_without_questions_has_nothing_to_take_back(session: Session) -> None:
    list(session.run(AddFile(FIRST)))
    turns = session.conversation.turns
    with pytest.raises(RequestError, match="no question"):
        Conversation(session.conversation.template).take_back()
    with pytest.raises(RequestError, match="no question"):
        list(session.run(TakeBack()))
    assert session.conversation.turns is turns


# -- what is saved -----------------------------------------------------------------------------------------------------


def test_it_leaves_the_saved_transcript_and_the_state(world: World, store: Store) -> None:
    with world.opened() as (session, keeper):
        ask(session, "one")
        kept = store.turns(keeper.id)
        ask(session, "question")
        keeper.idle()
        finish_writing(keeper)
        whole = world.restored(keeper.id)[0]
        list(session.run(TakeBack()))
        assert store.turns(keeper.id) == kept
        assert len(ids(session)) == len(whole)
    # Left without another question, no token of it is on disk.
    tokens, _ = world.restored(keeper.id)
    assert tokens == whole[: len(tokens)]
    assert len(tokens) < len(whole) - 10
    first, _ = world.talk("and then?", resume="")
    assert first.reused == len(tokens)


def test_when_all_is_taken_back_nothing_is_left(world: World, store: Store) -> None:
    with world.opened() as (session, keeper):
        ask(session, "one")
        keeper.idle()
        finish_writing(keeper)
        list(session.run(TakeBack()))
    assert store.sessions(empty=True) == []
    assert list(store.folder.glob("*.state")) == []
    # What was resumed stays, and its state goes.
    _, keeper = world.talk("one")
    with world.opened("") as (session, keeper):
        list(session.run(TakeBack()))
    assert [saved.id for saved in store.sessions()] == [keeper.id]
    assert not store.state_file(keeper.id).exists()
