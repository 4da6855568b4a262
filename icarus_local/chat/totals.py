"""Sums over the answers of a chat: what was encoded, and what a cache for each agent would have encoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from icarus_local.chat.events import (
    AnswerDone,
    ContextCut,
    ConversationBegun,
    ConversationResumed,
    Event,
    QuestionTakenBack,
)


@dataclass(slots=True)
class AgentTotals:
    """Of one agent. encoded_alone: at least as many tokens it would have encoded with a cache of its own."""

    answers: int = 0
    reused: int = 0
    encoded: int = 0
    generated: int = 0
    encoded_alone: int = 0


class Totals:
    """Fed with every event."""

    def __init__(self) -> None:
        self.agents: dict[str, AgentTotals] = {}
        # Tokens at the beginning of the conversation that a cache of its own would hold.
        self._read: dict[str, int] = {}
        # The same of agents who have not answered since a conversation was resumed.
        self._restored = 0
        self._cut = self._resumed = False

    def add(self, event: Event) -> None:
        """Takes an event; those that end no answer and cut nothing count nothing."""
        if isinstance(event, ConversationBegun | ContextCut | QuestionTakenBack):
            self._cut = True
        if isinstance(event, ConversationResumed):
            self._read, self._resumed = {}, True
        if not isinstance(event, AnswerDone):
            return
        if self._cut:
            # What all caches still hold of it is what the shared one does.
            self._read = {agent: min(read, event.reused) for agent, read in self._read.items()}
            self._restored, self._cut = min(self._restored, event.reused), False
        if self._resumed:
            # All caches would have been saved and restored as the shared one was.
            self._restored, self._resumed = event.reused, False
        totals = self.agents.setdefault(event.agent, AgentTotals())
        prompt = event.reused + event.encoded
        totals.answers += 1
        totals.reused += event.reused
        totals.encoded += event.encoded
        totals.generated += event.generated
        totals.encoded_alone += max(prompt - self._read.get(event.agent, self._restored), event.encoded)
        # The last token of an answer that was cut at its length has not been encoded.
        self._read[event.agent] = prompt + event.generated - (event.finish_reason == "length")

    def lines(self) -> Iterator[str]:
        """A line for each agent, and one for all."""
        for name, of in self.agents.items():
            yield (
                f"{name}: {of.answers} answers; {of.reused} tokens reused, {of.encoded} encoded, "
                f"{of.generated} generated"
            )
        encoded = sum(of.encoded for of in self.agents.values())
        alone = sum(of.encoded_alone for of in self.agents.values())
        yield f"all: {encoded} tokens encoded; with a cache for each agent it would have been at least {alone}"

    def record(self) -> dict[str, dict[str, int]]:
        """The same as plain values, by agent."""
        return {name: asdict(of) for name, of in self.agents.items()}
