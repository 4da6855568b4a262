"""What all answers cost, and what a cache for each agent would have cost, computed by hand."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from icarus_local.chat.agents import Agent
from icarus_local.chat.events import (
    AnswerDone,
    AnswerStarted,
    ContextCut,
    ConversationBegun,
    ConversationResumed,
    Event,
    FileAdded,
    FinishReason,
    QuestionTakenBack,
    TextDelta,
)
from icarus_local.chat.requests import BeginAnew, TakeBack
from icarus_local.chat.totals import AgentTotals, Totals
from tests.chat.chats import make_session
from tests.tiny import Tiny


def answer(agent: str, reused: int, encoded: int, generated: int, finish: FinishReason = "stop") -> AnswerDone:
    return AnswerDone(agent, "text", finish, reused, encoded, generated, 0.1, 10.0, 1, 2)


def totals_of(*events: Event) -> Totals:
    totals = Totals()
    for event in events:
        totals.add(event)
    return totals


def alone(totals: Totals) -> dict[str, int]:
    return {name: of.encoded_alone for name, of in totals.agents.items()}


SMALL = [
    answer("a", 0, 50, 10),  # a reads 50, and holds its 10
    answer("b", 60, 5, 20, "length"),  # b reads all 65; the last of its 20 waits for its step
    answer("a", 84, 6, 10),  # a knows 60 of 90
    answer("b", 100, 7, 10),  # b knows 84 of 107
]


def test_sums_and_what_each_would_have_encoded_alone() -> None:
    totals = totals_of(*SMALL)
    assert totals.agents == {
        "a": AgentTotals(answers=2, reused=84, encoded=56, generated=20, encoded_alone=50 + 30),
        "b": AgentTotals(answers=2, reused=160, encoded=12, generated=30, encoded_alone=65 + 23),
    }
    assert list(totals.lines()) == [
        "a: 2 answers; 84 tokens reused, 56 encoded, 20 generated",
        "b: 2 answers; 160 tokens reused, 12 encoded, 30 generated",
        "all: 68 tokens encoded; with a cache for each agent it would have been at least 168",
    ]
    assert totals.record()["b"] == {
        "answers": 2,
        "reused": 160,
        "encoded": 12,
        "generated": 30,
        "encoded_alone": 88,
    }


def test_only_answers_count() -> None:
    started = [AnswerStarted("c"), TextDelta("c", "text"), FileAdded("a.py")]
    totals = totals_of(*started)
    assert (totals.agents, totals.record()) == ({}, {})
    assert list(totals.lines())[-1].startswith("all: 0 tokens encoded")
    assert totals_of(SMALL[0], *started, *SMALL[1:]).agents == totals_of(*SMALL).agents


def test_one_agent_would_have_encoded_the_same_alone() -> None:
    assert alone(totals_of(answer("a", 0, 50, 10, "length"), answer("a", 59, 8, 10), answer("a", 77, 3, 1))) == {
        "a": 61
    }


def test_after_a_cut_each_still_holds_what_is_before_it() -> None:
    """Of 117 tokens 80 go that stood behind the first 20; 10 are new."""
    cut = ContextCut(4, 80, (), 17)
    totals = totals_of(*SMALL, cut, answer("a", 20, 27, 5))
    assert alone(totals) == {"a": 80 + 27, "b": 88}
    # b too holds 20 of it, and reads the rest once.
    totals.add(answer("b", 52, 4, 9))
    assert alone(totals) == {"a": 107, "b": 88 + 56 - 20}
    totals.add(answer("b", 65, 2, 1))
    assert alone(totals)["b"] == 124 + 2


def test_in_a_new_conversation_each_holds_the_system_prompt() -> None:
    totals = totals_of(*SMALL, ConversationBegun("id"), answer("b", 12, 30, 5), answer("a", 47, 3, 6))
    assert alone(totals) == {"a": 80 + 50 - 12, "b": 88 + 30}
    # One who never spoke holds nothing.
    totals.add(answer("c", 56, 1, 1))
    assert alone(totals)["c"] == 57


def test_what_was_resumed_each_would_have_restored() -> None:
    resumed = ConversationResumed("id", (), ())
    totals = totals_of(*SMALL, resumed, answer("b", 300, 10, 5), answer("a", 315, 3, 2))
    assert alone(totals) == {"a": 80 + 18, "b": 88 + 10}
    # One who never spoke too, and after a new beginning no more than the shared one.
    totals.add(answer("c", 320, 1, 1))
    assert alone(totals)["c"] == 21
    totals.add(ConversationBegun("other"))
    totals.add(answer("d", 12, 30, 5))
    assert alone(totals)["d"] == 30


def test_what_was_taken_back_each_has_read_all_the_same() -> None:
    totals = totals_of(*SMALL, QuestionTakenBack("what?", 2), answer("a", 90, 0, 10))
    # It held 100, of which the first 90 are the prompt again.
    assert alone(totals) == {"a": 80 + 0, "b": 88}


def test_answers_at_once_take_nothing_from_each_other() -> None:
    begun = [ConversationBegun(""), answer("a", 12, 30, 5), answer("b", 40, 3, 6)]
    assert alone(totals_of(*SMALL, *begun, answer("a", 47, 11, 2))) == {"a": 80 + 30 + 11, "b": 88 + 31}


def test_a_dropped_thought_is_encoded_again_by_everyone() -> None:
    # a thinks 30 of its 40; the next prompt has the other 10, and 5 more.
    assert alone(totals_of(answer("a", 0, 50, 40), answer("a", 50, 15, 40)))["a"] == 65


answers = st.builds(
    answer,
    st.sampled_from("abc"),
    st.integers(0, 500),
    st.integers(0, 500),
    st.integers(0, 50),
    st.sampled_from(["stop", "length", "cancelled"]),
)
others = [ContextCut(2, 9, (), 3), ConversationBegun(""), ConversationResumed("", (), ()), QuestionTakenBack("", 1)]
events = st.one_of(answers, answers, st.sampled_from(others))


@given(st.lists(events, max_size=20))
def test_sharing_never_costs_more_than_a_cache_for_each(given_events: list[Event]) -> None:
    totals = totals_of(*given_events)
    done = [event for event in given_events if isinstance(event, AnswerDone)]
    for name, of in totals.agents.items():
        own = [event for event in done if event.agent == name]
        assert of.answers == len(own)
        assert of.reused == sum(event.reused for event in own)
        assert of.encoded == sum(event.encoded for event in own)
        assert of.generated == sum(event.generated for event in own)
        assert of.encoded <= of.encoded_alone <= of.encoded + of.reused


def test_the_same_as_real_caches_of_their_own(tiny: Tiny, agents: list[Agent], tmp_path: Path) -> None:
    """A conversation that is cut, taken back and begun anew; each agent's own cache holds what it has read and said."""
    totals, caches, counted = Totals(), dict[str, list[int]](), dict.fromkeys("ab", 0)
    with ExitStack() as stack:
        session = make_session(tiny.path, agents[:2], stack, n_ctx=256)
        n_cut = 0
        for i in range(12):
            for request in {7: [TakeBack()], 9: [BeginAnew()]}.get(i, []):
                for event in session.run(request):
                    totals.add(event)
            # Of one the other never reads.
            for event in session.ask(f"question {i} of some length", [["a", "b"], ["b"], ["a"]][i % 3]):
                totals.add(event)
                n_cut += isinstance(event, ContextCut)
                if not isinstance(event, AnswerDone):
                    continue
                held = session.engine.cells.tokens(session.sequence).tolist()
                prompt = held[: event.reused + event.encoded]
                own = caches.get(event.agent, [])
                same = next((n for n, (x, y) in enumerate(zip(own, prompt, strict=False)) if x != y), len(own))
                counted[event.agent] += len(prompt) - min(same, len(prompt))
                caches[event.agent] = held
        assert n_cut
    assert alone(totals) == counted
    assert sum(counted.values()) > sum(of.encoded for of in totals.agents.values())
