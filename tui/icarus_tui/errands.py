"""What a sent line does, step by step: files are read, requests are served, and the person is asked in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os.path import exists
from pathlib import Path

from icarus_local.chat.code import CodeBlock, save_code
from icarus_local.chat.commands import files_named, question_before_saving
from icarus_local.chat.files import TextFile
from icarus_local.chat.reply import Reply
from icarus_local.chat.requests import AddFile, Request, Weigh
from icarus_local.errors import ContextFullError
from icarus_tui.asking import Question
from icarus_tui.exchange import Exchange


class Reading:
    """Finds and reads files in a thread that nobody waits for: a pattern may go through a whole disk."""

    def __init__(self, rest: str) -> None:
        """Begins; `rest` is what follows `/add`."""
        self._rest = rest
        self._result: list[TextFile] | BaseException = []
        self._finished = threading.Event()
        threading.Thread(target=self._read, name="icarus-files", daemon=True).start()

    def _read(self) -> None:
        try:
            self._result = files_named(self._rest)
        except BaseException as error:  # raised again by `files`
            self._result = error
        finally:
            self._finished.set()

    @property
    def finished(self) -> bool:
        """Whether `files` has them."""
        return self._finished.is_set()

    def files(self) -> list[TextFile]:
        """What was read, once it is.

        Raises:
            RequestError: as `files_named`.
        """
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


Step = Request | Question | Reading
Steps = Generator[Step, bool | None, None]
"""Steps of a line. A question's answer is sent in, as `Decide` takes it; what a request failed of is thrown in."""

Tell = Callable[[str], None]


def asking(request: Request) -> Steps:
    """One request."""
    yield request


def adding(rest: str, tell: Tell) -> Steps:
    """`/add`: weighs each file, and asks before it is added. The files are read as soon as this is called."""
    return _adding(Reading(rest), tell)


def _adding(reading: Reading, tell: Tell) -> Steps:
    try:
        yield reading
        files = reading.files()
        for number, file in enumerate(files):
            yield Weigh(file)
            more = len(files) - number - 1
            rest = f"leaves the other {more if more > 1 else 'one'}" if more else ""
            answer = yield Question(f"Add {file.name}?", f"adds {file.name}", rest)
            if answer is None:
                tell(_left(files[number:]))
                return
            if not answer:
                tell(_left([file]))
                continue
            # One that is too large says so itself; the next may fit.
            with suppress(ContextFullError):
                yield AddFile(file)
    except GeneratorExit:
        tell("stopped; nothing more is added")
        raise


def _left(files: Sequence[TextFile]) -> str:
    more = len(files) - 1
    return f"{files[0].name} {f'and {more} more are' if more else 'is'} left out"


def saving(block: CodeBlock, path: Path, tell: Tell) -> Steps:
    """`/save-code`: asks, and writes the block."""
    # Not Path.exists, which raises where the folder may not be looked into or the name is too long.
    replaces = exists(path)
    if (yield Question(question_before_saving(block, path, replaces), f"{'replaces' if replaces else 'writes'} it")):
        save_code(block, path, overwrite=replaces)
        tell(f"{path} is written")
    else:
        tell("nothing is written")


@dataclass(eq=False)
class Errand:
    """A sent line under way.

    Attributes:
        exchange: what is shown of it. step: where it is, None at its end. reply: to a step that is a request, once
            it is sent. error: what that request ended with.
    """

    exchange: Exchange
    steps: Steps
    step: Step | None = None
    reply: Reply | None = None
    error: BaseException | None = None

    def advance(self, answer: bool | None = None) -> Step | None:
        """Goes to the next step and gives it; `answer` is that to a step that is a question.

        Raises:
            BaseException: what ended it; `error` where it ended with that.
        """
        error, self.error, self.reply, self.step = self.error, None, None, None
        try:
            self.step = self.steps.send(answer) if error is None else self.steps.throw(error)
        except StopIteration:
            self.step = None
        return self.step

    def stop(self) -> None:
        """Stops the request that is under way, and what would come after it."""
        self.exchange.stopping = True
        if self.reply is not None:
            self.reply.cancel()

    @property
    def busy(self) -> bool:
        """Whether something may come of it without the person."""
        return self.reply is not None or isinstance(self.step, Reading)

    @property
    def doing(self) -> str:
        """What it does, in words."""
        if self.exchange.stopping:
            return "stopping"
        if isinstance(self.step, Reading):
            return "reading files"
        return self.exchange.doing or "waiting"
