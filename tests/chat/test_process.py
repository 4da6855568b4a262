"""The engine in a process of its own: what ends it costs an answer, and nothing else."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from icarus_local.chat.agents import Agent
from icarus_local.chat.events import AnswerDone, ConversationBegun, ConversationResumed, Event, TextDelta, Transcribed
from icarus_local.chat.process import EngineProcess
from icarus_local.chat.reply import Reply
from icarus_local.chat.requests import AddAgent, Ask, BeginAnew, RemoveAgent, Resume, TakeBack, Transcribe
from icarus_local.chat.store import Store
from icarus_local.errors import AdapterError, EngineDiedError, IcarusError, RequestError
from tests.chat import openers
from tests.chat.chats import done, make_session
from tests.tiny import Tiny

LIMIT_S = 0.3  # within which a stop must be seen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@pytest.fixture
def chat(tiny: Tiny, agents: list[Agent], folder: Path) -> Iterator[EngineProcess]:
    with EngineProcess(partial(openers.open_tiny, tiny.path, agents, folder)) as chat:
        yield chat


def fails(reply: Reply) -> tuple[list[Event], BaseException]:
    """Events up to the error that ends a reply."""
    events: list[Event] = []
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is for the test to say
        events += iter(reply)
    assert list(reply) == [], "an error is told once, and then it is over"
    return events, caught.value


def test_it_answers_as_an_engine_in_the_same_process_does(tiny: Tiny, agents: list[Agent], chat: EngineProcess) -> None:
    assert chat.opened.agents == ("a", "b", "base")
    assert chat.opened.n_ctx == 1024
    assert chat.opened.notices == ("a notice",)
    with ExitStack() as stack:
        session = make_session(tiny.path, agents, stack)
        for question, names in (("one", ()), ("two", ("b",))):
            here = done(session.ask(question, names))
            there = done(chat.submit(Ask(question, names)))
            assert [(a.agent, a.text, a.reused, a.encoded) for a in there] == [
                (a.agent, a.text, a.reused, a.encoded) for a in here
            ]


@pytest.mark.skipif(sys.platform == "win32", reason="names signals")
@pytest.mark.parametrize(("question", "why"), [("abort", "SIGABRT.*GGML_ASSERT"), ("kill", "SIGKILL")])
def test_a_dead_engine_costs_the_answer_and_not_what_was_said(
    chat: EngineProcess, folder: Path, question: str, why: str
) -> None:
    (first,) = done(chat.submit(Ask("one", ("a",))))
    failing, queued = chat.submit(Ask(question)), chat.submit(Ask("two", ("b",)))
    _, error = fails(failing)
    assert isinstance(error, EngineDiedError)
    with pytest.raises(EngineDiedError, match=f"the engine ended unexpectedly .*{why}"):
        raise error
    assert "started again; the conversation goes on" in error.hint
    (second,) = done(queued)
    # All that was said is read again, and nothing of the question that it died of.
    assert second.reused == 0
    assert second.encoded > first.encoded + first.generated
    (third,) = done(chat.submit(Ask("three", ("a",))))
    assert third.reused > second.encoded
    chat.close()
    turns = Store(folder).turns(chat.opened.conversation)
    assert [(turn.speaker, turn.text) for turn in turns if turn.speaker == "user"] == [
        *(("user", "one"), ("user", "two"), ("user", "three"))
    ]
    assert [turn.text for turn in turns if turn.tokens is not None] == [first.text, second.text, third.text]


@pytest.mark.skipif(sys.platform == "win32", reason="names signals")
def test_an_abort_within_an_answer_takes_the_question_back(chat: EngineProcess, folder: Path) -> None:
    events, error = fails(chat.submit(Ask("hang")))
    assert any(isinstance(event, TextDelta) for event in events)
    assert isinstance(error, EngineDiedError)
    (answer,) = done(chat.submit(Ask("again", ("a",))))
    assert answer.generated > 0
    chat.close()
    turns = Store(folder).turns(chat.opened.conversation)
    assert [turn.text for turn in turns if turn.speaker == "user"] == ["again"]


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
def test_an_engine_that_dies_idle_is_there_when_it_is_asked(chat: EngineProcess) -> None:
    (first,) = done(chat.submit(Ask("one", ("a",))))
    os.kill(chat._child._process.pid, signal.SIGKILL)
    (second,) = done(chat.submit(Ask("two", ("b",))))
    assert second.encoded > first.encoded
    assert second.reused == 0


def test_without_saving_it_says_that_it_begins_anew(tiny: Tiny, agents: list[Agent]) -> None:
    with EngineProcess(partial(openers.open_tiny, tiny.path, agents, None)) as chat:
        list(chat.submit(Ask("one", ("a",))))
        _, error = fails(chat.submit(Ask("abort")))
        assert isinstance(error, EngineDiedError)
        assert "was not saved and begins anew" in error.hint
        assert done(chat.submit(Ask("one", ("a",))))[0].reused == 0


def test_after_a_new_conversation_that_one_goes_on(chat: EngineProcess, folder: Path) -> None:
    old = chat.opened.conversation
    list(chat.submit(Ask("one", ("a",))))
    begun, _ = chat.submit(BeginAnew())
    assert isinstance(begun, ConversationBegun)
    assert begun.conversation not in ("", old)
    list(chat.submit(Ask("two", ("a",))))
    fails(chat.submit(Ask("abort")))
    list(chat.submit(Ask("three", ("a",))))
    chat.close()
    store = Store(folder)
    asked = {
        saved.id: [turn.text for turn in store.turns(saved.id) if turn.speaker == "user"] for saved in store.sessions()
    }
    assert asked == {old: ["one"], begun.conversation: ["two", "three"]}


def test_what_cannot_be_opened_is_told_as_it_is() -> None:
    with pytest.raises(AdapterError, match=r"no such adapter\. Give another") as caught:
        EngineProcess(openers.refuse)
    assert caught.value.hint == "Give another"
    with pytest.raises(EngineDiedError, match="ended unexpectedly"):
        EngineProcess(openers.die)


def test_what_cannot_be_opened_again_ends_what_is_asked(tiny: Tiny, agents: list[Agent]) -> None:
    with EngineProcess(partial(openers.only_once, tiny.path, agents)) as chat:
        list(chat.submit(Ask("one", ("a",))))
        failing, queued = chat.submit(Ask("abort")), chat.submit(Ask("two"))
        for reply in (failing, queued):
            _, error = fails(reply)
            assert isinstance(error, EngineDiedError)
            assert "could not be started again: the base has gone" in str(error)
        with pytest.raises(EngineDiedError, match="the base has gone"):
            chat.submit(Ask("three"))


def test_a_fault_ends_one_request(chat: EngineProcess) -> None:
    _, error = fails(chat.submit(Ask("bug")))
    assert isinstance(error, IcarusError)
    assert "KeyError: 'a bug'" in str(error)
    assert len(done(chat.submit(Ask("question")))) == 3
    for ask, message in ((Ask(""), "empty"), (Ask("hi", ("nobody",)), "no agent @nobody")):
        with pytest.raises(RequestError, match=message):
            chat.submit(ask)


def test_stops_are_seen_at_once_running_and_queued(tiny: Tiny, agents: list[Agent]) -> None:
    endless = [agents[0].model_copy(update={"max_tokens": 100_000})]
    with EngineProcess(partial(openers.open_tiny, tiny.path, endless, None)) as chat:
        took = []
        for _ in range(3):
            running, queued = chat.submit(Ask("endless")), chat.submit(Ask("never"))
            events = iter(running)
            while not isinstance(next(events), TextDelta):
                pass
            start = time.perf_counter()
            queued.cancel()
            running.cancel()
            (answer,) = done(events)
            assert answer.finish_reason == "cancelled"
            took.append(time.perf_counter() - start)
            assert [answer.generated for answer in done(queued)] in ([], [0])
        assert min(took) < LIMIT_S


def test_what_it_prints_reaches_the_log_and_not_the_terminal(
    chat: EngineProcess, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert len(done(chat.submit(Ask("noise", ("a",))))) == 1
        chat.close()
    assert ("icarus_local.ggml.log", logging.WARNING, "a line of C") in caplog.record_tuples
    assert any("on stderr" in text for _, _, text in caplog.record_tuples)
    assert any("printed" in text for _, _, text in caplog.record_tuples)
    assert capfd.readouterr() == ("", "")


def test_closing_tells_what_was_not_saved(tiny: Tiny, agents: list[Agent]) -> None:
    chat = EngineProcess(partial(openers.full_disk, tiny.path, agents))
    with pytest.raises(IcarusError, match="is not saved"):
        chat.close()
    chat.close()
    with pytest.raises(RequestError, match="closed"):
        chat.submit(Ask("hello"))


def test_closing_stops_what_is_under_way(tiny: Tiny, agents: list[Agent]) -> None:
    endless = [agents[0].model_copy(update={"max_tokens": 100_000})]
    chat = EngineProcess(partial(openers.open_tiny, tiny.path, endless, None))
    running, queued = chat.submit(Ask("question")), chat.submit(Ask("another"))
    start = time.perf_counter()
    chat.close()
    assert time.perf_counter() - start < 5
    for reply in (running, queued):
        assert all(answer.finish_reason in ("cancelled", "stop", "length") for answer in done(reply))


PARENT = """
import sys
from functools import partial
from pathlib import Path
import pickle
from icarus_local.chat.process import EngineProcess
from icarus_local.chat.requests import Ask
from tests.chat import openers
base, agents, folder = pickle.loads(bytes.fromhex(sys.argv[1]))
chat = EngineProcess(partial(openers.open_tiny, base, agents, folder))
list(chat.submit(Ask("one", ("a",))))
print(chat._child._process.pid, chat.opened.conversation, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
def test_when_the_program_is_killed_the_engine_saves_and_goes(tiny: Tiny, agents: list[Agent], folder: Path) -> None:
    given = pickle.dumps((tiny.path, agents, folder)).hex()
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, conversation = parent.stdout.readline().split()
        parent.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()
    assert Store(folder).state_file(conversation).exists()
    with EngineProcess(partial(openers.open_tiny, tiny.path, agents, folder)) as chat:
        assert any(isinstance(event, AnswerDone) for event in chat.submit(Ask("x", ("a",))))


# -- agents who come and go, and other conversations -------------------------------------------------------------------


@pytest.fixture
def more(agents: list[Agent]) -> list[Agent]:
    """Besides those who take part, two who may be added."""
    return [*agents, *(agents[1].model_copy(update={"name": name}) for name in ("x1", "x2"))]


@pytest.fixture
def growing(tiny: Tiny, more: list[Agent], folder: Path) -> Iterator[EngineProcess]:
    with EngineProcess(partial(openers.open_tiny, tiny.path, more, folder)) as chat:
        yield chat


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
def test_after_a_death_those_take_part_who_did_then(growing: EngineProcess, folder: Path) -> None:
    assert growing.opened.engine == 0
    for request in (AddAgent("x1"), RemoveAgent("a")):
        list(growing.submit(request))
    assert growing.opened.agents == ("b", "base", "x1")
    list(growing.submit(Ask("one", ("x1",))))
    fails(growing.submit(Ask("kill")))
    assert growing.opened.agents == ("b", "base", "x1")
    assert growing.opened.engine == 1
    assert [answer.agent for answer in done(growing.submit(Ask("two")))] == ["b", "base", "x1"]
    os.kill(growing._child._process.pid, signal.SIGKILL)
    list(growing.submit(AddAgent("x2")))
    assert (growing.opened.engine, growing.opened.agents) == (2, ("b", "base", "x1", "x2"))
    growing.close()
    assert [turn.text for turn in Store(folder).turns(growing.opened.conversation) if turn.speaker == "user"] == [
        *("one", "two")
    ]


def test_questions_are_checked_by_who_is_there(growing: EngineProcess) -> None:
    with pytest.raises(RequestError, match="no agent @x1"):
        growing.submit(Ask("one", ("x1",)))
    list(growing.submit(AddAgent("x1")))
    assert len(done(growing.submit(Ask("one", ("x1",))))) == 1
    # Asked before the news has come that it is gone: this question alone fails.
    before = growing.opened
    list(growing.submit(RemoveAgent("x1")))
    growing.opened = before
    _, error = fails(growing.submit(Ask("two", ("x1",))))
    assert isinstance(error, RequestError)
    assert "no agent @x1 here" in str(error)
    assert growing.opened.engine == 0
    assert len(done(growing.submit(Ask("three", ("a",))))) == 1


def test_what_cannot_be_added_is_said_and_ends_nothing(growing: EngineProcess) -> None:
    before = growing.opened
    _, error = fails(growing.submit(AddAgent("nobody")))
    assert isinstance(error, RequestError)
    assert growing.opened is before
    assert len(done(growing.submit(Ask("one")))) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="names signals")
def test_after_a_death_the_conversation_goes_on_that_was_resumed(chat: EngineProcess, folder: Path) -> None:
    first = chat.opened.conversation
    list(chat.submit(Ask("one", ("a",))))
    list(chat.submit(BeginAnew()))
    list(chat.submit(Ask("two", ("a",))))
    event, *_ = chat.submit(Resume(""))
    assert isinstance(event, ConversationResumed)
    assert event.conversation == first
    fails(chat.submit(Ask("abort")))
    assert chat.opened.conversation == first
    list(chat.submit(Ask("three", ("a",))))
    chat.close()
    store = Store(folder)
    assert [turn.text for turn in store.turns(first) if turn.speaker == "user"] == ["one", "three"]


@pytest.mark.skipif(sys.platform == "win32", reason="names signals")
def test_what_was_taken_back_does_not_come_again_after_a_death(chat: EngineProcess) -> None:
    for request in (Ask("one", ("a",)), Ask("two", ("a",)), TakeBack()):
        list(chat.submit(request))
    fails(chat.submit(Ask("abort")))
    text = next(event.text for event in chat.submit(Transcribe("md")) if isinstance(event, Transcribed))
    assert "one" in text
    assert "two" not in text
