"""Answers at once: the same as if each agent alone had been asked, over one shared prompt; then one joins, or all."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest

from icarus_local.chat.agents import Agent
from icarus_local.chat.branches import shared_length
from icarus_local.chat.events import AnswerDone, AnswersJoined, AnswerStarted, ContextCut, Event, TextDelta
from icarus_local.chat.requests import Join
from icarus_local.chat.session import Session
from icarus_local.errors import RequestError
from icarus_local.text.tokenizer import Tokenizer
from tests.chat.chats import agree, done, make_session
from tests.tiny import Tiny


def test_each_answers_as_if_it_alone_had_been_asked(tiny: Tiny, agents: list[Agent], session: Session) -> None:
    list(session.ask("before", ["a"]))
    events = list(session.ask("question", at_once=True))
    together = {answer.agent: answer for answer in done(events)}
    for name in session.names:
        with ExitStack() as stack:
            alone = make_session(tiny.path, agents, stack)
            list(alone.ask("before", ["a"]))
            (answer,) = done(alone.ask("question", [name]))
        # An F32 base with an f32 cache: rows of other steps round otherwise by 1e-5, which draws the same tokens.
        assert together[name].text == answer.text
        assert together[name].finish_reason == answer.finish_reason
    assert len({answer.text for answer in together.values()}) == 3, "all say the same, so nothing is shown"


def test_first_logits_are_those_of_a_cold_run(session: Session) -> None:
    list(session.ask("question", at_once=True))
    branches = session._branches
    assert branches is not None
    for generation, sequence in zip(branches.generations, branches.sequences, strict=True):
        tokens = session.engine.cells.tokens(sequence).tolist()
        assert tokens[: len(generation.prompt)] == generation.prompt
        cold = session.engine.cells.create()
        session.engine.forward(encode=[(cold, tokens)])
        adapter = generation.speaker.adapter_id
        warm_row, cold_row = session.engine.forward(decode=[(sequence, adapter), (cold, adapter)]).decoder
        assert float(np.abs(warm_row - cold_row).max()) < 1e-3
        session.engine.cells.drop(cold)


def test_the_shared_prompt_is_encoded_once_and_counted_once(session: Session) -> None:
    first = done(session.ask("before", ["a"]))[0]
    pending = first.finish_reason == "length"
    events = list(session.ask("question", at_once=True))
    answers = done(events)
    branches = session._branches
    assert branches is not None
    prompts = [generation.prompt for generation in branches.generations]
    shared = shared_length(prompts)
    in_order = {answer.agent: answer for answer in answers}
    a, b, base = (in_order[name] for name in ("a", "b", "base"))
    assert a.reused == first.reused + first.encoded + first.generated - pending
    assert a.reused + a.encoded == len(prompts[0])
    for answer, prompt in ((b, prompts[1]), (base, prompts[2])):
        assert (answer.reused, answer.encoded) == (shared, len(prompt) - shared)
    # What all of them take lies in the cache, and the shared part once.
    cells = session.engine.cells
    assert cells.n_used == shared + sum(cells.length(sequence) - shared for sequence in branches.sequences)
    last = answers[-1]
    assert last.kv_bytes == cells.n_used * session.engine.kv_bytes_per_token
    assert last.kv_bytes_separate == sum(map(cells.length, branches.sequences)) * session.engine.kv_bytes_per_token


def test_text_comes_from_all_in_turn(session: Session) -> None:
    events = list(session.ask("question", at_once=True))
    assert [event.agent for event in events if isinstance(event, AnswerStarted)] == ["a", "b", "base"]
    texts = [event for event in events if isinstance(event, TextDelta)]
    for answer in done(events):
        assert "".join(event.text for event in texts if event.agent == answer.agent) == answer.text
    speakers = [event.agent for event in texts]
    assert speakers.index("b") < len(speakers) - 1 - speakers[::-1].index("a"), "one after another"


def test_all_join_and_what_the_first_had_not_seen_is_encoded_with_the_next_question(session: Session) -> None:
    answers = {answer.agent: answer for answer in done(session.ask("question", at_once=True))}
    assert [turn.speaker for turn in session.conversation.turns] == [
        *("system", "user", "hand-over", "a", "hand-over", "b", "hand-over", "base")
    ]
    first = answers["a"]
    pending = first.finish_reason == "length"
    agree(session)
    (after,) = done(session.ask("and now?", ["b"]))
    assert after.reused == first.reused + first.encoded + first.generated - pending
    assert after.encoded > answers["b"].generated + answers["base"].generated
    agree(session)
    assert session.engine.cells.n_used == session.engine.cells.length(session.sequence)


@pytest.mark.parametrize("name", ["a", "b", "base"])
def test_the_chosen_answer_joins_with_its_cells(session: Session, name: str) -> None:
    chosen = {answer.agent: answer for answer in done(session.ask("question", at_once=True))}[name]
    joined, *_ = session.run(Join(name))
    assert joined == AnswersJoined((name,))
    read = [turn.speaker for turn in session.conversation.turns if turn.in_context]
    assert read == ["system", "user", *(["hand-over"] if name == "a" else []), name]
    # The others stay in the transcript.
    assert {turn.speaker for turn in session.conversation.turns if turn.role == "assistant"} == {"a", "b", "base"}
    assert session.engine.cells.n_used == session.engine.cells.length(session.sequence)
    agree(session)
    pending = chosen.finish_reason == "length"
    (after,) = done(session.ask("and now?", ["a"]))
    assert after.reused == len(_prompt_before(session)) + chosen.generated - pending
    with pytest.raises(RequestError, match="right after they were given at once"):
        list(session.run(Join(name)))


def _prompt_before(session: Session) -> list[int]:
    """The prompt that the chosen answer followed."""
    turns = session.conversation.turns
    answers = [i for i, turn in enumerate(turns) if turn.in_context and turn.role == "assistant"]
    session.conversation.turns = turns[: answers[0]]
    prompt = session.conversation.prompt()
    session.conversation.turns = turns
    return prompt


def test_one_who_has_not_answered_cannot_be_chosen(session: Session) -> None:
    list(session.ask("question", ["a", "b"], at_once=True))
    with pytest.raises(RequestError, match=r"base has given no answer to choose\. There are answers of a, b"):
        list(session.run(Join("base")))
    list(session.run(Join("b")))


def test_stopped_answers_are_kept_and_branches_go(session: Session) -> None:
    seen: list[Event] = []
    for event in session.ask("question", at_once=True):
        seen.append(event)
        if sum(isinstance(e, TextDelta) for e in seen) == 4:
            session.engine.cancel()
    assert {answer.finish_reason for answer in done(seen)} <= {"cancelled", "stop"}
    assert len(done(seen)) == 3
    assert [turn.speaker for turn in session.conversation.turns if turn.role == "assistant"] == ["a", "b", "base"]
    agree(session)
    session.engine.clear_cancel()
    list(session.ask("again", ["a"]))
    agree(session)
    assert session.engine.cells.n_used == session.engine.cells.length(session.sequence)


def test_stopped_in_the_prompt_the_question_is_taken_back(session: Session) -> None:
    before = session.conversation.turns
    session.engine.cancel()
    answers = done(session.ask("question", at_once=True))
    assert [(answer.finish_reason, answer.encoded, answer.generated) for answer in answers] == [("cancelled", 0, 0)] * 3
    assert session.conversation.turns == before
    session.engine.clear_cancel()
    assert len(done(session.ask("question", at_once=True))) == 3


def test_a_caller_who_stops_listening_leaves_history_and_cache_agreeing(session: Session) -> None:
    for event in session.ask("question", at_once=True):
        if isinstance(event, AnswerDone):
            break
    answered = [turn.speaker for turn in session.conversation.turns if turn.role == "assistant"]
    assert answered == ["a", "b", "base"]
    agree(session)
    list(session.ask("again", ["b"]))
    assert session.engine.cells.n_used == session.engine.cells.length(session.sequence)


def test_the_cache_is_shared_out_until_it_is_full(
    tiny: Tiny, agents: list[Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "is_end_of_generation", lambda *_: False)
    long = [agent.model_copy(update={"max_tokens": 10_000}) for agent in agents[:2]]
    with ExitStack() as stack:
        session = make_session(tiny.path, long, stack, n_ctx=256)
        answers = done(session.ask("question", at_once=True))
        assert {answer.finish_reason for answer in answers} == {"length"}
        assert session.engine.cells.n_free < 2
        events = list(session.ask("again", at_once=True))
        assert any(isinstance(event, ContextCut) for event in events)
        assert len(done(events)) == 2


def test_beginnings_that_prompts_share() -> None:
    assert shared_length([[1, 2, 3], [1, 2], [1, 2, 4]]) == 2
    assert shared_length([[1, 2]]) == 2
    assert shared_length([[1], [2]]) == 0


def test_an_adapter_without_instruction_needs_no_tokens_of_its_own(tiny: Tiny, agents: list[Agent]) -> None:
    """Prompts that are equal share all cells: nothing is encoded for the second."""
    with ExitStack() as stack:
        session = make_session(tiny.path, [agents[1], agents[2]], stack)
        first, second = done(session.ask("question", at_once=True))
        b, base = (first, second) if first.agent == "b" else (second, first)
        assert base.encoded == 0
        assert base.reused == b.reused + b.encoded
