"""Shows what comes of requests: answers in the conversation, figures in the lines around it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from icarus_local.chat.commands import told
from icarus_local.chat.events import (
    AgentsChanged,
    AnswerDone,
    AnswersJoined,
    AnswerStarted,
    CacheUsed,
    ContextCut,
    ConversationBegun,
    ConversationResumed,
    Event,
    FileAdded,
    FileWeighed,
    QuestionTakenBack,
    Said,
    TextDelta,
    Transcribed,
)
from icarus_local.chat.reply import Chat
from icarus_local.chat.requests import Ask
from icarus_local.errors import EngineDiedError, IcarusError
from icarus_tui.errands import Came
from icarus_tui.exchange import Entry, Exchange, Notice, Past
from icarus_tui.prompt import Prompt
from icarus_tui.status import AgentBar, Meter
from icarus_tui.transcript import Transcript

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class View:
    """What there is to show things on."""

    transcript: Transcript
    agents: AgentBar
    meter: Meter
    prompt: Prompt


@dataclass
class _Question:
    """A question that was answered, and the entries that show it."""

    asked: Ask
    entries: list[Entry] = field(default_factory=list)
    n_answers: int = 0


class Presenter:
    """Knows what of the conversation is on the screen.

    Attributes:
        answers: what the agents said in the conversation, oldest first.
    """

    def __init__(self, chat: Chat, view: View) -> None:
        self._chat, self._view = chat, view
        self._engine: int | None = chat.opened.engine
        self.answers: list[str] = []
        self._questions: list[_Question] = []

    @property
    def conversation(self) -> str:
        """Its id, "" where it is not saved."""
        return self._chat.opened.conversation

    def open(self) -> None:
        """Shows how the conversation begins."""
        opened = self._chat.opened
        self._recall(opened.before)
        self._tell(opened.notices)

    @property
    def newest(self) -> Ask | None:
        """The newest question that was answered."""
        return self._questions[-1].asked if self._questions else None

    def show(self, exchange: Exchange, event: Event) -> Came | None:
        """Shows an event; gives what the line that it is of waits for."""
        self._tell_of_restart(exchange)
        match event:
            case QuestionTakenBack():
                return self._take_back(event)
            case Transcribed():
                return event
            case AnswerStarted() | TextDelta() | AnswerDone() | AnswersJoined():
                self._show_answer(exchange, event)
            case ContextCut() | CacheUsed():
                self._show_cache(exchange, event)
            case AgentsChanged():
                self._change_agents(exchange, event)
            case ConversationBegun():
                self._begin()
                exchange.tell(told(event), "break")
            case ConversationResumed():
                self._resume(exchange, event)
            case FileWeighed() | FileAdded() if exchange.question is not None:
                exchange.tell(told(event), stays=False)
                exchange.added = exchange.added or isinstance(event, FileAdded)
            case _:
                exchange.tell(told(event))
        return None

    def fail(self, exchange: Exchange, error: BaseException) -> None:
        """Shows what a request ended with."""
        if not isinstance(error, IcarusError):
            logger.error("a request failed", exc_info=error)
        exchange.fail(error)
        self._view.agents.show_turn((), "")
        if isinstance(error, EngineDiedError):
            # It says itself that there is another.
            self._engine = None

    # -- answers -------------------------------------------------------------------------------------------------------

    def _show_answer(self, exchange: Exchange, event: AnswerStarted | TextDelta | AnswerDone | AnswersJoined) -> None:
        match event:
            case AnswerStarted():
                exchange.begin_answer(event.agent, self._view.agents.number(event.agent))
                self._show_turn(exchange)
            case TextDelta():
                exchange.append(event)
            case AnswerDone():
                self._end_answer(exchange, event)
            case AnswersJoined():
                exchange.tell(told(event))
                for name in event.agents:
                    self._keep(name)

    def _show_cache(self, exchange: Exchange, event: ContextCut | CacheUsed) -> None:
        if isinstance(event, CacheUsed):
            self._view.meter.show(event)
        else:
            # Where nobody answers after it, it is undone with the question.
            exchange.tell(told(event), stays=False)
            self._view.meter.show_cut(event)

    def _end_answer(self, exchange: Exchange, done: AnswerDone) -> None:
        exchange.end_answer(done)
        self._view.meter.show_answer(done)
        self._show_turn(exchange)
        if not done.generated:
            return
        self.answers.append(done.text)
        assert exchange.question is not None
        if not self._questions or exchange not in self._questions[-1].entries:
            self._questions.append(_Question(exchange.question, [exchange]))
        self._questions[-1].n_answers += 1

    def _show_turn(self, exchange: Exchange) -> None:
        """Who has the word, and who is next of those who answer in turn."""
        question = exchange.question
        order = () if question is None or question.at_once else (question.names or self._chat.opened.agents)
        rounds = 1 if question is None else question.rounds
        n_begun = exchange.n_begun
        following = order[n_begun % len(order)] if order and n_begun < len(order) * rounds else ""
        self._view.agents.show_turn(exchange.speaking, following if exchange.speaking else "")

    def _keep(self, name: str) -> None:
        """Only an answer that stays is the latest."""
        for entry in self._questions[-1].entries if self._questions else []:
            if isinstance(entry, Exchange):
                entry.keep(name)
                said = [done for done in entry.done if done.generated]
                kept = [done.text for done in said if done.agent == name]
                self.answers = [*self.answers[: len(self.answers) - len(said)], *kept]
                self._questions[-1].n_answers = len(kept)

    def _take_back(self, event: QuestionTakenBack) -> Ask:
        """The question as it was asked."""
        if not self._questions or self._questions[-1].asked.text != event.text:
            # One that left the screen with the conversation before.
            return Ask(event.text)
        question = self._questions.pop()
        for entry in question.entries:
            self._view.transcript.discard(entry)
        del self.answers[len(self.answers) - question.n_answers :]
        return question.asked

    # -- conversations and agents --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._questions.clear()
        self._view.meter.begin_anew()

    def _resume(self, exchange: Exchange, event: ConversationResumed) -> None:
        self._begin()
        self.answers.clear()
        transcript = self._view.transcript
        # What waits, or asks, is of the conversation that goes on.
        waiting = [
            entry for entry in transcript.entries if isinstance(entry, Exchange) and (entry.queued or entry.asks)
        ]
        transcript.clear()
        self._recall(event.before)
        for entry in [exchange, *waiting]:
            transcript.add(entry)
        for notice in event.notices:
            exchange.tell(notice)

    def _recall(self, before: Sequence[Said]) -> None:
        """Shows what was said before."""
        for said in before:
            entry = Past(said, self._view.agents.number(said.who) if said.answer else 0)
            self._view.transcript.add(entry)
            if said.answer:
                self.answers.append(said.text)
                if self._questions:
                    self._questions[-1].n_answers += 1
            elif not said.file:
                self._questions.append(_Question(Ask(said.text)))
            if self._questions and not said.file:
                self._questions[-1].entries.append(entry)

    def _change_agents(self, exchange: Exchange, event: AgentsChanged) -> None:
        self._view.agents.show(event.agents)
        self._view.meter.show_agents(event.agents)
        for text in filter(None, [event.told, *event.notices]):
            exchange.tell(text)

    def _tell(self, notices: Sequence[str]) -> None:
        for notice in notices:
            self._view.transcript.add(Notice(notice))

    def _tell_of_restart(self, exchange: Exchange) -> None:
        """An engine that died while nobody asked anything has told nobody; what comes now comes of the next one."""
        before, opened = self._engine, self._chat.opened
        self._engine = opened.engine
        if before == opened.engine:
            return
        self._view.meter.show(opened.cache)
        if before is None:
            if not opened.conversation:
                self._begin()
            return
        what = "the engine had ended unexpectedly and was started again; the conversation"
        if opened.conversation:
            exchange.tell(f"{what} goes on", stays=False)
        else:
            self._begin()
            exchange.tell(f"{what} was not saved and begins anew", "break", stays=False)
