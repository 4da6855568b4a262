"""One agent's answer, as it comes and when it is whole: name, thought, Markdown, figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from textual.content import Span

from icarus_local.chat.code import CodeBlock
from icarus_local.chat.events import AnswerDone
from icarus_local.chat.figures import cost, counted
from icarus_tui.block import Block, Mark, Stack, text_block
from icarus_tui.lines import Form, Line
from icarus_tui.looks import colour, neutral
from icarus_tui.markdown import Code, code_at, render
from icarus_tui.stream import Edit, Stream

_QUIET = Form("quiet")
_THOUGHT = Form("quiet", "  ", "  ")


class Piece(Block):
    """A piece of an answer's Markdown. Styles are made when it is drawn, and dropped when it is out of sight."""

    def __init__(self, agent: str) -> None:
        super().__init__()
        self.source = ""
        self._agent, self._whole, self._first = agent, False, False

    def take(self, edit: Edit) -> None:
        """Becomes what `edit` says."""
        self.source, self._whole, self._first = edit.source, edit.settled, edit.piece == 0
        self.marks = tuple(self._mark(code) for code in edit.codes)
        self.replace(edit.lines, edit.first)
        if edit.settled:
            # Lines of their own: those that were drawn before have no colours yet, and may be drawn still.
            self.lines = [Line(line.text, line.form, (), line.least, line.narrow) for line in self.lines]
            self.drop_colours()

    def colour(self) -> None:
        """Makes the styles, where they were dropped."""
        if self.lines and self.lines[0].spans is None:
            for line, coloured in zip(self.lines, render(self.source, self._first).lines, strict=True):
                line.spans = coloured.spans

    def drop_colours(self) -> None:
        """Drops the styles, where nothing more comes to it."""
        if self._whole:
            for line in self.lines:
                line.spans = None

    def _mark(self, code: Code) -> Mark:
        held = partial(self._code, code.number)
        return Mark("code", code.first, code.end, lambda: held().text, self._agent, held)

    def _code(self, number: int) -> CodeBlock:
        return code_at(self.source, number)


class Thought(Block):
    """What an agent thinks before it answers, folded to one line or not.

    Attributes:
        shown: whether its text is.
    """

    def __init__(self, agent: str, shown: bool) -> None:
        super().__init__([Line("", _QUIET)])
        self.shown = shown
        self._agent, self._thinking = agent, True
        self._pieces: list[str] = []
        self._show()

    @property
    def text(self) -> str:
        """What was thought so far."""
        return "".join(self._pieces)

    def add(self, text: str) -> None:
        """Thinks on."""
        self._pieces.append(text)
        if self.shown and len(self.lines) > 1:
            self.append(neutral(text))
        elif self.shown:
            self._show()

    def end(self) -> None:
        """Has thought."""
        self._thinking = False
        self._show()

    def fold(self, shown: bool) -> None:
        """Shows its text, or not."""
        if shown != self.shown:
            self.shown = shown
            self._show()

    def _show(self) -> None:
        state = "thinking …" if self._thinking else f"thought, {counted(len(self.text.split()), 'word')}"
        lines = [Line(f"{'▾' if self.shown else '▸'} {state}", _QUIET)]
        if self.shown and self._pieces:
            lines += [Line(line, _THOUGHT) for line in neutral(self.text).split("\n")]
        self.marks = (Mark("thought", 0, 1, lambda: self.text, self._agent),)
        self.replace(lines)


class Answer(Stack):
    """An answer under its agent's name.

    Attributes:
        agent: whose. thought: what was thought before, or None. said: whether it has any text.
    """

    def __init__(self, agent: str, index: int, thoughts_shown: bool = False) -> None:
        super().__init__()
        self.agent, self.said, self._stopped = agent, False, False
        self.thought: Thought | None = None
        self._index, self._thoughts_shown = index, thoughts_shown
        self._name, self._body, self._stream = Block(), Stack(), Stream()
        self._name.marks = (Mark("answer", 0, 1, lambda: self.text, agent),)
        self.call("")
        self.splice(0, 0, [self._name, self._body])

    @property
    def text(self) -> str:
        """The Markdown so far, as the agent wrote it."""
        settled = (piece.source for piece in self._pieces[: self._stream.n_settled])
        return "".join(settled) + self._stream.rest

    def call(self, beside: str) -> None:
        """Shows the name with something beside it; that it was stopped is said before that."""
        name = neutral(self.agent)
        text = " ".join(filter(None, [name, "stopped" if self._stopped else "", beside]))
        spans = Span(0, len(name), f"bold {colour(self._index)}"), Span(len(name), len(text), "dim")
        self._name.replace([Line(text, spans=spans[: 1 + (len(text) > len(name))])])

    def think(self, text: str) -> None:
        """More of the thought."""
        if self.thought is None:
            self.thought = Thought(self.agent, self._thoughts_shown)
            self.insert(1, self.thought)
        self.thought.add(text)

    def say(self, text: str) -> None:
        """More of the answer."""
        self.said = True
        if self.thought is not None:
            self.thought.end()
        self._take(self._stream.append(text))

    def end(self, done: AnswerDone | None = None, stopped: bool = False) -> None:
        """It is whole, or was `stopped`; `done` says what it cost."""
        if self.thought is not None:
            self.thought.end()
        self._take(self._stream.finish())
        self._stopped = stopped
        self.call("")
        if done is not None:
            self.add(text_block(cost(done), "quiet"))

    @property
    def _pieces(self) -> list[Piece]:
        return [piece for piece in self._body.nodes if isinstance(piece, Piece)]

    def _take(self, edits: Sequence[Edit]) -> None:
        for edit in edits:
            if edit.piece == len(self._body.nodes):
                self._body.add(Piece(self.agent))
            piece = self._body.nodes[edit.piece]
            assert isinstance(piece, Piece)
            piece.take(edit)
        if self._stream.count < len(self._body.nodes):
            self._body.splice(self._stream.count, len(self._body.nodes) - self._stream.count, [])
