"""Sessions and the engine's thread on a tiny real engine: counts add up, stopping leaves cache and history agreeing."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from icarus_local.chat.agents import Agent, base_agent
from icarus_local.chat.events import AnswerDone, AnswerStarted, Event, FileAdded, TextDelta
from icarus_local.chat.files import TextFile
from icarus_local.chat.requests import AddFile, Ask
from icarus_local.chat.session import Session
from icarus_local.chat.speculation import PromptLookup
from icarus_local.chat.worker import Worker
from icarus_local.engine.engine import Engine
from icarus_local.errors import AdapterError, ContextFullError, RequestError
from icarus_local.text.sampler import Sampling
from tests.chat.chats import agree, done, make_roster, make_session
from tests.tiny import Tiny


def test_a_conversation_of_three_agents_counts_every_token_once(session: Session) -> None:
    answers: list[AnswerDone] = []
    for question, names in [("one", []), ("two", ["b"]), ("three", ["base", "a"]), ("four", [])]:
        for event in session.ask(question, names):
            if isinstance(event, AnswerDone):
                answers.append(event)
                cached = session.engine.cells.length(session.sequence)
                # One sampled token may not have been encoded yet, when an answer ended at its length.
                assert event.reused + event.encoded + event.generated - cached in (0, 1)
                assert event.kv_bytes == cached * session.engine.kv_bytes_per_token
                assert event.kv_bytes_separate == 3 * event.kv_bytes
        agree(session)
    assert [event.agent for event in answers] == ["a", "b", "base", "b", "base", "a", "a", "b", "base"]
    for before, after in itertools.pairwise(answers):
        pending = 1 if before.finish_reason == "length" else 0
        assert after.reused == before.reused + before.encoded + before.generated - pending


def test_every_agents_next_logits_are_a_cold_runs(tiny: Tiny, session: Session) -> None:
    for question in ("one", "two"):
        list(session.ask(question))
    tokens = session.engine.cells.tokens(session.sequence).tolist()
    cold = session.engine.cells.create()
    session.engine.forward(encode=[(cold, tokens)])
    for ready in session.roster.agents:
        warm_logits = session.engine.forward(decode=[(session.sequence, ready.adapter_id)]).decoder
        cold_logits = session.engine.forward(decode=[(cold, ready.adapter_id)]).decoder
        assert float(np.abs(warm_logits - cold_logits).max()) < 1e-3


def test_the_first_token_after_a_swap_is_the_new_agents_own(tiny: Tiny, agents: list[Agent]) -> None:
    first, second = agents[0], agents[1].model_copy(update={"sampling": Sampling()})
    with ExitStack() as stack:
        session = make_session(tiny.path, [first, second], stack)
        _, answer = done(list(session.ask("question")))
        token = session.conversation.turns[-1].content[0]
        prompt = session.engine.cells.tokens(session.sequence)[: answer.reused + answer.encoded].tolist()
        cold = session.engine.cells.create()
        session.engine.forward(encode=[(cold, prompt)])
        best = [
            int(session.engine.forward(decode=[(cold, ready.adapter_id)]).decoder[0].argmax())
            for ready in session.roster.agents
        ]
        assert best[0] != best[1], "the agents agree here, so the test could not fail"
        assert token == best[1]


def test_a_handover_encodes_only_its_own_tokens(session: Session) -> None:
    first, second = done(list(session.ask("question", ["a", "base"])))
    pending = 1 if first.finish_reason == "length" else 0
    prompt = session.conversation.prompt()
    tokenizer = session._tokenizer
    handover = [
        *[session.conversation.end_of_turn, *tokenizer.encode("\n")],
        *[
            tokenizer.controls["<|im_start|>"],
            *tokenizer.encode("user\nbase, please answer."),
            session.conversation.end_of_turn,
        ],
        *[*tokenizer.encode("\n"), tokenizer.controls["<|im_start|>"], *tokenizer.encode("assistant\n")],
    ]
    assert second.encoded == len(handover) + pending
    assert len(prompt) >= second.reused + second.encoded


def test_what_the_cache_holds_beyond_the_history_is_encoded_again(session: Session) -> None:
    list(session.ask("question", ["a"]))
    kept = session.engine.cells.length(session.sequence)
    session.engine.forward(encode=[(session.sequence, [5, 6, 7])])
    (answer,) = done(list(session.ask("again", ["b"])))
    assert answer.reused == kept
    agree(session)


def test_text_is_streamed_and_the_same_in_the_end(session: Session) -> None:
    events = list(session.ask("question", ["a"]))
    assert isinstance(events[0], AnswerStarted)
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert text == done(events)[0].text


def test_a_stop_string_ends_an_answer(session: Session, tiny: Tiny, agents: list[Agent]) -> None:
    text = done(list(session.ask("question", ["a"])))[0].text
    stop = text[3:5]
    with ExitStack() as stack:
        other = make_session(tiny.path, [agents[0].model_copy(update={"stop": (stop,)})], stack)
        event = done(list(other.ask("question")))[0]
    assert event.finish_reason == "stop"
    assert event.text == text[: text.index(stop)]


def test_a_stopped_answer_is_kept_and_the_next_goes_on(session: Session) -> None:
    events = session.ask("question", ["a", "b"])
    seen: list[Event] = []
    for event in events:
        seen.append(event)
        if sum(isinstance(e, TextDelta) for e in seen) == 3:
            session.engine.cancel()
    (answer,) = done(seen)
    assert answer.finish_reason == "cancelled"
    assert 0 < answer.generated < 12
    assert session.conversation.turns[-1].speaker == "a"
    agree(session)
    session.engine.clear_cancel()
    after = done(list(session.ask("again", ["b"])))[0]
    assert after.reused >= answer.reused + answer.encoded + answer.generated - 1
    agree(session)


def test_stopped_before_the_first_token_the_question_is_taken_back(session: Session) -> None:
    before = session.conversation.turns
    session.engine.cancel()
    (answer,) = done(list(session.ask("question")))
    assert answer.finish_reason == "cancelled"
    assert answer.generated == 0
    assert session.conversation.turns == before


def test_a_full_context_is_said_and_the_question_taken_back(tiny: Tiny, agents: list[Agent]) -> None:
    with ExitStack() as stack:
        session = make_session(tiny.path, agents[:1], stack, n_ctx=256)
        list(session.ask("short"))
        before = session.conversation.turns
        with pytest.raises(ContextFullError, match="256"):
            list(session.ask("long " * 300))
        assert session.conversation.turns == before
        assert done(list(session.ask("short again")))[0].generated > 0


def test_an_answer_that_reaches_the_end_of_the_context_ends_by_length(tiny: Tiny, agents: list[Agent]) -> None:
    with ExitStack() as stack:
        long = agents[0].model_copy(update={"max_tokens": 10_000})
        session = make_session(tiny.path, [long], stack, n_ctx=256)
        (answer,) = done(list(session.ask("question")))
        if answer.finish_reason == "length":
            assert answer.reused + answer.encoded + answer.generated in (256, 257)


def test_the_worker_answers_in_its_own_thread_and_survives_errors(tiny: Tiny, agents: list[Agent]) -> None:
    with ExitStack() as stack:
        worker = stack.enter_context(Worker(lambda: make_session(tiny.path, agents, stack, n_ctx=256)))
        with pytest.raises(RequestError, match="no agent @nobody here"):
            worker.submit(Ask("question", ("nobody",)))
        with pytest.raises(RequestError, match="empty"):
            worker.submit(Ask("  "))
        with pytest.raises(ContextFullError):
            list(worker.submit(Ask("long " * 300)))
        queued = worker.submit(Ask("never answered"))
        queued.cancel()
        assert [event.generated for event in done(list(queued))] in ([], [0])
        # A stop that came when nothing was left to stop.
        worker.session.engine.cancel()
        assert len(done(list(worker.submit(Ask("question"))))) == 3


def test_a_load_error_reaches_whoever_started_the_worker(tmp_path: Path) -> None:
    def fail() -> Session:
        raise AdapterError("no such adapter")

    with pytest.raises(AdapterError, match="no such adapter"):
        Worker(fail)


def test_agents_that_do_not_fit_are_refused_or_marked(tiny: Tiny, agents: list[Agent], smollm2: Path) -> None:
    with Engine(smollm2, n_ctx=256) as engine:
        with pytest.raises(AdapterError, match=r"agent a: .*--instruction-only"):
            make_roster(agents, engine).add("a")
        ready = make_roster(agents, engine, instruction_only=True).add("a")
        assert ready.adapter_id is None
        assert "speaks as the base" in ready.notices[0]
        roster = make_roster([base_agent()], engine)
        roster.add("base")
        with pytest.raises(RequestError, match="base takes part already"):
            roster.add("base")


def test_closing_cancels_what_is_under_way_and_queued(tiny: Tiny, agents: list[Agent]) -> None:
    with ExitStack() as stack:
        long = agents[0].model_copy(update={"max_tokens": 10_000})
        worker = Worker(lambda: make_session(tiny.path, [long], stack))
        running, queued = worker.submit(Ask("question")), worker.submit(Ask("another"))
        events = iter(running)
        assert isinstance(next(events), AnswerStarted)
        worker.close()
        worker.close()
        (answer,) = done(list(events))
        assert answer.finish_reason in ("cancelled", "stop")
        assert [event.generated for event in done(list(queued))] in ([], [0])


def test_a_prompt_that_was_stopped_counts_what_was_encoded(session: Session) -> None:
    session.engine.cancel()
    (answer,) = done(list(session.ask("question", ["a"])))
    assert (answer.reused, answer.encoded, answer.generated, answer.kv_bytes) == (0, 0, 0, 0)


def test_drafts_change_nothing_of_a_conversation(
    tiny: Tiny, agents: list[Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends by length, by a stop string within drafted tokens, and by a stop in the middle; greedy and sampled."""
    monkeypatch.setattr("icarus_local.chat.speculation._LEAST_GAIN", 0.0)
    longer = [agent.model_copy(update={"max_tokens": 40}) for agent in agents]
    with ExitStack() as stack:
        free = done(list(make_session(tiny.path, longer, stack).ask("one", ["a"])))[0].text
        stopping = longer[0].model_copy(update={"name": "s", "stop": (free[11:14],)})

        def converse(drafts: bool) -> tuple[list[AnswerDone], list[int], Session]:
            session = make_session(tiny.path, [*longer, stopping], stack, speculate=None if drafts else False)
            answers = [
                answer for names in (["a", "b"], ["s"], ["base", "a"]) for answer in done(list(session.ask("q", names)))
            ]
            return answers, session.engine.cells.tokens(session.sequence).tolist(), session

        plain, tokens, _ = converse(drafts=False)

        def draft(lookup: PromptLookup, n: int) -> list[int]:
            """What will be said, with a wrong token now and then."""
            start = len(lookup._tokens)
            return [5 if i % 9 == 4 else token for i, token in enumerate(tokens[start : start + n], start)]

        monkeypatch.setattr(PromptLookup, "draft", draft)
        drafted, drafted_tokens, session = converse(drafts=True)
        assert drafted_tokens == tokens
        for before, after in zip(plain, drafted, strict=True):
            assert (after.text, after.finish_reason) == (before.text, before.finish_reason)
            assert (after.reused, after.encoded, after.generated) == (before.reused, before.encoded, before.generated)
            assert (after.accepted > 0) == (after.agent != "base")
        assert {answer.finish_reason for answer in drafted} == {"stop", "length"}
        agree(session)
        # Stopped by the one who listens, with drafted tokens in the cache.
        events = session.ask("and now?", ["a"])
        for _, event in zip(range(8), events, strict=False):
            assert not isinstance(event, AnswerDone)
        del events
        assert session.engine.cells.n_used == session.engine.cells.length(session.sequence)


def test_a_file_that_agents_read_already_is_not_added_again(session: Session) -> None:
    file, changed = TextFile("a.txt", "one", 3), TextFile("a.txt", "two", 3)
    assert list(session.run(AddFile(file))) == [FileAdded("a.txt")]
    before = session.conversation.turns
    assert list(session.run(AddFile(file))) == [FileAdded("a.txt", already=True)]
    assert session.conversation.turns == before
    assert list(session.run(AddFile(changed))) == [FileAdded("a.txt")]
    assert len(session.conversation.turns) == len(before) + 1
    # What has left the context is read no more.
    session.conversation.leave_out(range(len(session.conversation.turns)))
    assert list(session.run(AddFile(file))) == [FileAdded("a.txt")]
