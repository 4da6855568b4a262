"""A full context: what goes is old and whole, what is needed stays, and every number that is told is right."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import event as happened
from hypothesis import given, settings
from hypothesis import strategies as st

from icarus_local.chat.agents import Agent
from icarus_local.chat.conversation import FILE, SYSTEM, USER, Conversation, Turn
from icarus_local.chat.events import AnswerDone, ContextCut, Event, FileAdded
from icarus_local.chat.files import TextFile
from icarus_local.chat.requests import AddFile, BeginAnew
from icarus_local.chat.room import make_room, room_for
from icarus_local.chat.session import Session
from icarus_local.errors import ContextFullError
from icarus_local.text.template import Answer, ChatTemplate
from icarus_local.text.tokenizer import Tokenizer
from tests.chat.chats import agree, done, make_session
from tests.tiny import Tiny

AGENTS = [Agent(name="a", instruction="Be a."), Agent(name="plain"), Agent(name="c", instruction="Say what c says.")]


class Letters:
    """A vocabulary whose tokens are characters, so that a text of n characters takes n tokens."""

    def __init__(self) -> None:
        self.controls = {"<c>": 1, "<cc>": 2}
        self.user_defined: list[str] = []
        self.bos, self.eos = None, 2

    def encode(self, text: str) -> list[int]:
        return [1000 + ord(c) for c in text]

    def token_text(self, token: int | None) -> str:
        return {1: "<c>", 2: "<cc>"}.get(token or 0, "")


_TAKE_TURNS = "{% if (m.role == 'user') != (loop.index0 % 2 == first) %}{{ raise_exception('take turns') }}{% endif %}"
_EACH = f"{{% for m in messages %}}{_TAKE_TURNS}<c>{{{{ m.role[0] }}}}{{{{ m.content }}}}<cc>{{% endfor %}}<c>a"
TEMPLATES = {
    "shows the system": ChatTemplate("{% set first = 1 if messages[0].role == 'system' else 0 %}" + _EACH, Letters()),
    "refuses it": ChatTemplate(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{% set first = 0 %}" + _EACH,
        Letters(),
    ),
}


@dataclass
class Exchange:
    """Where the turns of one question lie: its files and itself, and each answer with its hand-over."""

    asked: list[int] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)

    @property
    def turns(self) -> list[int]:
        return [*self.asked, *itertools.chain.from_iterable(self.answers)]


lengths = st.integers(1, 40)
answers = st.tuples(st.sampled_from(AGENTS), lengths)


class Talk:
    """A random conversation whose newest question waits for an answer."""

    def __init__(self, draw: st.DrawFn) -> None:
        system = draw(st.sampled_from(["", "sys"]))
        self.conversation = Conversation(TEMPLATES[draw(st.sampled_from(sorted(TEMPLATES)))], system)
        self._names = (f"f{i}.py" for i in itertools.count())
        self.exchanges: list[Exchange] = []
        for _ in range(draw(st.integers(0, 6))):
            self._ask(draw)
            given = draw(st.lists(answers, min_size=1, max_size=3))
            # Of answers at once only the last joins, where one was chosen.
            others_go = draw(st.booleans())
            for i, (agent, n) in enumerate(given):
                self._answer(agent, n, goes=others_go and i < len(given) - 1)
        for exchange in self.exchanges[: draw(st.integers(0, 2))]:
            self.conversation.leave_out(exchange.turns)
        self._ask(draw)
        for agent, n in draw(st.lists(answers, max_size=4)):
            self._answer(agent, n)
        self.conversation.hand_over(draw(st.sampled_from(AGENTS)))

    def _ask(self, draw: st.DrawFn) -> None:
        start = len(self.conversation.turns)
        for n in draw(st.lists(lengths, max_size=2)):
            self.conversation.add_file(TextFile(next(self._names), "x" * n, n).message)
        self.conversation.ask("q" * draw(st.integers(1, 120)))
        self.exchanges.append(Exchange(list(range(start, len(self.conversation.turns)))))

    def _answer(self, agent: Agent, n: int, goes: bool = False) -> None:
        start = len(self.conversation.turns)
        self.conversation.hand_over(agent)
        self.conversation.answer(agent.name, Answer([7] * n))
        span = list(range(start, len(self.conversation.turns)))
        if goes:
            self.conversation.leave_out(span)
        self.exchanges[-1].answers.append(span)

    def read(self, indices: Sequence[int]) -> list[int]:
        """Those that are in context."""
        return [i for i in indices if self.conversation.turns[i].in_context]

    def measure(self) -> int:
        return len(self.conversation.prompt())

    def measured_without(self, indices: Sequence[int]) -> int:
        before = self.conversation.turns
        self.conversation.leave_out(indices)
        length = self.measure()
        self.conversation.turns = before
        return length


talks = st.composite(Talk)()


@settings(max_examples=400, deadline=None)
@given(talks, st.data())
def test_what_goes_is_old_and_whole_and_what_is_needed_stays(talk: Talk, data: st.DataObject) -> None:
    conversation, before, length = talk.conversation, talk.conversation.turns, talk.measure()
    older = [read for exchange in talk.exchanges[:-1] if (read := talk.read(exchange.turns))]
    newest = talk.exchanges[-1]
    every = [i for group in [*older, *newest.answers] for i in group]
    least = talk.measured_without(every)
    n_ctx = data.draw(st.integers(max(least - 20, 4), length + 50))
    room = data.draw(st.integers(1, n_ctx // 4) | st.integers(1, n_ctx))
    try:
        removed = make_room(conversation, talk.measure, n_ctx, room)
    except ContextFullError as error:
        happened("full")
        assert conversation.turns == before
        _is_exact(talk, error, n_ctx, room, least)
        return
    assert least < n_ctx
    after = talk.measure()
    gone = [i for i, (old, new) in enumerate(zip(before, conversation.turns, strict=True)) if old != new]
    # Nothing but that it is in context changes, and nothing changes its place.
    assert conversation.turns == tuple(
        replace(t, in_context=t.in_context and i not in gone) for i, t in enumerate(before)
    )
    if length + room <= n_ctx:
        happened("fits")
        assert removed is None
    if removed is None:
        assert not gone
        assert length + room <= n_ctx or not every
        return
    assert (removed.turns, removed.tokens) == (len(gone), length - after)
    contents = [str(before[i].content) for i in gone if before[i].speaker == "file"]
    assert removed.files == tuple(re.findall(r"(?m)^File (f\d+\.py):$", "\n".join(contents)))
    # The oldest exchanges and no part of another; then the oldest answers, and only once all those have gone.
    conversation.turns = before
    n_older = next(n for n in range(len(older) + 1) if set(itertools.chain(*older[n:])).isdisjoint(gone))
    n_answers = next(
        n for n in range(len(newest.answers) + 1) if set(itertools.chain(*newest.answers[n:])).isdisjoint(gone)
    )
    groups = [*older[:n_older], *newest.answers[:n_answers]]
    assert gone == sorted(itertools.chain(*groups))
    assert n_answers == 0 or n_older == len(older)
    happened("answers of the newest went" if n_answers else "only older ones went")
    # It fits, or all that may go has gone.
    assert after + room <= n_ctx or gone == sorted(every)
    # Many go at once, and no more than that; of the newest question's answers as few as possible.
    enough = min(n_ctx // 2, n_ctx - room)
    assert after <= enough or n_older == len(older)
    if n_older:
        assert talk.measured_without([i for group in older[: n_older - 1] for i in group]) > enough
    if n_answers:
        assert talk.measured_without([i for group in groups[:-1] for i in group]) + room > n_ctx
    # The newest question is there, with its files, and so is who is to answer it.
    conversation.leave_out(gone)
    assert all(conversation.turns[i].in_context for i in newest.asked)
    assert all(turn.in_context for turn in conversation.turns[:1] if turn.speaker == "system")
    roles = [message["role"] for message in conversation.messages()]
    body = roles[roles[0] == "system" :]
    assert body == [*["user", "assistant"] * (len(body) // 2), "user"]


def _is_exact(talk: Talk, error: ContextFullError, n_ctx: int, room: int, least: int) -> None:
    """The question is as much too long as is said, not a token more or less."""
    match = re.match(
        r"the question is (\d+) tokens? too long: .* it takes (\d+), and the context holds (\d+)", error.what
    )
    assert match is not None
    too_long = int(match[1])
    assert (least, n_ctx) == (int(match[2]), int(match[3]))
    assert least - too_long == n_ctx - 1
    conversation, before = talk.conversation, talk.conversation.turns
    place = talk.exchanges[-1].asked[-1]
    text = str(before[place].content)
    for shorter, fits in ((too_long, True), (too_long - 1, False)):
        if shorter < len(text):
            turn = replace(before[place], content=text[: len(text) - shorter])
            conversation.turns = (*before[:place], turn, *before[place + 1 :])
            if fits:
                make_room(conversation, talk.measure, n_ctx, room)
                assert talk.measure() < n_ctx
            else:
                with pytest.raises(ContextFullError, match="is 1 token too long"):
                    make_room(conversation, talk.measure, n_ctx, room)


@given(talks, st.integers(60, 400))
@settings(max_examples=50, deadline=None)
def test_a_template_that_fails_changes_nothing(talk: Talk, n_ctx: int) -> None:
    before, calls = talk.conversation.turns, itertools.count()

    def measure() -> int:
        if next(calls) == 2:
            raise RuntimeError
        return talk.measure()

    try:
        make_room(talk.conversation, measure, n_ctx, 20)
    except RuntimeError:
        assert talk.conversation.turns == before


def test_room_for_answers() -> None:
    assert room_for(100, 1024) == 100
    assert room_for(10_000, 1024) == 256
    assert room_for(256, 1024) == 256


# -- a session ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def session(tiny: Tiny, agents: list[Agent]) -> Iterator[Session]:
    with ExitStack() as stack:
        yield make_session(tiny.path, agents, stack, n_ctx=256)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class Auditor:
    """Follows a session's events and computes what they should say from history and cache alone."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._in_context = self._flags()
        self._promised: int | None = None
        self.cuts: list[ContextCut] = []
        self.answers: list[AnswerDone] = []

    def _flags(self) -> list[bool]:
        return [turn.in_context for turn in self._session.conversation.turns]

    def _prompt(self, turns: Sequence[Turn]) -> list[int]:
        other = Conversation(self._session.conversation.template)
        other.turns = tuple(turns)
        return other.prompt()

    def take(self, event: Event) -> None:
        if isinstance(event, ContextCut):
            self._check_cut(event)
        elif isinstance(event, AnswerDone):
            self._check_answer(event)
        if not isinstance(event, ContextCut):
            self._in_context = self._flags()

    def _check_cut(self, event: ContextCut) -> None:
        """The cut has been made, and the cache is as it was."""
        turns = self._session.conversation.turns
        # What was asked since, and who is to answer it, was in context.
        flags = [*self._in_context, *[True] * (len(turns) - len(self._in_context))]
        uncut = [replace(turn, in_context=flag) for turn, flag in zip(turns, flags, strict=True)]
        gone = [old for old, new in zip(uncut, turns, strict=True) if old != new]
        cached = self._session.engine.cells.tokens(self._session.sequence).tolist()
        with_cut, without = self._prompt(turns), self._prompt(uncut)
        assert event.turns == len(gone) > 0
        assert event.tokens == len(without) - len(with_cut) > 0
        assert event.files == tuple(
            str(turn.content).split("\n")[0].removeprefix("File ").rstrip(":") for turn in gone if turn.speaker == FILE
        )
        # It is a large step, or only the newest question is left.
        newest = max(i for i, turn in enumerate(turns) if turn.speaker == USER)
        before = {turn.speaker for turn in turns[:newest] if turn.in_context}
        assert len(with_cut) <= self._session.engine.n_ctx // 2 or before <= {SYSTEM, FILE}
        self._promised = len(with_cut) - common(cached, with_cut)
        assert event.encoded_again == max(self._promised - (len(without) - common(cached, without)), 0)
        self.cuts.append(event)

    def _check_answer(self, event: AnswerDone) -> None:
        cached = self._session.engine.cells.length(self._session.sequence)
        assert event.reused + event.encoded + event.generated - cached == (event.finish_reason == "length")
        if self._promised is not None:
            assert event.encoded == self._promised
        elif self.answers:
            before = self.answers[-1]
            pending = before.finish_reason == "length"
            assert event.reused == before.reused + before.encoded + before.generated - pending
        self._promised = None
        self.answers.append(event)


