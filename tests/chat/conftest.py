"""A store of saved conversations, and programs that hold one."""

from __future__ import annotations

from pathlib import Path

import pytest

from icarus_local.chat.store import Store
from tests.agents import add_agents, convert
from tests.chat.keeping import World, Writes
from tests.tiny import Tiny


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
