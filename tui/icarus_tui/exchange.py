"""What stands in the transcript: notices of the program, and lines that were sent and what came of them."""

from __future__ import annotations

from typing import Literal, Protocol

from textual.content import Content

from icarus_local.chat.events import AnswerDone, TextDelta
from icarus_local.chat.figures import figures
from icarus_local.chat.requests import Ask
from icarus_local.errors import EngineDiedError, IcarusError
from icarus_tui.block import Block, Look
from icarus_tui.looks import answer, literal

QuestionState = Literal["", "queued", "taken back"]


class Entry(Protocol):
    """Something that the transcript shows."""

    @property
    def blocks(self) -> list[Block]:
        """From top to bottom."""


class Notice:
    """Something the program says."""

    def __init__(self, text: str, error: bool = False) -> None:
        self.blocks = [_gap(), Block(literal(text), "error" if error else "quiet")]


class _Said:
    """One agent's answer as it comes."""

    def __init__(self, agent: str, colour: str) -> None:
        self.name, self.said = Block(literal(agent, f"bold {colour}")), Block(Content(""))
        self.thought = Block(literal("thinking …"), "quiet")
        self.pieces: list[str] = []
        self.thoughts: list[str] = []

    def close(self, stopped: bool) -> None:
        """Colours the text, which is whole now, and folds the thought."""
        self.said.replace(answer("".join(self.pieces)))
        n = len("".join(self.thoughts).split())
        self.thought.replace(literal(f"thought, {n} word{'' if n == 1 else 's'}"))
        if stopped:
            self.name.replace(Content.assemble(self.name.lines[0], literal(" stopped", "dim")))


class Exchange:
    """A line that was sent, and what came of it: answers, and what the program says.

    Attributes:
        line: what was typed. question: what is asked by it, None where it is a command.
        answered: whether something came of it that stays. stopping: the person stopped it. failed: it ended with an
            error. done: the latest answer, or all that were given at once, which all begin first.
    """

    def __init__(self, line: str, question: Ask | None = None) -> None:
        self.line, self.question = line, question
        self.answered = self.stopping = self.failed = False
        self.done: list[AnswerDone] = []
        self._you = Block(Content(""), "question")
        self._asked: Block | None = None
        self._open: dict[str, _Said] = {}
        self.blocks = [_gap(), self._you]
        self.show_state("")

    @property
    def open(self) -> bool:
        """Whether anybody has the word."""
        return bool(self._open)

    @property
    def at_once(self) -> bool:
        """Whether the answers are given at once."""
        return self.question is not None and self.question.at_once

    @property
    def doing(self) -> str:
        """Who has the word and does what with it, "" where nobody has it."""
        if not self._open:
            return ""
        said = self._open.values()
        spoke, thought = any(each.pieces for each in said), any(each.thoughts for each in said)
        verb = "answering" if spoke else "thinking" if thought else "reading"
        return f"{', '.join(self._open)} {'is' if len(self._open) == 1 else 'are'} {verb}"

    def show_state(self, state: QuestionState) -> None:
        """Says beside the line what has become of it."""
        asked, to = self.question, ""
        if asked is not None:
            to = " /all" if asked.at_once else f" /rounds {asked.rounds}" if asked.rounds > 1 else ""
            to += "".join(f" @{name}" for name in asked.names)
        beside = literal(f" ({state})" if state else "", "dim")
        you = Content.assemble(literal("you", "bold"), literal(to), beside)
        self._you.replace(Content("\n").join([you, literal(self.line if asked is None else asked.text)]))

    def begin_answer(self, agent: str, colour: str) -> None:
        """An agent has the word, beside those who have it already."""
        self.done = []
        self._open[agent] = said = _Said(agent, colour)
        self.blocks += [_gap(), said.name, said.said]

    def append(self, delta: TextDelta) -> None:
        """More of an answer; a thought is not shown, only that there is one."""
        said = self._open[delta.agent]
        if not delta.thought:
            said.pieces.append(delta.text)
            said.said.append(delta.text)
            return
        if not said.thoughts:
            self._put_after(said.name, said.thought)
        said.thoughts.append(delta.text)

    def end_answer(self, done: AnswerDone) -> None:
        """An answer is whole, or was stopped: colours its text and shows what it cost."""
        self.answered = self.answered or done.generated > 0
        self.done.append(done)
        said = self._open.pop(done.agent)
        said.close(stopped=done.finish_reason == "cancelled")
        self._put_after(said.said, Block(literal(figures(done)), "quiet"))

    def tell(self, text: str, look: Look = "quiet", stays: bool = True) -> None:
        """The program says something of it; `stays` where the line has come to something by that."""
        self.answered = self.answered or stays
        self.blocks.append(Block(literal(text), look))

    def ask(self, text: str) -> None:
        """The program asks; "" where that is decided."""
        if self._asked is not None:
            self.blocks.remove(self._asked)
        self._asked = Block(literal(text)) if text else None
        if self._asked is not None:
            self.blocks.append(self._asked)

    def fail(self, error: BaseException) -> None:
        """A request ended with an error."""
        self.failed = True
        # A session keeps what was said before it failed; with its process, an answer in progress is gone.
        said = any(each.pieces or each.thoughts for each in self._open.values())
        self.answered = self.answered or (said and not isinstance(error, EngineDiedError))
        for each in self._open.values():
            each.close(stopped=True)
        self._open.clear()
        text = str(error) if isinstance(error, IcarusError) else f"{type(error).__name__}: {error}"
        self.blocks += [_gap(), Block(literal(text), "error")]

    def _put_after(self, block: Block, new: Block) -> None:
        self.blocks.insert(self.blocks.index(block) + 1, new)


def _gap() -> Block:
    return Block(Content(""))
