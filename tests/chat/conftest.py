"""A session, a store of saved conversations, and programs that hold one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from icarus_local.chat.agents import Agent
from icarus_local.chat.session import Session
from icarus_local.chat.store import Store
from tests.agents import add_agents, convert
from tests.chat.chats import make_session, tiny_agents
from tests.chat.keeping import World, Writes
from tests.tiny import Tiny


@pytest.fixture(scope="session")
def agents(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> list[Agent]:
    return tiny_agents(tiny, tmp_path_factory.mktemp("agents"))


@pytest.fixture
def session(tiny: Tiny, agents: list[Agent]) -> Iterator[Session]:
    with ExitStack() as stack:
        yield make_session(tiny.path, agents, stack)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "sessions")


@pytest.fixture
def world(tiny: Tiny, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("ICARUS_HOME", str(tmp_path / "home"))
    return World(tiny.path, convert(add_agents(tiny.model, {"A": 0.3}), "A", tiny.path, tmp_path), store)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    writes = Writes()
    monkeypatch.setattr("icarus_local.chat.keeper.write_state", writes)
    return writes
