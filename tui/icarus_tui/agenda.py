"""The lines under way: one after another is served, and what comes of it is shown."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from icarus_local.chat.commands import told
from icarus_local.chat.events import (
    AnswerDone,
    AnswersJoined,
    AnswerStarted,
    ContextCut,
    ConversationBegun,
    TextDelta,
)
from icarus_local.chat.reply import Chat, Opened, Outcome
from icarus_local.chat.requests import Request
from icarus_local.errors import EngineDiedError, IcarusError
from icarus_tui.asking import Question, Questions
from icarus_tui.errands import Errand, Reading, Steps
from icarus_tui.exchange import Exchange, Notice
from icarus_tui.looks import colour
from icarus_tui.prompt import Prompt, Taken
from icarus_tui.reader import Reader
from icarus_tui.status import Status
from icarus_tui.transcript import Transcript

logger = logging.getLogger(__name__)


class Agenda:
    """Holds lines back here and not in the chat: what is asked about a file comes before the question behind it.

    Attributes:
        answers: what the agents said, oldest first.
    """

    def __init__(
        self, chat: Chat, transcript: Transcript, status: Status, prompt: Prompt, watch: Callable[[], None]
    ) -> None:
        """Prepares; `watch` sees to it that `drain` is called from now on, until nothing is `busy`."""
        self._chat, self._transcript, self._status, self._prompt = chat, transcript, status, prompt
        self._watch = watch
        self._opened: Opened | None = chat.opened
        self._colours = {name: colour(index) for index, name in enumerate(chat.opened.agents)}
        self._reader = Reader()
        self._questions = Questions(prompt)
        self._queue: deque[Errand] = deque()
        self.answers = [said.text for said in chat.opened.before if said.answer]

    # -- what the screen does ------------------------------------------------------------------------------------------

    def enqueue(self, exchange: Exchange, steps: Steps) -> None:
        """Does a line after those before it."""
        errand = Errand(exchange, steps)
        if self._queue:
            exchange.show_state("queued")
        self._queue.append(errand)
        self._transcript.add(exchange)
        self._advance(errand)
        self._serve()

    def do(self, exchange: Exchange, steps: Steps) -> None:
        """Does a line now; it may only ask the person."""
        self._transcript.add(exchange)
        self._advance(Errand(exchange, steps))

    def answer(self, line: str) -> Taken | None:
        """Takes a line as the answer to what is asked, as `Questions.answer`."""
        return self._questions.answer(line)

    def leave(self) -> None:
        """Says no to what is asked, and to what would be asked next for the same line."""
        self._questions.drop()

    def stop(self) -> None:
        """Stops what is under way; what is queued goes on."""
        errand = self._queue[0]
        errand.stop()
        if errand.reply is None:
            self._abandon(errand)
            self._serve()

    def drain(self) -> None:
        """Shows what has come since the last time."""
        outcomes = self._reader.take()
        read = [errand for errand in self._queue if isinstance(errand.step, Reading) and errand.step.finished]
        # Where a file cannot be read that is told now, not when its turn has come.
        for errand in read:
            self._advance(errand)
        for outcome in outcomes:
            self._show(self._queue[0], outcome)
        if outcomes or read:
            self._transcript.update()
            self._serve()

    def close(self) -> None:
        """Stops everything, and does not wait for it."""
        for errand in self._queue:
            errand.stop()
        self._reader.close()

    @property
    def busy(self) -> bool:
        """Whether anything may come."""
        return any(errand.busy for errand in self._queue)

    @property
    def asks(self) -> bool:
        """Whether something is asked."""
        return self._questions.first is not None

    @property
    def stoppable(self) -> bool:
        """Whether something is under way, or would be but for what is asked."""
        return bool(self._queue)

    @property
    def doing(self) -> str:
        """What is asked, what is under way, and how much waits, in words."""
        doing = []
        if (asked := self._questions.first) is not None:
            doing.append(f"{asked.text} y or n")
        if self._queue and not isinstance(self._queue[0].step, Question):
            doing.append(self._queue[0].doing)
        queued = f", {len(self._queue) - 1} queued" if len(self._queue) > 1 else ""
        return "; ".join(doing) + queued

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _advance(self, errand: Errand, answer: bool | None = None) -> None:
        """Takes an errand's next step; a request waits for its turn."""
        failed = errand.error
        try:
            step = errand.advance(answer)
        except BaseException as error:  # shown, whatever it is, as what a request fails of
            if error is not failed:
                self._fail(errand, error)
            step = None
        if step is None:
            self._end(errand)
        elif isinstance(step, Question):
            errand.exchange.ask(step.text)
            self._questions.put(step, partial(self._decided, errand))
        elif isinstance(step, Reading):
            self._watch()
        self._transcript.update()

    def _abandon(self, errand: Errand) -> None:
        errand.steps.close()
        errand.error = None
        self._advance(errand)

    def _decided(self, errand: Errand, answer: bool | None) -> None:
        errand.exchange.ask("")
        self._advance(errand, answer)
        self._serve()

    def _serve(self) -> None:
        """Sends the request of the first line, if that is where it is."""
        while self._queue:
            errand = self._queue[0]
            request = errand.step
            if errand.reply is not None or not isinstance(request, Request):
                return
            try:
                errand.reply = self._chat.submit(request)
            except IcarusError as error:
                self._fail(errand, error)
                self._advance(errand)
                continue
            self._reader.follow(errand.reply)
            self._watch()

    def _end(self, errand: Errand) -> None:
        exchange = errand.exchange
        if errand in self._queue:
            self._queue.remove(errand)
        if self._queue:
            self._queue[0].exchange.show_state("")
        if sum(done.generated > 0 for done in exchange.done) > 1 and not exchange.failed:
            exchange.tell("/keep AGENT leaves only one of these answers in the conversation")
        if exchange.answered:
            return
        # The session has taken a question out of the conversation, and so does the screen. Where something is asked,
        # the input is for the answer.
        back = not self.asks and self._prompt.put_back(exchange.line)
        if exchange.failed:
            exchange.show_state("taken back" if exchange.question else "")
            return
        where = "it is in the input again" if back else "Up brings it back"
        why = "Stopped before anybody answered" if exchange.stopping else "Nobody said anything"
        self._transcript.discard(exchange)
        self._transcript.add(Notice(f"{why}; the question was taken back, {where}."))

    # -- what comes of requests ----------------------------------------------------------------------------------------

    def _show(self, errand: Errand, outcome: Outcome) -> None:
        exchange = errand.exchange
        if outcome is not None and not isinstance(outcome, BaseException):
            self._tell_of_restart(exchange)
        match outcome:
            case AnswerStarted():
                exchange.begin_answer(outcome.agent, self._colours.get(outcome.agent, colour(0)))
            case TextDelta():
                exchange.append(outcome)
            case AnswerDone():
                exchange.end_answer(outcome)
                self.answers.append(outcome.text)
                if not exchange.open:
                    self._status.show(exchange.done, exchange.at_once)
            case ContextCut():
                # Where nobody answers after it, it is undone with the question.
                exchange.tell(told(outcome), stays=False)
            case ConversationBegun():
                exchange.tell(told(outcome), "break")
                self._status.begin_anew()
            case AnswersJoined():
                exchange.tell(told(outcome))
                self._status.keep(outcome.agents)
            case BaseException():
                self._fail(errand, outcome)
            case None if exchange.stopping:
                self._abandon(errand)
            case None:
                self._advance(errand)
            case _:
                exchange.tell(told(outcome))

    def _fail(self, errand: Errand, error: BaseException) -> None:
        if not isinstance(error, IcarusError):
            logger.error("a request failed", exc_info=error)
        errand.error = error
        errand.exchange.fail(error)
        if isinstance(error, EngineDiedError):
            # It says itself that there is another.
            self._opened = None
            if not self._chat.opened.conversation:
                self._status.begin_anew()

    def _tell_of_restart(self, exchange: Exchange) -> None:
        """An engine that died while nobody asked anything has told nobody; what comes now comes of the next one."""
        before, self._opened = self._opened, self._chat.opened
        if before is None or before is self._opened:
            return
        what = "the engine had ended unexpectedly and was started again; the conversation"
        if self._opened.conversation:
            exchange.tell(f"{what} goes on", stays=False)
        else:
            exchange.tell(f"{what} was not saved and begins anew", "break", stays=False)
            self._status.begin_anew()
