"""How tests open a conversation in the engine's process; questions of some names make it fail there."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from icarus_local.chat.agents import Agent
from icarus_local.chat.events import Event
from icarus_local.chat.keeper import Keeper
from icarus_local.chat.reply import Opened
from icarus_local.chat.requests import Ask, Request
from icarus_local.chat.session import Session
from icarus_local.chat.store import Store
from icarus_local.chat.wire import Restart
from icarus_local.engine.base import Report
from icarus_local.errors import AdapterError, IcarusError
from icarus_local.ggml.context import Context
from icarus_local.ggml.library import TYPE_F32, load
from tests.chat.chats import choose, make_session


class Failing(Session):
    """Fails as it is told by the question."""

    def run(self, request: Request) -> Iterator[Event]:
        text = request.text if isinstance(request, Ask) else ""
        if text == "abort":
            _break_an_assertion()
        if text == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if text == "bug":
            raise KeyError("a bug")
        if text == "noise":
            print("printed")
            sys.stderr.write("on stderr\n")
            logging.getLogger("icarus_local.ggml.log").warning("a line of %s", "C")
        if text == "endless":
            self._tokenizer.is_end_of_generation = lambda _: False  # type: ignore[method-assign]
        if text == "hang":
            yield from self._abort_in_the_answer()
        yield from super().run(request)

    def _abort_in_the_answer(self) -> Iterator[Event]:
        for n, event in enumerate(super().run(Ask("question", ("a",)))):
            yield event
            if n == 3:
                _break_an_assertion()


def _break_an_assertion() -> None:
    with Context(4) as context:
        load().ggml_reshape_2d(context.handle, context.tensor(TYPE_F32, 4), 3, 3)


def open_tiny(
    base: Path, agents: list[Agent], folder: Path | None, stack: ExitStack, restart: Restart | None, report: Report
) -> tuple[Session, Opened]:
    """A conversation on `base`, saved in `folder` or nowhere; agents called x… may be added."""
    given = restart.agents if restart else [agent.name for agent in agents if not agent.name.startswith("x")]
    session = make_session(base, [choose(agents, name) for name in given], stack, known=agents)
    session.__class__ = Failing
    conversation = ""
    if folder is not None:
        tokenizer = session._tokenizer
        resume = restart.conversation or None if restart else None
        keeper = Keeper(Store(folder), session, tokenizer, resume, take_back=restart is not None)
        conversation = stack.enter_context(keeper).id
    return session, session.opened(notices=("a notice",), conversation=conversation)


def refuse(stack: ExitStack, restart: Restart | None, report: Report) -> tuple[Session, Opened]:
    """Nothing to open."""
    raise AdapterError("no such adapter", "Give another")


def die(stack: ExitStack, restart: Restart | None, report: Report) -> tuple[Session, Opened]:
    """Dies of an assertion while it opens."""
    _break_an_assertion()
    raise AssertionError


def only_once(
    base: Path, agents: list[Agent], stack: ExitStack, restart: Restart | None, report: Report
) -> tuple[Session, Opened]:
    """Cannot be opened again."""
    if restart is not None:
        raise IcarusError("the base has gone")
    return open_tiny(base, agents, None, stack, restart, report)


def full_disk(
    base: Path, agents: list[Agent], stack: ExitStack, restart: Restart | None, report: Report
) -> tuple[Session, Opened]:
    """Cannot save what was said."""

    def fail() -> None:
        raise IcarusError("the end of the conversation is not saved")

    stack.callback(fail)
    return open_tiny(base, agents, None, stack, restart, report)


def slow(
    base: Path, agents: list[Agent], stack: ExitStack, restart: Restart | None, report: Report
) -> tuple[Session, Opened]:
    """Says how far it is, prints, and takes a minute."""
    report("reading base.gguf", 0.25)
    sys.stderr.write("a line of a library\n")
    report("agent a", None)
    time.sleep(60)
    raise AssertionError


def told(
    base: Path, agents: list[Agent], stack: ExitStack, restart: Restart | None, report: Report
) -> tuple[Session, Opened]:
    """Says how far it is, and opens."""
    report("reading base.gguf", 0.25)
    sys.stderr.write("a line of a library\n")
    sys.stderr.flush()
    return open_tiny(base, agents, None, stack, restart, report)
