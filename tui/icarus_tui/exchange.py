"""What stands in the transcript: notices of the program, and exchanges of a question and its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from textual.content import Content

from icarus_local.chat.events import AnswerDone
from icarus_local.chat.figures import figures
from icarus_local.errors import IcarusError
from icarus_tui.block import Block
from icarus_tui.looks import answer, literal

if TYPE_CHECKING:
    from icarus_local.chat.worker import Request

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


class Exchange:
    """A question and its answers.

    Attributes:
        line: what was typed. speaker: the agent who has the word, "" where nobody has. speaking: whether it has said
        anything. answered: whether any agent said anything. stopping: the person stopped it.
        failed: it ended with an error.
    """

    def __init__(self, line: str, text: str, names: tuple[str, ...], request: Request) -> None:
        self.line, self._text, self._request = line, text, request
        self._to = "".join(f" @{name}" for name in names)
        self.speaker = ""
        self.speaking = self.answered = self.stopping = self.failed = False
        self._question = Block(Content(""), "question")
        self._name, self._said = Block(Content("")), Block(Content(""))
        self._pieces: list[str] = []
        self.blocks = [_gap(), self._question]
        self.show_state("")

    def show_state(self, state: QuestionState) -> None:
        """Says beside the question what has become of it."""
        beside = literal(f" ({state})" if state else "", "dim")
        you = Content.assemble(literal("you", "bold"), literal(self._to), beside)
        self._question.replace(Content("\n").join([you, literal(self._text)]))

    def stop(self) -> None:
        """Stops the answer in progress, and those after it."""
        self.stopping = True
        self._request.cancel()

    def begin_answer(self, agent: str, colour: str) -> None:
        """An agent has the word."""
        self.speaker, self.speaking = agent, False
        self._name, self._said = Block(literal(agent, f"bold {colour}")), Block(Content(""))
        self._pieces = []
        self.blocks += [_gap(), self._name, self._said]

    def append(self, text: str) -> None:
        """More of the answer in progress."""
        self.speaking = True
        self._pieces.append(text)
        self._said.append(text)

    def end_answer(self, done: AnswerDone) -> None:
        """The answer in progress is whole, or was stopped: colours its text and shows what it cost."""
        self.answered = self.answered or done.generated > 0
        self._close(stopped=done.finish_reason == "cancelled")
        self.blocks.append(Block(literal(figures(done)), "quiet"))

    def fail(self, error: BaseException) -> None:
        """The request ended with an error."""
        self.failed = True
        self.answered = self.answered or self.speaking
        if self.speaker:
            self._close(stopped=True)
        text = str(error) if isinstance(error, IcarusError) else f"{type(error).__name__}: {error}"
        self.blocks += [_gap(), Block(literal(text), "error")]

    def _close(self, stopped: bool) -> None:
        self._said.replace(answer("".join(self._pieces)))
        if stopped:
            self._name.replace(Content.assemble(self._name.lines[0], literal(" stopped", "dim")))
        self.speaker = ""


def _gap() -> Block:
    return Block(Content(""))
