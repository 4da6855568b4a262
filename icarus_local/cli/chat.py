"""`icarus-local chat`: opens a conversation and the screen that it is held on."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import click

from icarus_local.chat.process import EngineProcess
from icarus_local.chat.store import Store
from icarus_local.cli.bases import NoBaseError, find_base
from icarus_local.cli.opening import SessionOptions, open_session, sessions_folder
from icarus_local.cli.plain import PlainChat
from icarus_local.cli.screen_host import ScreenHost
from icarus_local.errors import RequestError


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a conversation is shown, and what a question means that says nothing else."""

    plain: bool = False
    as_json: bool = False
    stats: bool = False
    rounds: int = 1
    parallel: bool = False

    @property
    def on_a_screen(self) -> bool:
        """Whether there is a terminal to draw on, and nobody asked for lines."""
        # Textual draws on stderr.
        on_terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
        return on_terminal and not self.plain and not self.as_json


def run_chat(session: SessionOptions, options: ChatOptions) -> None:
    """Runs the chat until the input ends."""
    if options.parallel and options.rounds > 1:
        raise RequestError("agents that answer at once have no rounds", "Give --parallel or --rounds")
    try:
        # A download shows its progress here, where people look.
        base = str(find_base(session.engine.base))
    except NoBaseError:
        if not options.on_a_screen:
            raise
        base = None
    if options.on_a_screen:
        _run_on_screen(session, options, base)
    else:
        _run_plain(replace(session, engine=replace(session.engine, base=base)), options)


def _run_plain(session: SessionOptions, options: ChatOptions) -> None:
    with EngineProcess(partial(open_session, session)) as chat:
        interactive = sys.stdin.isatty() and sys.stdout.isatty() and not options.as_json
        store = Store(sessions_folder()) if session.save else None
        plain = PlainChat(chat, interactive, options.as_json, options.rounds, options.parallel, store=store)
        served = plain.run()
        if options.stats:
            plain.show_totals()
    if not interactive and not served:
        raise click.exceptions.Exit(1)


def _run_on_screen(session: SessionOptions, options: ChatOptions, base: str | None) -> None:
    from icarus_tui.app import run_tui

    with ExitStack() as stack:
        run_tui(ScreenHost(session, base, stack, options.rounds, options.parallel))
