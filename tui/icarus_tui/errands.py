"""What a sent line does, step by step: files are read, requests are served, and the person is asked in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from os.path import exists
from pathlib import Path

from icarus_local.chat.code import CodeBlock, save_code, save_text
from icarus_local.chat.commands import files_named, question_before_saving
from icarus_local.chat.events import Transcribed
from icarus_local.chat.files import TextFile
from icarus_local.chat.lines import line_of
from icarus_local.chat.mentions import read_mentioned
from icarus_local.chat.reply import Reply
from icarus_local.chat.requests import AddFile, Ask, Request, TakeBack, Transcribe, Weigh
from icarus_local.chat.transcripts import Form
from icarus_local.errors import ContextFullError
from icarus_tui.asking import Question
from icarus_tui.exchange import Exchange


class Reading:
    """Files that a line names, read in a thread of their own: a file may lie far away."""

    def __init__(self, read: Callable[[], list[TextFile]]) -> None:
        """Begins to read; `read` may raise RequestError."""
        self._result: list[TextFile] | BaseException = []
        self._finished = threading.Event()
        threading.Thread(target=self._read, args=(read,), name="icarus-files", daemon=True).start()

    def _read(self, read: Callable[[], list[TextFile]]) -> None:
        try:
            self._result = read()
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
            RequestError: as `read` did.
        """
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


Came = Ask | Transcribed
"""What comes of a request for the line that made it, and not only for the screen: a question that was taken back, as
it was asked, or the conversation in one piece.
"""

Step = Request | Question | Reading
Steps = Generator[Step, bool | Came | None, None]
"""Steps of a line. Sent in is a question's answer, as `Decide` takes it, or what came of a request; what a request
failed of is thrown in.
"""

Tell = Callable[[str], None]


def asking(request: Request) -> Steps:
    """One request."""
    yield request


def adding(rest: str, tell: Tell) -> Steps:
    """`/add`: weighs each file, and asks before it is added. The files are read as soon as this is called."""
    return _adding(Reading(partial(files_named, rest)), tell)


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


def asking_about(question: Ask) -> Steps:
    """A question that names files by `@`, which are added before it. They are read as soon as this is called."""
    return _asking_about(_mentioned(question.text), question)


def _mentioned(text: str) -> Reading:
    return Reading(partial(read_mentioned, text))


def _asking_about(reading: Reading, question: Ask) -> Steps:
    yield reading
    yield from _adding_all(reading.files())
    yield question


def _adding_all(files: Sequence[TextFile]) -> Steps:
    for file in files:
        yield Weigh(file)
        yield AddFile(file)


def asking_again(exchange: Exchange, agents: Callable[[], Sequence[str]]) -> Steps:
    """`/regenerate`: the newest question is taken back, and asked once more; `agents` are those who are here then."""
    taken = yield TakeBack()
    assert isinstance(taken, Ask)
    names = tuple(name for name in taken.names if name in agents())
    yield _becomes(exchange, replace(taken, names=names, attempt=taken.attempt + 1))


def asking_instead(exchange: Exchange, other: Ask, agents: Callable[[], Sequence[str]]) -> Steps:
    """`/edit`: the newest question is taken back, and `other` asked in its place, of the same agents where it names
    none. Files that it names are read now.
    """
    return _asking_instead(exchange, other, agents, _mentioned(other.text))


def _asking_instead(exchange: Exchange, other: Ask, agents: Callable[[], Sequence[str]], reading: Reading) -> Steps:
    yield reading
    files = reading.files()
    taken = yield TakeBack()
    assert isinstance(taken, Ask)
    names = other.names or tuple(name for name in taken.names if name in agents())
    question = _becomes(exchange, replace(taken, text=other.text, names=names, attempt=0))
    yield from _adding_all(files)
    yield question


def _becomes(exchange: Exchange, question: Ask) -> Ask:
    """Shows a question for the command that asks it; should it be taken back, it is what comes into the input."""
    exchange.line, exchange.question = line_of(question), question
    exchange.show_state("")
    return question


def saving(block: CodeBlock, path: Path, tell: Tell) -> Steps:
    """`/save-code`: asks, and writes the block."""
    # Not Path.exists, which raises where the folder may not be looked into or the name is too long.
    replaces = exists(path)
    question = question_before_saving(block, path, replaces)
    if (yield Question(question, f"{'replaces' if replaces else 'writes'} it")):
        save_code(block, path, overwrite=replaces)
        tell(f"{path} is written")
    else:
        tell("nothing is written")


def exporting(path: Path, form: Form, tell: Tell) -> Steps:
    """`/export`: asks where there is such a file, and writes the conversation."""
    written = yield Transcribe(form)
    assert isinstance(written, Transcribed)
    replaces = exists(path)
    if replaces and not (yield Question(f"Replace {path}? It exists.", "replaces it")):
        tell("nothing is written")
        return
    save_text(written.text, path, overwrite=replaces)
    tell(f"{path} is written")


@dataclass(eq=False)
class Errand:
    """A sent line under way.

    Attributes:
        exchange: what is shown of it. step: where it is, None at its end. reply: to a step that is a request, once
            it is sent. came: what has come of that for the line. error: what that request ended with.
    """

    exchange: Exchange
    steps: Steps
    step: Step | None = None
    reply: Reply | None = None
    came: Came | None = None
    error: BaseException | None = None

    def advance(self, answer: bool | None = None) -> Step | None:
        """Goes to the next step and gives it; `answer` is that to a step that is a question.

        Raises:
            BaseException: what ended it; `error` where it ended with that.
        """
        error, came = self.error, self.came
        self.error = self.reply = self.came = self.step = None
        try:
            sent = answer if came is None else came
            self.step = self.steps.send(sent) if error is None else self.steps.throw(error)
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