def test_thirty_turns_in_a_small_context(session: Session) -> None:
    auditor = Auditor(session)
    for i in range(30):
        if i % 7 == 3:
            text = "x = 1\n" * (i % 4 + 1)
            assert list(session.run(AddFile(TextFile(f"f{i}.py", text, len(text))))) == [FileAdded(f"f{i}.py")]
        names = [(), ("b",), ("base", "a"), ("a",)][i % 4]
        for event in session.ask(f"question {i} " + "of some length " * (i % 3), names):
            auditor.take(event)
        agree(session)
    assert len(auditor.answers) == sum([3, 1, 2, 1][i % 4] for i in range(30))
    # Every file that went was named once.
    assert sorted(file for cut in auditor.cuts for file in cut.files) == sorted(
        match[1]
        for turn in session.conversation.turns
        if not turn.in_context
        and turn.speaker == FILE
        and (match := re.match(r"File (f\d+\.py):\n", str(turn.content)))
    )
    assert any(cut.files for cut in auditor.cuts)
    assert any(cut.encoded_again for cut in auditor.cuts)
    # The transcript has all of it.
    assert sum(turn.speaker == USER for turn in session.conversation.turns) == 30


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_an_answer_ends_by_length_where_the_context_ends(
    tiny: Tiny, agents: list[Agent], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "is_end_of_generation", lambda *_: False)
    long = [agent.model_copy(update={"max_tokens": 10_000}) for agent in agents]
    with ExitStack() as stack:
        session = make_session(tiny.path, long, stack, n_ctx=256)
        auditor = Auditor(session)
        for question in ("one", "two", "three"):
            for event in session.ask(question, names):
                auditor.take(event)
            agree(session)
        assert len(auditor.answers) == 3 * len(names)
        for answer in auditor.answers:
            assert answer.finish_reason == "length"
            # The last token needs no cell, and an answer has room for a quarter of the context.
            assert answer.reused + answer.encoded + answer.generated == 257
            assert answer.generated >= 64
        assert len(auditor.cuts) == 3 * len(names) - 1


