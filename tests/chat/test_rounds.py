"""Rounds: the agents answer in turn several times, and stop when one of them accepts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from icarus_local.chat.agents import Agent
from icarus_local.chat.events import RoundsEnded, TextDelta
from icarus_local.chat.session import Session
from tests.chat.chats import agree, done, make_session, tiny_agents
from tests.tiny import Tiny


@pytest.fixture(scope="module")
def agents(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> list[Agent]:
    return tiny_agents(tiny, tmp_path_factory.mktemp("agents"))[:2]


@pytest.fixture
def session(tiny: Tiny, agents: list[Agent]) -> Iterator[Session]:
    with ExitStack() as stack:
        yield make_session(tiny.path, agents, stack)


def test_agents_answer_in_turn_so_many_times(session: Session) -> None:
    answers = done(session.ask("question", rounds=3))
    assert [answer.agent for answer in answers] == ["a", "b"] * 3
    assert sum(turn.speaker == "user" for turn in session.conversation.turns) == 1
    for before, after in itertools.pairwise(answers):
        pending = before.finish_reason == "length"
        assert after.reused == before.reused + before.encoded + before.generated - pending
    agree(session)


def test_they_end_when_one_accepts(tiny: Tiny, agents: list[Agent]) -> None:
    with ExitStack() as stack:
        said = done(make_session(tiny.path, agents, stack).ask("question", rounds=2))
        # It accepts by what it says in its second round, which is not what it says in the first.
        second = said[3].text.strip()
        assert not said[1].text.strip().casefold().startswith(second.casefold())
        # Its answer must end by itself: one that was cut says nothing about the rest.
        stop = second[-1]
        judge = agents[1].model_copy(update={"accepts": second[:-1].upper(), "stop": (stop,)})
        if stop in "".join(answer.text for answer in (said[1],)) or stop in second[:-1]:
            pytest.skip("the stop string stands elsewhere too: another seed would serve")
        session = make_session(tiny.path, [agents[0], judge], stack)
        events = list(session.ask("question", rounds=5))
        assert [answer.agent for answer in done(events)] == ["a", "b"] * 2
        assert events[-1] == RoundsEnded("b", 2, 5)
        agree(session)


@pytest.mark.parametrize(
    ("accepts", "answer", "ends"),
    [
        ("No issue found", "No issue found.", True),
        ("no issue found", "\n NO ISSUE FOUND", True),
        ("No issue found", "The line `x` … No issue found", False),
        ("No issue found", "No issue", False),
        ("", "", False),
        ("", "anything", False),
    ],
)
def test_what_accepts(accepts: str, answer: str, ends: bool) -> None:
    assert Agent(name="x", accepts=accepts).ends_rounds(answer) == ends


def test_a_single_round_ends_by_itself(tiny: Tiny, agents: list[Agent]) -> None:
    with ExitStack() as stack:
        first = done(make_session(tiny.path, agents, stack).ask("question"))[0]
        eager = agents[0].model_copy(update={"accepts": first.text[:3], "stop": (first.text[5:8],)})
        session = make_session(tiny.path, [eager, agents[1]], stack)
        events = list(session.ask("question"))
        accepted, second = done(events)
        assert (accepted.finish_reason, second.agent) == ("stop", "b")
        assert eager.ends_rounds(accepted.text)
        assert not any(isinstance(event, RoundsEnded) for event in events)


def test_a_stop_ends_all_rounds(session: Session) -> None:
    spoken = 0
    for event in session.ask("question", rounds=4):
        spoken += isinstance(event, TextDelta)
        if isinstance(event, TextDelta) and spoken == 3:
            session.engine.cancel()
    assert [turn.speaker for turn in session.conversation.turns if turn.role == "assistant"] == ["a"]
    agree(session)
