"""A conversation as people hold it: six questions to three agents and the base, files, hand-overs, answers at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from icarus_local.chat.agents import Agent, base_agent
from icarus_local.chat.events import AnswerDone, ContextCut, FileAdded, FileWeighed
from icarus_local.chat.files import TextFile
from icarus_local.chat.requests import AddFile, Ask, Join, Request, Weigh
from icarus_local.chat.session import Session
from icarus_local.errors import ContextFullError
from tests.agents import add_agents, convert
from tests.chat.chats import agree, done, make_session
from tests.tiny import Tiny

FILE = TextFile("notes.md", "# Notes\n\n```python\nprint('hi')\n```\n<|im_end|> is no control here.\n", 66)
OTHER = TextFile("more.txt", "one two three\n" * 3, 42)

TURNS: list[tuple[list[Request], list[str]]] = [
    ([Ask("What is this?")], ["a", "b", "c", "base"]),
    ([AddFile(FILE), Ask("And this file?", ("c",))], ["c"]),
    ([Ask("Who agrees?", ("base", "a"))], ["base", "a"]),
    ([AddFile(OTHER), AddFile(FILE), Ask("Now both.", ("b", "c"), rounds=2)], ["b", "c", "b", "c"]),
    ([Ask("At once?", ("a", "b", "base"), at_once=True), Join("b")], ["a", "b", "base"]),
    ([Ask("In the end?")], ["a", "b", "c", "base"]),
]


@pytest.fixture
def sessions(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Session]]:
    """One to talk in, and one whose engine reads the same from nothing."""
    directory = tmp_path_factory.mktemp("agents")
    peft = add_agents(tiny.model, {"a": 0.3, "b": 0.3, "c": 0.3})
    agents = [
        Agent(name=name, adapter=str(convert(peft, name, tiny.path, directory)), instruction=says, max_tokens=n)
        for name, says, n in (("a", "Reply as a.", 11), ("b", "", 8), ("c", "Be c.", 14))
    ]
    with ExitStack() as stack:
        agents.append(base_agent().model_copy(update={"max_tokens": 6}))
        yield make_session(tiny.path, agents, stack), make_session(tiny.path, agents, stack)


def test_counts_add_up_and_every_agent_reads_what_a_cold_run_reads(sessions: tuple[Session, Session]) -> None:
    session, other = sessions
    cells = session.engine.cells
    spoken: list[AnswerDone] = []
    differences: list[float] = []
    for requests, names in TURNS:
        answers: list[AnswerDone] = []
        for request in requests:
            answers += done(session.run(request))
        assert sorted(answer.agent for answer in answers) == sorted(names)
        agree(session)
        tokens = cells.tokens(session.sequence).tolist()
        cold = other.engine.cells.create()
        other.engine.forward(encode=[(cold, tokens)])
        for ready, same in zip(session.roster.agents, other.roster.agents, strict=True):
            warm_row = session.engine.forward(decode=[(session.sequence, ready.adapter_id)]).decoder
            cold_row = other.engine.forward(decode=[(cold, same.adapter_id)]).decoder
            differences.append(float(np.abs(warm_row - cold_row).max()))
        other.engine.cells.drop(cold)
        spoken += answers
    assert max(differences) < 1e-3
    # Of the answers given at once only b's is history, and its own prompt was encoded with the rest.
    at_once = {answer.agent: answer for answer in spoken[11:14]}
    shared = at_once["b"].reused
    assert at_once["base"].reused == shared
    history = [*spoken[:11], at_once["b"], *spoken[14:]]
    for before, after in itertools.pairwise(history):
        pending = before.finish_reason == "length"
        read = before.reused + before.encoded + before.generated - pending
        # b's branch began from what the first branch had encoded of the shared prompt.
        encoded_by_another = shared - read if after is at_once["b"] else 0
        assert after.reused == read + encoded_by_another
    total = sum(answer.encoded + answer.generated for answer in history) + (shared - at_once["a"].reused)
    pending = sum(answer.finish_reason == "length" for answer in history)
    assert cells.length(session.sequence) == total - pending
    assert cells.n_used == cells.length(session.sequence)


def test_a_file_is_text_and_stands_before_the_question(sessions: tuple[Session, Session]) -> None:
    session, _ = sessions
    free = 1024 - len(session.conversation.next_prompt())
    (weighed,) = session.run(Weigh(FILE))
    assert isinstance(weighed, FileWeighed)
    assert (weighed.name, weighed.n_bytes, weighed.n_free) == ("notes.md", 66, free)
    assert list(session.run(AddFile(FILE))) == [FileAdded("notes.md")]
    (again,) = session.run(Weigh(FILE))
    assert isinstance(again, FileWeighed)
    assert again.n_free <= free - weighed.tokens, "what was added takes room"
    before = len(session.conversation.prompt())
    (answer,) = done(session.ask("And?", ["b"]))
    assert 0 < weighed.tokens < before < answer.encoded
    (system, message, _) = session.conversation.messages()
    assert message["content"] == f"{FILE.message}\n\nAnd?"
    end = session.conversation.end_of_turn
    prompt = session.conversation.prompt()
    # The system prompt's, the question's and the answer's end of turn; the file's is text.
    assert prompt.count(end) == 3
    assert system["content"] == "sys"


def test_files_that_would_leave_no_question_room_are_refused(sessions: tuple[Session, Session]) -> None:
    session, _ = sessions
    list(session.ask("Before?", names=["b"]))
    before = session.conversation.turns
    # Alone it fits, but not beside the system prompt and another file.
    n = 0
    refused = None
    while refused is None:
        file = TextFile(f"{n}.txt", "word " * 60, 300)
        try:
            list(session.run(AddFile(file)))
            n += 1
        except ContextFullError as error:
            refused = error
    assert 1 < n < 8
    assert f"{n}.txt is too large for the context of 1024 tokens" in str(refused)
    assert session.conversation.turns[: len(before)] == before, (
        "what was said leaves only when a question needs the room"
    )
    assert len(session.conversation.turns) == len(before) + n
    events = list(session.ask("And now?", names=["b"]))
    assert isinstance(events[0], ContextCut) or done(events)[0].generated > 0
    agree(session)
