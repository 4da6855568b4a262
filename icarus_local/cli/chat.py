"""`icarus-local chat` without a screen: lines in, streamed answers out, one line of figures after each."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from icarus_local.chat.address import split_address
from icarus_local.chat.agents import Agent
from icarus_local.chat.events import AnswerDone, AnswerStarted, TextDelta
from icarus_local.chat.figures import figures, printable
from icarus_local.chat.keeper import Keeper
from icarus_local.chat.roster import ReadyAgent, make_ready
from icarus_local.chat.session import Session
from icarus_local.chat.store import SavedTurn, Store
from icarus_local.chat.worker import Worker
from icarus_local.cli.agents import choose_agents, locate_adapter
from icarus_local.cli.engine_options import EngineOptions
from icarus_local.engine.engine import Engine
from icarus_local.errors import IcarusError, RequestError
from icarus_local.paths import state_dir
from icarus_local.text.sandbox import MAX_SIZE
from icarus_local.text.template import ChatTemplate, own_template
from icarus_local.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The command line of `icarus-local chat`."""

    engine: EngineOptions
    agents: str
    max_tokens: int | None = None
    chat_template: Path | None = None
    instruction_only: bool = False
    plain: bool = False
    as_json: bool = False
    drafts: bool | None = None
    agents_file: Path | None = None
    resume: str | None = None
    save: bool = True

    @property
    def on_a_screen(self) -> bool:
        """Whether there is a terminal to draw on, and nobody asked for lines."""
        # Textual draws on stderr.
        on_terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
        return on_terminal and not self.plain and not self.as_json


def load_template(file: Path | None, tokenizer: Tokenizer) -> tuple[ChatTemplate, str | None]:
    """The chat template to use, and a notice where neither the user nor the base gives one."""
    if file is not None:
        try:
            with file.open("rb") as handle:
                # No more than shows that it is too large: what is named may be a device.
                source = handle.read(4 * MAX_SIZE + 1).decode("utf-8")
            return ChatTemplate(source, tokenizer, str(file)), None
        except (OSError, UnicodeDecodeError) as error:
            raise IcarusError(f"the chat template {file} cannot be read: {error}") from error
    template = own_template(tokenizer.template_source, tokenizer)
    if tokenizer.template_source is not None:
        return template, None
    return template, f"this base has no chat template; {template.name} is used (give --chat-template FILE for another)"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A base, what makes text of its ids, agents that are ready on it, and what the person should be told."""

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate
    agents: list[ReadyAgent]
    notices: list[str]


def load(
    options: EngineOptions,
    agents: Sequence[Agent],
    stack: ExitStack,
    chat_template: Path | None = None,
    instruction_only: bool = False,
) -> Loaded:
    """Loads base, template and agents; `stack` closes them."""
    engine = stack.enter_context(options.open())
    tokenizer = Tokenizer(engine.base.path)
    stack.callback(tokenizer.close)
    template, notice = load_template(chat_template, tokenizer)
    ready = make_ready(
        agents, engine, locate_adapter, tokenizer.sha256, template.sha256, instruction_only=instruction_only
    )
    notices = [*engine.notices, *([notice] if notice else [])]
    for agent in ready:
        notices += agent.notices
    return Loaded(engine, tokenizer, template, ready, notices)


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session, what was said in it before, and what the person should be told."""

    session: Session
    before: list[str]
    notices: list[str]


def open_session(options: ChatOptions, stack: ExitStack) -> OpenSession:
    """Loads base, template and agents, and a saved conversation where one goes on; `stack` closes them."""
    agents = choose_agents(options.agents, options.max_tokens, options.agents_file)
    loaded = load(options.engine, agents, stack, options.chat_template, options.instruction_only)
    notices, before = loaded.notices, []
    if options.drafts and not loaded.engine.verifies_exactly:
        notices.append("with drafts, steps of several tokens round otherwise here: answers may differ by that")
    session = Session(loaded.engine, loaded.tokenizer, loaded.template, loaded.agents, speculate=options.drafts)
    if options.save:
        keeper = stack.enter_context(Keeper(Store(sessions_folder()), session, loaded.tokenizer, options.resume))
        before, notices = history(keeper.turns), [*notices, *keeper.notices]
    return OpenSession(session, before, notices)


def sessions_folder() -> Path:
    """Where conversations are saved."""
    return state_dir() / "sessions"


def history(turns: Sequence[SavedTurn]) -> list[str]:
    """What was said before, a text for each turn, as it is shown when a conversation goes on."""
    return [
        f"{'you' if turn.speaker == 'user' else turn.speaker}: {turn.text}"
        for turn in turns
        if turn.speaker != "system"
    ]


def run_chat(options: ChatOptions) -> None:
    """Runs the chat until the input ends."""
    opened: list[OpenSession] = []
    with ExitStack() as stack:

        def make_session() -> Session:
            opened.append(open_session(options, stack))
            return opened[0].session

        worker = stack.enter_context(Worker(make_session))
        before, notices = opened[0].before, opened[0].notices
        if options.on_a_screen:
            from icarus_tui.app import run_tui

            run_tui(worker, [*before, *notices], worker.session.engine.n_ctx)
            return
        _never_fail_on_encoding()
        for text in before:
            click.echo(f"{printable(text)}\n", err=True)
        for notice in notices:
            click.echo(f"icarus-local: {notice}", err=True)
        interactive = sys.stdin.isatty() and sys.stdout.isatty() and not options.as_json
        answered = [_answer(worker, line, options.as_json) for line in _lines(interactive)]
    if not interactive and not all(answered):
        raise click.exceptions.Exit(1)


def _never_fail_on_encoding() -> None:
    """A byte that is no text, or a character that the terminal lacks, must not end a conversation."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _lines(interactive: bool) -> Iterator[str]:
    while True:
        try:
            line = _read_line(interactive)
        except EOFError:
            return
        except KeyboardInterrupt:
            # At the prompt there is nothing to stop but the program.
            click.echo(err=True)
            return
        if line.strip():
            yield line.rstrip("\r\n")


def _read_line(interactive: bool) -> str:
    if interactive:
        return input("> ")
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _answer(worker: Worker, line: str, as_json: bool) -> bool:
    """Shows the answers to a line; False when an error ended them."""
    try:
        request = worker.ask(*split_address(line))
    except RequestError as error:
        click.echo(f"icarus-local: {error}", err=True)
        return False
    events = iter(request)
    while True:
        # An interrupt can come while an event is awaited or shown: either way the answer stops and the events go on.
        try:
            event = next(events, None)
            if event is None:
                return True
            _show(event, as_json)
        except KeyboardInterrupt:
            request.cancel()
            events = iter(request)
        except IcarusError as error:
            click.echo(f"icarus-local: {error}", err=True)
            return False


def _show(event: AnswerStarted | TextDelta | AnswerDone, as_json: bool) -> None:
    if as_json:
        if isinstance(event, AnswerDone):
            click.echo(json.dumps(dataclasses.asdict(event)))
        return
    if isinstance(event, AnswerStarted):
        click.echo(f"{event.agent}:")
    elif isinstance(event, TextDelta):
        click.echo(printable(event.text), nl=False)
    else:
        click.echo("\n")
        click.echo(figures(event), err=True)