def test_an_answer_to_a_question_that_hardly_fits(session: Session, agents: list[Agent]) -> None:
    """One token is left for the answer: it is said, and what follows it needs no cell."""
    auditor = Auditor(session)
    (before,) = done(session.ask("q" * 100, ["base"]))
    auditor.answers.append(before)
    room = 256 - before.reused - before.encoded
    for event in session.ask("q" * (100 + room - 1), ["base"]):
        auditor.take(event)
    (answer,) = auditor.answers[1:]
    assert len(auditor.cuts) == 1
    assert answer.reused + answer.encoded == 255
    assert answer.generated in (0, 1, 2)


def test_a_question_that_is_too_long_says_by_how_much_and_the_next_one_works(session: Session) -> None:
    auditor = Auditor(session)
    for event in session.ask("short", ["b"]):
        auditor.take(event)
    turns, held = session.conversation.turns, session.engine.cells.tokens(session.sequence).tolist()
    question = "q" * 400
    with pytest.raises(ContextFullError, match=r"the question is \d+ tokens too long: .*context holds 256") as raised:
        list(session.ask(question, ["a"]))
    match = re.search(r"is (\d+) tokens", raised.value.what)
    assert match is not None
    too_long = int(match[1])
    assert session.conversation.turns == turns
    assert session.engine.cells.tokens(session.sequence).tolist() == held
    with pytest.raises(ContextFullError, match="is 1 token too long"):
        list(session.ask(question[too_long - 1 :], ["a"]))
    # The cache is as it was, so the next turn goes on from there.
    for event in session.ask("short again", ["b"]):
        auditor.take(event)
    assert not auditor.cuts
    for event in session.ask(question[too_long:], ["a"]):
        auditor.take(event)
    assert len(auditor.cuts) == 1
    assert auditor.answers[-1].reused + auditor.answers[-1].encoded == 255
    agree(session)


def test_a_file_that_is_too_large_beside_the_question_goes_with_a_new_conversation(session: Session) -> None:
    list(session.run(AddFile(TextFile("f.txt", "x" * 200, 200))))
    with pytest.raises(ContextFullError, match="begin a new conversation with fewer files"):
        list(session.ask("q" * 60, ["a"]))
    list(session.run(BeginAnew()))
    (answer,) = done(session.ask("q" * 60, ["a"]))
    assert answer.generated > 0
