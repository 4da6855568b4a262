"""A chat without a screen: lines in, streamed answers out, one line of figures after each."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import sys
from collections.abc import Iterator

import click

from icarus_local.chat.code import save_code
from icarus_local.chat.commands import block_to_save, files_named, question_before_saving, told
from icarus_local.chat.events import AnswerDone, AnswerStarted, Event, TextDelta
from icarus_local.chat.figures import figures, printable
from icarus_local.chat.lines import Command, help_lines, parse
from icarus_local.chat.reply import Chat
from icarus_local.chat.requests import AddFile, BeginAnew, Join, Request, Weigh
from icarus_local.chat.totals import Totals
from icarus_local.errors import IcarusError


class PlainChat:
    """Reads lines from stdin; answers go to stdout, everything else to stderr."""

    def __init__(self, chat: Chat, interactive: bool, as_json: bool, rounds: int = 1, at_once: bool = False) -> None:
        """Prepares; `rounds` and `at_once` are what a question means that says nothing else."""
        self._chat, self._interactive, self._as_json = chat, interactive, as_json
        self._rounds, self._at_once = rounds, at_once
        self._opened = chat.opened
        self._totals = Totals()
        self._answers = [said.text for said in chat.opened.before if said.answer]

    def run(self) -> bool:
        """Serves every line; whether all could be."""
        _never_fail_on_encoding()
        for said in self._chat.opened.before:
            click.echo(f"{printable(said.shown)}\n", err=True)
        for notice in self._chat.opened.notices:
            _tell(notice)
        served = [self._served(line) for line in self._lines()]
        return all(served)

    def show_totals(self) -> None:
        """Prints what all answers reused and cost."""
        if self._as_json:
            click.echo(json.dumps({"stats": self._totals.record()}))
            return
        for line in self._totals.lines():
            click.echo(line, err=True)

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
            parsed = parse(line, self._rounds, self._at_once)
            if isinstance(parsed, Command):
                self._command(parsed)
            else:
                self._serve(parsed)
        except IcarusError as error:
            click.echo(f"icarus-local: {printable(str(error))}", err=True)
            self._opened = self._chat.opened
            return False
        if self._opened is not self._chat.opened:
            # It died while nothing was asked of it.
            self._opened = self._chat.opened
            kept = "goes on" if self._opened.conversation else "was not saved and begins anew"
            _tell(f"the engine had ended and was started again; the conversation {kept}")
        return True

    def _command(self, command: Command) -> None:
        match command.name:
            case "add":
                for file in files_named(command.rest):
                    self._serve(Weigh(file))
                    if not self._interactive or self._confirmed("Add it?"):
                        self._serve(AddFile(file))
            case "save-code":
                block, path = block_to_save(self._answers, command.rest)
                replaces = os.path.exists(path)
                if self._confirmed(question_before_saving(block, path, replaces)):
                    save_code(block, path, overwrite=replaces)
                    _tell(f"{path} is written")
            case "keep":
                self._serve(Join(command.rest.removeprefix("@")))
            case "new":
                self._serve(BeginAnew())
            case _:
                for text in help_lines():
                    click.echo(text, err=True)

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
        if isinstance(event, AnswerDone):
            self._answers.append(event.text)


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
            _tell(told(event))
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


def _tell(text: str) -> None:
    click.echo(f"icarus-local: {printable(text)}", err=True)


def _never_fail_on_encoding() -> None:
    """A byte that is no text, or a character that the terminal lacks, must not end a conversation."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
