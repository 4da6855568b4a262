"""Questions of the program that the next line answers: y does what is offered, anything else leaves it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from icarus_tui.prompt import Prompt, Taken

_YES, _NO = ("y", "yes"), ("n", "no")

Decide = Callable[[bool | None], None]
"""Takes the answer: True for yes, False for no, None where neither this nor what would come after it is wanted."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the program asks.

    Attributes:
        text: the question. offer: what y does. rest: what Esc leaves besides, "" where that is nothing.
    """

    text: str
    offer: str
    rest: str = ""

    @property
    def hint(self) -> str:
        """What may be said."""
        return f"y {self.offer}, anything else leaves it{f', Esc {self.rest} too' if self.rest else ''}"


@dataclass
class _Waiting:
    question: Question
    decide: Decide
    draft: str | None = None  # what stood in the input when it was asked


class Questions:
    """The questions that wait; the first one is asked. A line that was begun before it is no answer to it."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._waiting: deque[_Waiting] = deque()

    @property
    def first(self) -> Question | None:
        """What is asked, or None."""
        return self._waiting[0].question if self._waiting else None

    def put(self, question: Question, decide: Decide) -> None:
        """Asks after the questions before; `decide` is called once."""
        self._waiting.append(_Waiting(question, decide))
        self._ask(self._prompt.text)

    def answer(self, line: str) -> Taken | None:
        """Takes a sent line as the answer; None where it is none. A line that says neither yes nor no leaves it and
        stays in the input, so that nothing is lost.
        """
        if not self._waiting:
            return None
        word, draft = line.strip().lower(), self._waiting[0].draft
        if word in ("", *_YES, *_NO):
            self._decide(word in _YES, draft="")
            return "answered"
        if draft and line.startswith(draft):
            return None
        self._decide(False, draft=line)
        return "stays"

    def drop(self) -> None:
        """Leaves the first, and what would come after it."""
        self._decide(None, draft=self._prompt.text)

    def _decide(self, answer: bool | None, draft: str) -> None:
        waiting = self._waiting.popleft()
        self._ask(draft)
        waiting.decide(answer)

    def _ask(self, draft: str) -> None:
        if self._waiting and self._waiting[0].draft is None:
            self._waiting[0].draft = draft.rstrip()
        self._prompt.hint(self.first.hint if self.first else "")
