"""The saved conversations on the screen: found, gone on with, renamed, deleted, exported, over a real store."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from icarus_local.chat.store import SavedTurn, Store
from icarus_tui.sessions import SessionsScreen
from tests.tui.alone import SIZES, Alone, alone, driven

BASE = Path("/models/base.gguf")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "sessions")


def said(store: Store, *texts: str, agents: Sequence[str] = ("coder", "reviewer")) -> str:
    """Saves a conversation of questions and coder's answers."""
    session = store.create(BASE, "ab", agents)
    turns = [
        SavedTurn("coder", text, (1, 2)) if i % 2 else SavedTurn("user", text, None) for i, text in enumerate(texts)
    ]
    store.save(session, turns)
    return session


@pytest.mark.parametrize("size", SIZES)
@driven
async def test_all_are_listed_and_enter_goes_on_with_one(store: Store, size: tuple[int, int]) -> None:
    first = said(store, "How do I sort [b]a list[/b]?\x1b[2J", "Use sorted.")
    said(store, "What is 世界?", "It is שלום.")
    async with alone(SessionsScreen(store, ""), size) as s:
        await s.shows("2 conversations", "What is 世界?", "sort [b]a list[/b]?�[2J", "coder, reviewer")
        assert s.footer >= {"Go on", "Rename", "Delete"}
        if size[0] >= 100:
            await s.shows("It is שלום.")
        else:
            assert "It is" not in s.text
        await s.press("down", "enter")
        await s.until(lambda: s.results)
    assert s.results == [first]


@driven
async def test_what_is_typed_is_looked_for_in_all_that_was_said(store: Store) -> None:
    wanted = said(store, "A question", "The answer is STRASSE and more", "Again", "die Straße")
    said(store, "Another", "with nothing")
    async with alone(SessionsScreen(store, ""), (120, 30)) as s:
        await s.shows("2 conversations")
        await s.press("slash", *"straße")
        await s.shows("1 conversation with “straße”", "coder: The answer is STRASSE", "coder: die Straße")
        await s.until(lambda: "with nothing" not in s.text)
        # The preview begins where it was found.
        await s.until(lambda: "A question" not in "".join(row[60:] for row in s.rows))
        await s.press("backspace", "backspace", *"zzz")
        await s.shows("0 conversations with")
        await s.press("enter")
        assert s.results == []
        await s.press("ctrl+u")
        await s.shows("2 conversations")
        await s.press("down", "enter")
        await s.until(lambda: s.results)
    assert s.results == [wanted]


@driven
async def test_a_search_can_be_given_at_first(store: Store) -> None:
    wanted = said(store, "needle")
    said(store, "hay")
    async with alone(SessionsScreen(store, "", "needle")) as s:
        await s.shows("1 conversation with “needle”")
        await s.press("enter")
        await s.until(lambda: s.results)
    assert s.results == [wanted]


@driven
async def test_the_one_that_is_open_can_neither_be_gone_on_with_nor_deleted(store: Store) -> None:
    here = said(store, "here")
    async with alone(SessionsScreen(store, here)) as s:
        await s.shows("open here")
        await s.press("enter")
        await s.shows("open already")
        await s.press("delete")
        await s.shows("cannot be deleted")
        await s.press("escape")
        await s.until(lambda: s.results)
    assert s.results == [None]
    assert [saved.id for saved in store.sessions()] == [here]


@driven
async def test_one_is_renamed_and_gets_its_own_title_back(store: Store) -> None:
    session = said(store, "its question")
    async with alone(SessionsScreen(store, session)) as s:
        await s.shows("its question")
        await s.press("f2")
        await s.until(lambda: s.app.screen is not s.screen)
        await s.press("ctrl+u", *"mine", "enter")
        await s.until(lambda: s.app.screen is s.screen)
        await s.shows("mine")
        assert store.find(session).title == "mine"
        await s.press("r")
        await s.until(lambda: s.app.screen is not s.screen)
        await s.press(*"xx", "escape")
        await s.until(lambda: s.app.screen is s.screen)
        assert store.find(session).title == "mine"
        await s.press("r")
        await s.until(lambda: s.app.screen is not s.screen)
        await s.press("ctrl+u", "enter")
        await s.shows("its question")
        await s.press("r")
        await s.until(lambda: s.app.screen is not s.screen)
        await s.press("ctrl+u")
        s.app.screen.query_one("Input").value = "x" * 121  # type: ignore[attr-defined]
        await s.press("enter")
        await s.shows("120 are possible")


