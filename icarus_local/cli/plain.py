"""A chat without a screen: lines in, streamed answers out, one line of figures after each."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import click

from icarus_local.chat.code import save_code, save_text
from icarus_local.chat.commands import (
    agents_named,
    block_to_save,
    file_to_export,
    files_named,
    question_before_saving,
    roster_lines,
    roster_request,
    told,
)
from icarus_local.chat.events import (
    AnswerDone,
    AnswerStarted,
    ConversationResumed,
    Event,
    QuestionTakenBack,
    Said,
    TextDelta,
    Transcribed,
)
from icarus_local.chat.figures import figures, printable
from icarus_local.chat.lines import COMMANDS, Command, help_lines, parse, question
from icarus_local.chat.mentions import read_mentioned
from icarus_local.chat.reply import Chat
from icarus_local.chat.requests import (
    AddFile,
    Ask,
    BeginAnew,
    Join,
    Request,
    Resume,
    TakeBack,
    Transcribe,
    Weigh,
)
from icarus_local.chat.store import Store
from icarus_local.chat.totals import Totals
from icarus_local.errors import IcarusError, RequestError


class PlainChat:
    """Reads lines from stdin; answers go to stdout, everything else to stderr."""

    def __init__(
        self,
        chat: Chat,
        interactive: bool,
        as_json: bool,
        rounds: int = 1,
        at_once: bool = False,
        *,
        store: Store | None = None,
    ) -> None:
        """Prepares.

        Args:
            chat: whom the lines are sent to. interactive: whether a person sends them.
            as_json: an object per answer on stdout.
            rounds, at_once: what a question means that says nothing else.
            store: where conversations are saved, if they are.
        """
        self._chat, self._interactive, self._as_json = chat, interactive, as_json
        self._rounds, self._at_once, self._store = rounds, at_once, store
        self._engine = chat.opened.engine
        self._totals = Totals()
        self._answers: list[str] = []
        # Whom a line asks that names nobody, () for all; the latest question, and what was taken back.
        self._names: tuple[str, ...] = ()
        self._asked: Ask | None = None
        self._taken = self._transcript = ""

    def run(self) -> bool:
        """Serves every line; whether all could be."""
        _never_fail_on_encoding()
        self._recall(self._chat.opened.before)
        for notice in self._chat.opened.notices:
            _tell(notice)
        served = [self._served(line) for line in self._lines()]
        return all(served)

    def _recall(self, before: Sequence[Said]) -> None:
        """Shows what was said in a conversation that goes on."""
        for said in before:
            click.echo(f"{printable(said.shown)}\n", err=True)
        self._answers = [said.text for said in before if said.answer]

    def show_totals(self) -> None:
        """Prints what all answers reused and cost."""
        if self._as_json:
            click.echo(json.dumps({"stats": self._totals.record()}))
            return
        _show(self._totals.lines())

    def _lines(self) -> Iterator[str]:
        while True:
            try:
                line = self._read("> ")
            except EOFError:
                return
            except KeyboardInterrupt:
                # At the prompt there is nothing to stop but the program.
                click.echo(err=True)
                return
            if line.strip() == "/quit":
                return
            if line.strip():
                yield line

    def _read(self, prompt: str) -> str:
        if self._interactive:
            return input(prompt)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    def _confirmed(self, question: str) -> bool:
        """Asks on stderr; the next line is the answer."""
        click.echo(f"{printable(question)} [y/N] ", err=True, nl=not self._interactive)
        try:
            return self._read("").strip().lower() in ("y", "yes")
        except (EOFError, KeyboardInterrupt):
            click.echo(err=True)
            return False

    def _served(self, line: str) -> bool:
        """Does what a line says; False when an error ended it."""
        try:
            parsed = parse(line, self._rounds, self._at_once, self._named())
            if isinstance(parsed, Command):
                self._command(parsed)
            else:
                self._ask_about(parsed)
        except IcarusError as error:
            click.echo(f"icarus-local: {printable(str(error))}", err=True)
            self._engine = self._chat.opened.engine
            return False
        if self._engine != self._chat.opened.engine:
            # It died while nothing was asked of it.
            self._engine = self._chat.opened.engine
            kept = "goes on" if self._chat.opened.conversation else "was not saved and begins anew"
            _tell(f"the engine had ended and was started again; the conversation {kept}")
        return True

    def _named(self) -> tuple[str, ...]:
        """Whom a line asks that names nobody, as far as they still take part."""
        return tuple(name for name in self._names if name in self._chat.opened.agents)

    # -- commands ------------------------------------------------------------------------------------------------------

    def _command(self, command: Command) -> None:
        if COMMANDS[command.name].on_screen:
            raise RequestError(f"/{command.name} works on the screen", "Chat in a terminal without --plain")
        does: dict[str, Callable[[str], None]] = {
            "add": self._add,
            "agent": self._address,
            "agents": self._change_agents,
            "edit": self._edit,
            "export": self._export,
            "help": lambda _: _show(help_lines(on_screen=False)),
            "keep": lambda rest: self._serve(Join(rest.removeprefix("@"))),
            "new": lambda _: self._serve(BeginAnew()),
            "regenerate": lambda _: self._ask_again(None),
            "rename": self._rename,
            "resume": lambda rest: self._serve(Resume(rest)),
            "save-code": self._save_code,
        }
        does[command.name](command.rest)

    def _address(self, rest: str) -> None:
        self._names = agents_named(rest, self._chat.opened.agents)
        _tell(f"a line that names nobody asks {', '.join(self._names) or 'all'}")

    def _change_agents(self, rest: str) -> None:
        if rest:
            self._serve(roster_request(rest))
        else:
            _show(roster_lines(self._chat.opened.roster))

    def _edit(self, rest: str) -> None:
        if not rest:
            raise RequestError("/edit wants the question to ask instead", "For example: /edit Write a stack")
        self._ask_again(question(rest, self._rounds, self._at_once))

    def _add(self, rest: str) -> None:
        for file in files_named(rest):
            self._serve(Weigh(file))
            if not self._interactive or self._confirmed("Add it?"):
                self._serve(AddFile(file))

    def _save_code(self, rest: str) -> None:
        block, path = block_to_save(self._answers, rest)
        replaces = os.path.exists(path)
        if self._confirmed(question_before_saving(block, path, replaces)):
            save_code(block, path, overwrite=replaces)
            _tell(f"{path} is written")

    def _export(self, rest: str) -> None:
        path, form = file_to_export(rest, self._chat.opened.conversation)
        replaces = os.path.exists(path)
        if replaces and not self._confirmed(f"{path} exists. Replace it?"):
            return
        self._serve(Transcribe(form))
        save_text(self._transcript, path, overwrite=replaces)
        _tell(f"{path} is written")

    def _rename(self, title: str) -> None:
        conversation = self._chat.opened.conversation
        if self._store is None or not conversation:
            raise RequestError("this conversation is not saved, so it has no title")
        self._store.rename(conversation, title)
        _tell(f"the title is {self._store.find(conversation, empty=True).title}")

    # -- questions -----------------------------------------------------------------------------------------------------

    def _ask_about(self, request: Ask) -> None:
        """Asks, and adds before what files the question names."""
        request.check(self._chat.opened.agents)
        for file in read_mentioned(request.text):
            self._serve(Weigh(file))
            self._serve(AddFile(file))
        self._ask(request)

    def _ask(self, request: Ask) -> None:
        self._serve(request)
        self._asked = request

    def _ask_again(self, other: Ask | None) -> None:
        """Takes the newest question back and asks it once more, or `other` in its place; of the same agents."""
        agents = self._chat.opened.agents
        if other is not None:
            # Nothing is taken back for what cannot be asked.
            other.check(agents)
        files = [] if other is None else read_mentioned(other.text)
        self._serve(TakeBack())
        for file in files:
            self._serve(AddFile(file))
        again = self._asked or Ask(self._taken, self._named(), self._rounds, self._at_once)
        if again.text != self._taken:
            # It is of before this chat, or the one that was asked last got no answer.
            again = Ask(self._taken, self._named(), self._rounds, self._at_once)
        names = tuple(name for name in again.names if name in agents)
        if other is None:
            self._ask(replace(again, names=names, attempt=again.attempt + 1))
        else:
            self._ask(replace(other, names=other.names or names))

    def _serve(self, request: Request) -> None:
        reply = self._chat.submit(request)
        shown = _Shown(self._as_json)
        events = iter(reply)
        while True:
            # An interrupt can come while an event is awaited or shown: the answer stops, and the events go on.
            try:
                event = next(events, None)
                if event is None:
                    return
                self._take(event)
                shown.show(event)
            except KeyboardInterrupt:
                reply.cancel()
                events = iter(reply)

    def _take(self, event: Event) -> None:
        self._totals.add(event)
        match event:
            case AnswerDone():
                self._answers.append(event.text)
            case ConversationResumed():
                self._recall(event.before)
            case QuestionTakenBack():
                self._taken = event.text
                del self._answers[max(len(self._answers) - event.answers, 0) :]
            case Transcribed():
                self._transcript = event.text


class _Shown:
    """Shows one request's events. Of agents who answer at once one is streamed, the others follow whole."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._waiting: dict[str, list[Event]] = {}
        self._thinking = False

    def show(self, event: Event) -> None:
        """Shows an event, or keeps it until the agent before has ended."""
        if self._as_json:
            if isinstance(event, AnswerDone):
                click.echo(json.dumps(dataclasses.asdict(event)))
            elif text := told(event):
                _tell(text)
            return
        if not isinstance(event, AnswerStarted | TextDelta | AnswerDone):
            if text := told(event):
                _tell(text)
            return
        self._waiting.setdefault(event.agent, []).append(event)
        while self._waiting:
            agent = next(iter(self._waiting))
            ended = False
            for waiting in self._waiting[agent]:
                self._print(waiting)
                ended = ended or isinstance(waiting, AnswerDone)
            if not ended:
                self._waiting[agent] = []
                return
            del self._waiting[agent]

    def _print(self, event: Event) -> None:
        if isinstance(event, AnswerStarted):
            click.echo(f"{event.agent}:")
        elif isinstance(event, TextDelta):
            if event.thought and not self._thinking:
                click.echo("(thinking …)", err=True)
            self._thinking = event.thought
            if not event.thought:
                click.echo(printable(event.text), nl=False)
        elif isinstance(event, AnswerDone):
            self._thinking = False
            click.echo("\n")
            click.echo(figures(event), err=True)


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line, err=True)


def _tell(text: str) -> None:
    click.echo(f"icarus-local: {printable(text)}", err=True)


def _never_fail_on_encoding() -> None:
    """A byte that is no text, or a character that the terminal lacks, must not end a conversation."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
