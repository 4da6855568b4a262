"""`icarus-local chat`: opens a conversation and the screen that it is held on."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial

import click

from icarus_local.chat.process import EngineProcess
from icarus_local.cli.bases import find_base
from icarus_local.cli.opening import SessionOptions, open_session
from icarus_local.cli.plain import PlainChat
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
    # A download shows its progress here, where people look.
    session = replace(session, engine=replace(session.engine, base=str(find_base(session.engine.base))))
    with EngineProcess(partial(open_session, session)) as chat:
        if options.on_a_screen:
            from icarus_tui.app import run_tui

            run_tui(chat, rounds=options.rounds, at_once=options.parallel)
            return
        interactive = sys.stdin.isatty() and sys.stdout.isatty() and not options.as_json
        plain = PlainChat(chat, interactive, options.as_json, options.rounds, options.parallel)
        served = plain.run()
        if options.stats:
            plain.show_totals()
    if not interactive and not served:
        raise click.exceptions.Exit(1)