@driven
async def test_one_is_deleted_after_asking(store: Store) -> None:
    kept, gone = said(store, "kept"), said(store, "gone", "for good")
    async with alone(SessionsScreen(store, "")) as s:
        await s.shows("2 conversations")
        for answer in ("n", "escape", "enter"):
            await s.press("delete")
            await s.shows("Delete “gone” for good, 2 turns?")
            await s.press(answer)
            if answer == "enter":
                await s.press("n")
            await s.until(lambda: s.app.screen is s.screen)
        assert len(store.sessions()) == 2
        await s.press("delete")
        await s.shows("Delete “gone”")
        await s.press("y")
        await s.shows("1 conversation")
    assert [saved.id for saved in store.sessions()] == [kept]
    assert store.turns(gone) == []


@driven
async def test_one_that_another_process_holds_is_not_deleted(store: Store) -> None:
    session = said(store, "held")
    with store.held(session):
        async with alone(SessionsScreen(store, "")) as s:
            await s.shows("1 conversation")
            await s.press("delete", "y")
            await s.shows("is open in another process")
    assert [saved.id for saved in store.sessions()] == [session]


async def _exports(s: Alone[Any], name: str) -> None:
    await s.press("e")
    await s.until(lambda: s.app.screen is not s.screen)
    # Not by keys: some characters have names of their own.
    s.app.screen.query_one("Input").value = name  # type: ignore[attr-defined]
    await s.press("enter")


@driven
async def test_one_is_exported_and_a_file_is_replaced_only_after_asking(store: Store, tmp_path: Path) -> None:
    said(store, "a question", "an answer")
    file = tmp_path / "out.md"
    async with alone(SessionsScreen(store, ""), (200, 30)) as s:
        await s.shows("1 conversation")
        await _exports(s, str(file))
        await s.shows("out.md is written")
        assert "## coder\n\nan answer" in file.read_text()
        file.write_text("mine")
        await _exports(s, str(file))
        await s.shows("Replace ")
        await s.press("n")
        await s.until(lambda: s.app.screen is s.screen)
        assert file.read_text() == "mine"
        await _exports(s, str(file))
        await s.shows("Replace ")
        await s.press("y")
        await s.until(lambda: "an answer" in file.read_text())
        await _exports(s, str(tmp_path / "out.jsonl"))
        await s.shows("out.jsonl is written")
        await _exports(s, str(tmp_path / "out.txt"))
        await s.shows("Give a name that ends in .md or .jsonl")
        await _exports(s, str(tmp_path / "none" / "out.md"))
        await s.shows("there is no folder")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["content"] for line in lines] == ["a question", "an answer"]


@driven
async def test_a_store_that_fails_is_told_and_ends_nothing(store: Store) -> None:
    said(store, "a question")
    async with alone(SessionsScreen(store, "")) as s:
        await s.shows("1 conversation")
        database = next(store.folder.glob("*.db"))
        for file in store.folder.glob("*.db*"):
            file.unlink()
        database.write_bytes(b"no database " * 1000)
        await s.press("slash", "x")
        await s.shows("file is not a database")
        await s.press("escape")
        await s.until(lambda: s.results)


@driven
async def test_nothing_waits_for_a_search(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    said(store, "a question")
    searched: list[str] = []
    over = threading.Event()

    def slow(text: str) -> list[Any]:
        searched.append(text)
        # In the screen's own thread it would wait in vain.
        assert over.wait(5)
        return []

    monkeypatch.setattr(store, "search", slow)
    async with alone(SessionsScreen(store, "")) as s:
        await s.press("slash", "a")
        await s.until(lambda: searched == ["a"])
        await s.press(*"bcd")
        await s.shows("abcd")
        over.set()
        await s.shows("0 conversations with “abcd”")


@driven
async def test_only_what_stays_is_looked_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    monkeypatch.setattr("icarus_tui.sessions._TYPING_S", 0.5)
    monkeypatch.setattr(store, "search", lambda text: searched.append(text) or [])
    async with alone(SessionsScreen(store, "")) as s:
        await s.press("slash", *"abcd")
        await s.until(lambda: searched)
    assert searched == ["abcd"]


@driven
async def test_resizing_brings_the_preview_and_takes_it(store: Store) -> None:
    said(store, "a question", "an answer of its own")
    async with alone(SessionsScreen(store, "")) as s:
        await s.shows("1 conversation")
        assert "an answer of its own" not in s.text
        await s.pilot.resize_terminal(140, 24)
        await s.shows("an answer of its own")
        await s.pilot.resize_terminal(60, 10)
        await s.until(lambda: "an answer of its own" not in s.text)
