"""The one conversation that all agents read, as messages that render to token ids the same way every time."""

from __future__ import annotations

from dataclasses import dataclass

from icarus_local.chat.agents import Agent
from icarus_local.errors import RequestError
from icarus_local.text.template import Answer, ChatTemplate, Message

DEFAULT_SYSTEM = "You are helpful AI assistants who share one conversation."


@dataclass(frozen=True, slots=True)
class Turn:
    """One message: `speaker` is "system", "user" or an agent's name; an agent's content is its token ids."""

    speaker: str
    content: str | Answer

    @property
    def role(self) -> str:
        """The template's name for who speaks."""
        return self.speaker if isinstance(self.content, str) else "assistant"


class Conversation:
    """Messages in order. What is particular to an agent stands at its turn, never at the front, so that a change of
    agent changes no token that is already encoded.
    """

    def __init__(self, template: ChatTemplate, system: str = DEFAULT_SYSTEM) -> None:
        self._template = template
        # Where the template refuses, loses or moves a system message, the person's first message opens with it.
        self._folded = system if system and not template.accepts_system else ""
        self.turns: tuple[Turn, ...] = (Turn("system", system),) if system and not self._folded else ()
        self.end_of_turn = template.end_of_turn

    def ask(self, text: str) -> None:
        """Adds what the person says."""
        self._add_user(text)

    def hand_over(self, agent: Agent) -> None:
        """Gives `agent` the word: its instruction follows the question, or stands in a short message of its own
        where another agent has just answered.
        """
        if not self.turns or self.turns[-1].role != "user":
            self._add_user(agent.hand_over)
        elif agent.instruction:
            self._add_user(agent.instruction)

    def _add_user(self, text: str) -> None:
        if self._folded and not self.turns:
            text = f"{self._folded}\n\n{text}"
        # Two user messages in a row would break templates that demand alternating roles.
        if self.turns and self.turns[-1].role == "user":
            text = f"{self.turns[-1].content}\n\n{text}"
            self.turns = self.turns[:-1]
        self.turns = (*self.turns, Turn("user", text))

    def answer(self, agent_name: str, tokens: list[int]) -> None:
        """Adds what an agent generated, without the end of turn.

        Raises:
            RequestError: nobody was asked.
        """
        if not self.turns or self.turns[-1].role != "user":
            raise RequestError(f"{agent_name} answered without having been asked")
        self.turns = (*self.turns, Turn(agent_name, Answer(tokens)))

    def prompt(self) -> list[int]:
        """Token ids of everything up to where the next answer begins."""
        messages: list[Message] = [{"role": turn.role, "content": turn.content} for turn in self.turns]
        return self._template.render(messages)
