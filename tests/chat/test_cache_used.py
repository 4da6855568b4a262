"""What the conversation takes of the cache, as it is told: true after each answer, and for nothing that is gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from icarus_local.chat.agents import Agent
from icarus_local.chat.events import AnswerDone, CacheUsed, ContextCut, Event, FileWeighed
from icarus_local.chat.files import TextFile
from icarus_local.chat.requests import AddFile, BeginAnew, Join, TakeBack, Transcribe, Weigh
from icarus_local.chat.session import Session
from icarus_local.engine.engine import StepResult
from icarus_local.errors import CancelledError, ContextFullError, TemplateError
from tests.chat.chats import done, make_session
from tests.tiny import CHATML, Tiny

FILE = TextFile("a.txt", "some text\n", 10)


def told(events: Iterable[Event]) -> list[CacheUsed]:
    return [event for event in events if isinstance(event, CacheUsed)]


def is_true(used: CacheUsed, session: Session) -> bool:
    """Of a conversation without open branches."""
    prompt, tokens = session.conversation.next_prompt(), session.engine.cells.tokens(session.sequence).tolist()
    assert prompt[: used.tokens] == tokens[: used.tokens]
    n_bytes = used.tokens * session.engine.kv_bytes_per_token
    return used == CacheUsed(used.tokens, n_bytes, 3, 3 * n_bytes) and (
        used.tokens == min(len(prompt), len(tokens)) or prompt[used.tokens] != tokens[used.tokens]
    )


def test_it_is_told_behind_each_answer_and_never_twice(session: Session) -> None:
    assert session.opened().cache == CacheUsed(0, 0, 3, 0)
    events = list(session.ask("question"))
    kinds = [type(event) for event in events if isinstance(event, AnswerDone | CacheUsed)]
    assert kinds == [AnswerDone, CacheUsed] * 3
    for answer, used in zip(done(events), told(events), strict=True):
        assert (used.n_bytes, used.n_bytes_separate) == (answer.kv_bytes, answer.kv_bytes_separate)
    assert is_true(told(events)[-1], session)
    for request in (Weigh(FILE), AddFile(FILE), Transcribe("md")):
        # What is added is encoded with the next question.
        assert told(session.run(request)) == []
    assert session.opened().cache == told(events)[-1]


def test_answers_at_once_count_all_cells_and_what_they_spare(session: Session) -> None:
    events = list(session.ask("question", at_once=True))
    last, cells = told(events)[-1], session.engine.cells
    assert len(told(events)) == 3
    assert (last.tokens, last.caches) == (cells.n_used, 3)
    branches = session._branches
    assert branches is not None
    separate = sum(map(cells.length, branches.sequences))
    assert last.n_bytes_separate == separate * session.engine.kv_bytes_per_token > last.n_bytes
    (kept,) = told(session.run(Join("b")))
    assert kept.tokens == cells.n_used == cells.length(session.sequence) < last.tokens
    assert is_true(kept, session)


def test_of_answers_at_once_that_all_stay_one_is_in_the_cache_afterwards(session: Session) -> None:
    last = told(session.ask("question", at_once=True))[-1]
    (used,) = told(session.run(Weigh(FILE)))
    assert used.tokens == session.engine.cells.n_used < last.tokens
    assert is_true(used, session)


def test_what_left_the_conversation_is_not_counted(session: Session) -> None:
    list(session.ask("one", ["a"]))
    before = session.opened().cache
    list(session.ask("two", ["a"]))
    (used,) = told(session.run(TakeBack()))
    assert before.tokens <= used.tokens < session.engine.cells.length(session.sequence)
    assert is_true(used, session)
    (anew,) = told(session.run(BeginAnew()))
    # The system prompt, and what every template writes before a turn.
    assert 0 < anew.tokens < used.tokens
    assert is_true(anew, session)


def test_a_cut_is_counted(tiny: Tiny, agents: list[Agent]) -> None:
    with ExitStack() as stack:
        session = make_session(tiny.path, agents, stack, n_ctx=256)
        events: list[Event] = []
        while not any(isinstance(event, ContextCut) for event in events):
            events = list(session.ask("a question of some words", ["a"]))
        used = told(events)[-1]
        assert used.tokens == session.engine.cells.length(session.sequence) < 200
        assert is_true(used, session)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_question_that_was_stopped_in_its_prompt_takes_nothing(session: Session, at_once: bool) -> None:
    list(session.ask("one", ["a"]))
    before = session.opened().cache
    session.engine.cancel()
    after = [before, *told(session.ask("a question of many words", at_once=at_once))][-1]
    assert is_true(after, session)
    assert after.tokens - before.tokens < 10  # what follows any answer


def test_one_who_was_stopped_behind_its_prompt_takes_nothing(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Event] = []
    forward = session.engine.forward

    def stop(encode: Any = (), decode: Any = (), **options: Any) -> StepResult:
        if decode:
            raise CancelledError("the step was cancelled")
        return forward(encode, decode, **options)

    for event in session.ask("question", ["a", "base"]):
        seen.append(event)
        if isinstance(event, AnswerDone):
            after_a = session.opened().cache
            monkeypatch.setattr(session.engine, "forward", stop)
    assert [answer.generated > 0 for answer in done(seen)] == [True, False]
    assert session.conversation.turns[-1].speaker == "a"
    last = session.opened().cache
    assert is_true(last, session)
    assert last.tokens - after_a.tokens < 10


def test_a_refused_question_leaves_it_as_it_was(session: Session) -> None:
    list(session.ask("one", ["a"]))
    before = session.opened().cache
    events: list[Event] = []
    with pytest.raises(ContextFullError):
        events += session.ask("word " * 2000)
    assert events == []
    assert session.opened().cache == before


STRICT = (
    "{% if messages|selectattr('role', 'equalto', 'user')|list|length == 0 %}{{ raise_exception('No user query') }}"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)


@pytest.fixture
def strict(tiny: Tiny, agents: list[Agent]) -> Iterator[Session]:
    with ExitStack() as stack:
        yield make_session(tiny.path, agents, stack, template=STRICT)


def test_a_template_that_wants_a_question_does_not_stand_in_the_way(strict: Session) -> None:
    """Some refuse a conversation in which nobody has asked."""
    with pytest.raises(TemplateError, match="No user query"):
        strict.conversation.prompt()
    weighed, *_ = strict.run(Weigh(FILE))
    assert isinstance(weighed, FileWeighed)
    assert strict.engine.n_ctx - 60 < weighed.n_free < strict.engine.n_ctx
    list(strict.ask("question", ["a"]))
    for request in (TakeBack(), BeginAnew()):
        (used,) = told(strict.run(request))
        assert 0 < used.tokens < 30
        list(strict.ask("question", ["a"]))


def test_a_template_that_writes_the_last_answer_otherwise_does_not_hide_it(tiny: Tiny, agents: list[Agent]) -> None:
    """As Qwen 3 does, with an empty thought before it."""
    template = CHATML.replace(
        "{{ message['content'] }}",
        "{{ '<t>' if loop.last and message['role'] == 'assistant' }}{{ message['content'] }}",
    )
    assert template != CHATML
    with ExitStack() as stack:
        session = make_session(tiny.path, agents, stack, template=template)
        used = told(session.ask("one", ["a"]))[-1]
        assert used.tokens == session.engine.cells.length(session.sequence) == session.cached.length
        list(session.ask("two", ["a"]))
        (after,) = told(session.run(TakeBack()))
        assert after.tokens >= used.tokens
