"""What tests of the keeper share: programs that hold a conversation one after another, and writing that is watched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from icarus_local.chat.agents import Agent
from icarus_local.chat.events import AnswerDone
from icarus_local.chat.keeper import Keeper
from icarus_local.chat.session import Session
from icarus_local.chat.store import Store
from icarus_local.engine.engine import Engine
from icarus_local.engine.state import State, load_state, write_state
from icarus_local.text.template import ChatTemplate
from icarus_local.text.tokenizer import Tokenizer
from tests.chat.chats import make_roster


class World:
    """A base with an agent, opened anew for each part of a conversation."""

    def __init__(self, base: Path, adapter: Path, store: Store) -> None:
        self.base, self.adapter, self.store, self.kv_type = base, adapter, store, "f32"

    @contextmanager
    def opened(self, resume: str | None = None, **options: Any) -> Iterator[tuple[Session, Keeper]]:
        """A program of its own."""
        agents = [Agent(name="a", adapter=str(self.adapter), max_tokens=12)]
        with ExitStack() as stack:
            engine = Engine(self.base, n_ctx=512, kv_type=self.kv_type, n_threads=1, device="cpu")
            stack.enter_context(engine)
            tokenizer = Tokenizer(self.base)
            stack.callback(tokenizer.close)
            assert tokenizer.template_source is not None
            template = ChatTemplate(tokenizer.template_source, tokenizer)
            roster = make_roster(agents, engine, template_sha256=template.sha256)
            roster.add("a")
            session = Session(engine, tokenizer, template, roster)
            yield session, stack.enter_context(Keeper(self.store, session, tokenizer, resume, **options))

    def talk(self, question: str, resume: str | None = None, **options: Any) -> tuple[AnswerDone, Keeper]:
        """One question in a program of its own."""
        with self.opened(resume, **options) as (session, keeper):
            return ask(session, question), keeper

    def restored(self, id_: str) -> tuple[list[int], bytes]:
        """Token ids and bytes of a state on disk."""
        with Engine(self.base, n_ctx=512, kv_type=self.kv_type, n_threads=1, device="cpu") as engine:
            sequence = load_state(engine, self.store.state_file(id_)).sequence
            return engine.cells.tokens(sequence).tolist(), engine.kv_bytes(sequence)


def ask(session: Session, question: str) -> AnswerDone:
    (answer,) = (event for event in session.ask(question) if isinstance(event, AnswerDone))
    return answer


def ids(session: Session) -> list[int]:
    return [int(token) for token in session.engine.cells.tokens(session.sequence)]


class Writes:
    """Stands in for `write_state`: counts, fails as it is told to, and waits until it may go on."""

    def __init__(self) -> None:
        self.n, self.at_once, self.most = 0, 0, 0
        self.errors: list[Exception] = []
        self.may_go = threading.Event()
        self.may_go.set()

    def __call__(self, state: State, path: Path, kv_type: str | None = None) -> int:
        self.n, self.at_once = self.n + 1, self.at_once + 1
        self.most = max(self.most, self.at_once)
        try:
            assert self.may_go.wait(10)
            if self.errors:
                raise self.errors.pop(0)
            return write_state(state, path, kv_type)
        finally:
            self.at_once -= 1


def finish_writing(keeper: Keeper) -> None:
    if keeper._writer is not None:
        keeper._writer.join()
