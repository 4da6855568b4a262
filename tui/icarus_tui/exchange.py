"""What stands in the transcript: notices of the program, lines that were sent and what came of them, and what was said
in a conversation that goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from textual.content import Span

from icarus_local.chat.events import AnswerDone, Said, TextDelta
from icarus_local.chat.requests import Ask
from icarus_local.errors import EngineDiedError, IcarusError
from icarus_tui.answer import Answer, Thought
from icarus_tui.block import Block, Mark, Stack, gap, text_block
from icarus_tui.columns import Columns
from icarus_tui.lines import Form, Line, Look
from icarus_tui.looks import neutral

QuestionState = Literal["", "queued", "taken back"]
_QUESTION = Form("question")
_OUT = "(no longer in the context)"


class Entry(Stack):
    """Something that the transcript shows.

    Attributes:
        thoughts_shown: whether thoughts that begin are unfolded.
    """

    thoughts_shown = False

    def thoughts(self) -> Iterator[Thought]:
        """What agents thought in it."""
        for answer in self.answers():
            if answer.thought is not None:
                yield answer.thought

    def answers(self) -> Iterator[Answer]:
        """What agents said in it."""
        for node in self.nodes:
            if isinstance(node, Answer):
                yield node
            elif isinstance(node, Columns):
                yield from node.answers

    @property
    def columns(self) -> Columns | None:
        """The answers that are given at once, if there are any."""
        return next((node for node in self.nodes if isinstance(node, Columns)), None)


class Notice(Entry):
    """Something the program says."""

    def __init__(self, text: str, error: bool = False) -> None:
        super().__init__([gap(), text_block(text, "error" if error else "quiet")])


class Exchange(Entry):
    """A line that was sent, and what came of it: answers, and what the program says.

    Attributes:
        line: what was typed. question: what is asked by it, None where it is a command.
        answered: whether something came of it that stays. stopping: the person stopped it. failed: it ended with an
            error. added: files that its question named stay, whatever becomes of it.
        queued: it waits. taken_back: it is not in the conversation. n_begun: how many answers have begun.
        done: the latest answer, or all that were given at once, which all begin first.
    """

    def __init__(self, line: str, question: Ask | None = None) -> None:
        super().__init__()
        self.line, self.question = line, question
        self.answered = self.stopping = self.failed = self.added = self.queued = self.taken_back = False
        self.done: list[AnswerDone] = []
        self.n_begun = 0
        self._you = Block()
        self._asked: Block | None = None
        self._open: dict[str, Answer] = {}
        self._kept: set[str] = set()
        self.splice(0, 0, [gap(), self._you])
        self.show_state("")

    @property
    def open(self) -> bool:
        """Whether anybody has the word."""
        return bool(self._open)

    @property
    def speaking(self) -> tuple[str, ...]:
        """Who has the word."""
        return tuple(self._open)

    @property
    def asks(self) -> bool:
        """Whether the program asks something of the person about it."""
        return self._asked is not None

    @property
    def at_once(self) -> bool:
        """Whether the answers are given at once."""
        return self.question is not None and self.question.at_once

    @property
    def undecided(self) -> bool:
        """Whether one of its answers may be chosen to stay alone."""
        several = sum(done.generated > 0 for done in self.done) > 1
        return self.at_once and several and not (self.open or self.failed or self._kept)

    @property
    def doing(self) -> str:
        """Who has the word and does what with it, "" where nobody has it."""
        if not self._open:
            return ""
        answers = self._open.values()
        spoke, thought = any(each.said for each in answers), any(each.thought for each in answers)
        verb = "answering" if spoke else "thinking" if thought else "reading"
        return f"{', '.join(self._open)} {'is' if len(self._open) == 1 else 'are'} {verb}"

    def show_state(self, state: QuestionState) -> None:
        """Says beside the line what has become of it."""
        self.queued, self.taken_back = state == "queued", state == "taken back"
        asked, to = self.question, ""
        if asked is not None:
            to = " /all" if asked.at_once else f" /rounds {asked.rounds}" if asked.rounds > 1 else ""
            to += "".join(f" @{name}" for name in asked.names)
        text = self.line if asked is None else asked.text
        self._you.replace(_question_lines(f"you{to}", f"({state})" if state else "", text))
        if asked is not None:
            self._you.marks = (Mark("question", 0, len(self._you.lines), lambda: text),)

    def begin_answer(self, agent: str, index: int) -> None:
        """An agent has the word, beside those who have it already; `index` is its colour's."""
        self.done = []
        self.n_begun += 1
        self._open[agent] = answer = Answer(agent, index, self.thoughts_shown)
        if not self.at_once:
            self.splice(len(self.nodes), 0, [gap(), answer])
            return
        if self.columns is None:
            self.splice(len(self.nodes), 0, [gap(), Columns()])
        assert self.columns is not None
        self.columns.add(answer, index)

    def append(self, delta: TextDelta) -> None:
        """More of an answer, or of the thought before it."""
        answer = self._open[delta.agent]
        if delta.thought:
            answer.think(delta.text)
        else:
            answer.say(delta.text)

    def end_answer(self, done: AnswerDone) -> None:
        """An answer is whole, or was stopped: shows what it cost."""
        self.answered = self.answered or done.generated > 0
        self.done.append(done)
        self._open.pop(done.agent).end(done, stopped=done.finish_reason == "cancelled")

    def keep(self, name: str) -> None:
        """Of answers that were given at once, that of `name` stays in the conversation, beside those kept before."""
        if self.columns is None:
            return
        self._kept.add(name)
        for place, answer in enumerate(self.columns.answers):
            answer.dim = answer.agent not in self._kept
            answer.call("not kept" if answer.dim else "")
            if answer.agent == name:
                self.columns.show(place)

    def tell(self, text: str, look: Look = "quiet", stays: bool = True) -> None:
        """The program says something of it; `stays` where the line has come to something by that."""
        self.answered = self.answered or stays
        self.add(text_block(text, look))

    def ask(self, text: str) -> None:
        """The program asks; "" where that is decided."""
        if self._asked is not None:
            self.remove(self._asked)
        self._asked = text_block(text) if text else None
        if self._asked is not None:
            self.add(self._asked)

    def fail(self, error: BaseException) -> None:
        """A request ended with an error."""
        self.failed = True
        # A session keeps what was said before it failed; with its process, an answer in progress is gone.
        said = any(each.said or each.thought for each in self._open.values())
        self.answered = self.answered or (said and not isinstance(error, EngineDiedError))
        for each in self._open.values():
            each.end(stopped=True)
        self._open.clear()
        text = str(error) if isinstance(error, IcarusError) else f"{type(error).__name__}: {error}"
        self.splice(len(self.nodes), 0, [gap(), text_block(text, "error")])


class Past(Entry):
    """A turn of a conversation that goes on.

    Attributes:
        said: the turn.
    """

    def __init__(self, said: Said, index: int) -> None:
        """`index` is the colour of the agent who said it."""
        super().__init__([gap()])
        self.said = said
        out = "" if said.in_context else _OUT
        if said.answer:
            answer = Answer(said.who, index)
            if said.thought:
                answer.think(said.thought)
            answer.say(said.text)
            answer.end()
            answer.call(out)
            self.add(answer)
        elif said.file:
            self.add(text_block(f"{said.text} was added {out}".rstrip(), "quiet"))
        else:
            block = Block(_question_lines(said.who, out, said.text))
            block.marks = (Mark("question", 0, len(block.lines), lambda: said.text),)
            self.add(block)


def _question_lines(who: str, beside: str, text: str) -> list[Line]:
    who = neutral(who)
    head = f"{who} {beside}" if beside else who
    spans = (Span(0, len("you"), "bold"), Span(len(who), len(head), "dim"))
    return [
        Line(head, _QUESTION, spans[: 1 + bool(beside)]),
        *(Line(line, _QUESTION) for line in neutral(text).split("\n")),
    ]
