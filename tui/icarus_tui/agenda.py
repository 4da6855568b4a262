"""The lines under way: one after another is served, and the person is asked in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from icarus_local.chat.lines import line_of
from icarus_local.chat.reply import Chat, Outcome
from icarus_local.chat.requests import Ask, Request
from icarus_local.errors import IcarusError
from icarus_tui.asking import Question, Questions
from icarus_tui.errands import Errand, Reading, Steps
from icarus_tui.exchange import Exchange, Notice
from icarus_tui.presenter import Presenter, View
from icarus_tui.prompt import Taken
from icarus_tui.reader import Reader


class Agenda:
    """Holds lines back here and not in the chat: what is asked about a file comes before the question behind it, and
    what waits can still be changed.
    """

    def __init__(self, chat: Chat, view: View, presenter: Presenter, watch: Callable[[], None]) -> None:
        """Prepares; `watch` sees to it that `drain` is called from now on, until nothing is `busy`."""
        self._chat, self._view, self._presenter = chat, view, presenter
        self._watch = watch
        self._reader = Reader()
        self._questions = Questions(view.prompt)
        self._queue: deque[Errand] = deque()

    # -- what the screen does ------------------------------------------------------------------------------------------

    def enqueue(self, exchange: Exchange, steps: Steps) -> None:
        """Does a line after those before it."""
        errand = Errand(exchange, steps)
        if self._queue:
            exchange.show_state("queued")
        self._queue.append(errand)
        self._view.transcript.add(exchange)
        self._advance(errand)
        self._serve()

    def do(self, exchange: Exchange, steps: Steps) -> None:
        """Does a line now; it may only ask the person."""
        self._view.transcript.add(exchange)
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

    def take_queued(self, exchange: Exchange | None = None) -> str | None:
        """Takes a line out of the queue, the last where none is named, and gives it; None where it waits no more."""
        for errand in reversed(list(self._queue)[1:]):
            if exchange in (None, errand.exchange) and not isinstance(errand.step, Question):
                self._queue.remove(errand)
                errand.steps.close()
                self._view.transcript.discard(errand.exchange)
                return errand.exchange.line
        return None

    def drain(self) -> None:
        """Shows what has come since the last time."""
        outcomes = self._reader.take()
        read = [errand for errand in self._queue if isinstance(errand.step, Reading) and errand.step.finished]
        # Where a file cannot be read that is told now, not when its turn has come.
        for errand in read:
            self._advance(errand)
        for outcome in outcomes:
            self._take(self._queue[0], outcome)
        if outcomes or read:
            self._view.transcript.update()
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
        self._view.transcript.update()

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

    def _take(self, errand: Errand, outcome: Outcome) -> None:
        """Takes what has come of a request."""
        if isinstance(outcome, BaseException):
            self._fail(errand, outcome)
        elif outcome is not None:
            errand.came = self._presenter.show(errand.exchange, outcome) or errand.came
        elif errand.exchange.stopping:
            if isinstance(errand.came, Ask):
                # Stopped between a question that was taken back and the one in its place.
                errand.exchange.line, errand.exchange.question = line_of(errand.came), errand.came
            self._abandon(errand)
        else:
            self._advance(errand)

    def _fail(self, errand: Errand, error: BaseException) -> None:
        errand.error = error
        self._presenter.fail(errand.exchange, error)

    def _end(self, errand: Errand) -> None:
        exchange = errand.exchange
        if errand in self._queue:
            self._queue.remove(errand)
        if self._queue:
            self._queue[0].exchange.show_state("")
        if exchange.at_once and sum(done.generated > 0 for done in exchange.done) > 1 and not exchange.failed:
            exchange.tell("/keep AGENT leaves only one of these answers in the conversation")
        if exchange.answered:
            return
        # The session has taken a question out of the conversation, and so does the screen. Where something is asked,
        # the input is for the answer.
        back = not self.asks and self._view.prompt.put_back(exchange.line)
        if exchange.failed or exchange.added:
            exchange.show_state("taken back" if exchange.question else "")
        if exchange.failed:
            return
        where = "it is in the input again" if back else "Up brings it back"
        why = "Stopped before anybody answered" if exchange.stopping else "Nobody said anything"
        if not exchange.added:
            self._view.transcript.discard(exchange)
        self._view.transcript.add(Notice(f"{why}; the question was taken back, {where}."))
