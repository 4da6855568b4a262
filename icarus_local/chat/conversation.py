"""The one conversation that all agents read: contributions in order, rendered to token ids the same way every time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from icarus_local.chat.agents import Agent
from icarus_local.errors import RequestError
from icarus_local.text.template import Answer, ChatTemplate, Message

DEFAULT_SYSTEM = "You are helpful AI assistants who share one conversation."

SYSTEM, USER, FILE, HAND_OVER = "system", "user", "file", "hand-over"


@dataclass(frozen=True, slots=True)
class Turn:
    """One contribution. Text comes from SYSTEM, USER, FILE or HAND_OVER; an agent's content is its token ids.

    Attributes:
        in_context: whether agents still read it. thought: how many of an answer's first ids are its thought.
    """

    speaker: str
    content: str | Answer
    in_context: bool = True
    thought: int = 0

    @property
    def role(self) -> str:
        """The template's name for who speaks."""
        if not isinstance(self.content, str):
            return "assistant"
        return "system" if self.speaker == SYSTEM else "user"


class Conversation:
    """Contributions in order. What is particular to an agent stands at its turn, never at the front, so that a change
    of agent changes no token that is already encoded.
    """

    def __init__(self, template: ChatTemplate, system: str = DEFAULT_SYSTEM) -> None:
        self._template, self._system = template, system
        self.turns: tuple[Turn, ...] = ()
        self.end_of_turn = template.end_of_turn
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets everything but the system prompt."""
        self.turns = (Turn(SYSTEM, self._system),) if self._system else ()

    @property
    def template(self) -> ChatTemplate:
        """What renders it."""
        return self._template

    def ask(self, text: str) -> None:
        """Adds what the person says."""
        self._add(Turn(USER, text))

    def add_file(self, message: str) -> None:
        """Adds a file's text, as `TextFile.message` puts it."""
        self._add(Turn(FILE, message))

    def hand_over(self, agent: Agent) -> None:
        """Gives `agent` the word: its instruction follows the question, or stands in a short message of its own
        where another agent has just answered.
        """
        after_answer = not self._heard or self._heard[-1].role != "user"
        if text := agent.hand_over if after_answer else agent.instruction:
            self._add(Turn(HAND_OVER, text))

    def answer(self, agent_name: str, tokens: Iterable[int], thought: int = 0) -> None:
        """Adds what an agent generated, without the end of turn; the first `thought` ids are its thought.

        Raises:
            RequestError: nobody was asked.
        """
        if not self._heard or self._heard[-1].role != "user":
            raise RequestError(f"{agent_name} answered without having been asked")
        self._add(Turn(agent_name, Answer(tokens), thought=thought))

    def _add(self, turn: Turn) -> None:
        self.turns = (*self.turns, turn)

    def take_back(self) -> tuple[str, int]:
        """Removes the newest question and what follows it but files; gives its text and how many answers went.

        Raises:
            RequestError: there is no question.
        """
        asked = [i for i, turn in enumerate(self.turns) if turn.speaker == USER and isinstance(turn.content, str)]
        if not asked:
            raise RequestError("there is no question to take back")
        gone = self.turns[asked[-1] :]
        # An agent may be named as files are.
        files = tuple(turn for turn in gone if turn.speaker == FILE and isinstance(turn.content, str))
        self.turns = (*self.turns[: asked[-1]], *files)
        return str(gone[0].content), sum(turn.role == "assistant" for turn in gone)

    @property
    def _heard(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.in_context]

    def prompt(self) -> list[int]:
        """Token ids of everything up to where the next answer begins."""
        return self._template.render(self.messages())

    def next_prompt(self) -> list[int]:
        """`prompt` if a character were asked. Templates refuse a conversation in which nobody has asked, or write an
        answer otherwise while it is the last.
        """
        before = self.turns
        self.ask("?")
        try:
            return self.prompt()
        finally:
            self.turns = before

    def messages(self) -> list[Message]:
        """The context in the form that the strictest template takes: user and assistant take turns."""
        messages: list[Message] = []
        folded, heard = "", self._heard
        for role, group in groupby(heard, key=lambda turn: turn.role):
            turns = list(group)
            if role == "assistant":
                messages += [{"role": role, "content": self._said(turn, turn is heard[-1])} for turn in turns]
                continue
            text = "\n\n".join(str(turn.content) for turn in turns)
            if role == "system" and not self._template.accepts_system:
                # Where the template refuses, loses or moves a system message, the first question opens with it.
                folded = f"{text}\n\n"
                continue
            messages.append({"role": role, "content": folded + text})
            folded = ""
        return messages

    def _said(self, turn: Turn, last: bool) -> Answer:
        """What is read of an answer: where the template drops thoughts without its own, unless it is the last."""
        assert isinstance(turn.content, Answer)
        dropped = turn.thought if self._template.drops_thoughts and not last else 0
        return Answer(turn.content[dropped:])

    # -- leaving out ---------------------------------------------------------------------------------------------------

    def whole_exchanges(self) -> list[list[int]]:
        """Indices of the turns of each question with its files and answers, oldest first, the newest not among them."""
        exchanges: list[list[int]] = []
        answered = True
        for i, turn in self._numbered():
            # A hand-over belongs to the exchange that it stands in, whatever is before it.
            if turn.role == "user" and turn.speaker != HAND_OVER and answered:
                exchanges.append([])
            answered = turn.role == "assistant"
            if exchanges:
                exchanges[-1].append(i)
        return exchanges[:-1]

    def answers_of_the_newest(self) -> list[list[int]]:
        """Indices of each hand-over and answer to the newest question, oldest first."""
        older = {i for exchange in self.whole_exchanges() for i in exchange}
        pairs: list[list[int]] = [[]]
        for i, turn in self._numbered():
            if i not in older and (turn.role == "assistant" or turn.speaker == HAND_OVER):
                pairs[-1].append(i)
                if turn.role == "assistant":
                    pairs.append([])
        # What remains is the hand-over that waits for its answer.
        return pairs[:-1]

    def _numbered(self) -> list[tuple[int, Turn]]:
        return [(i, turn) for i, turn in enumerate(self.turns) if turn.in_context and turn.role != "system"]

    def leave_out(self, indices: Iterable[int]) -> None:
        """Takes turns out of what agents read; they stay in the transcript."""
        out = set(indices)
        self.turns = tuple(replace(turn, in_context=False) if i in out else turn for i, turn in enumerate(self.turns))
