"""Themes: which there are, and that the screens beside the conversation can be used in each, without colour too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from textual.app import App
from textual.screen import Screen

from icarus_local.errors import RequestError
from icarus_tui.dialogs import AskLine, Confirm
from icarus_tui.logs import LogBuffer, LogsScreen
from icarus_tui.themes import TERMINAL, apply, native_colours, theme_names
from icarus_tui.welcome import WelcomeScreen
from tests.tui.alone import Bare, alone, driven
from tests.tui.test_agents_screen import screen as agents_screen
from tests.tui.test_loading import Opener
from tests.tui.test_welcome import HERE, FakePlaces

SCREENS: dict[str, tuple[Callable[[], Screen[Any]], str]] = {
    "agents": (agents_screen, "▌ ● coder"),
    "ask-line": (lambda: AskLine("A question", "a line"), "a line"),
    "confirm": (lambda: Confirm("Really?"), "Really?"),
    "loading": (lambda: Opener().screen(), "Loading tiny.gguf"),
    "logs": (lambda: LogsScreen(LogBuffer()), "Log: debug and above"),
    "welcome": (lambda: WelcomeScreen(FakePlaces([HERE])), "▌ ~/models"),
}


def test_textuals_themes_and_the_terminals_own() -> None:
    names = theme_names(Bare())
    assert names[0] == TERMINAL
    assert {"textual-dark", "textual-light", "nord", "ansi-dark", "solarized-light"} <= set(names)
    assert len(set(names)) == len(names)


@driven
async def test_each_can_be_had_and_others_are_refused_by_name() -> None:
    app = Bare()
    async with app.run_test():
        for name in theme_names(app):
            apply(app, name)
            assert app.theme == name
        assert app.native_ansi_color == app.current_theme.ansi
        apply(app, TERMINAL)
        apply(app, TERMINAL)
        assert theme_names(app).count(TERMINAL) == 1
        with pytest.raises(RequestError, match=r"there is no theme 'none'\. There are terminal, ansi-dark, "):
            apply(app, "none")
        assert app.theme == TERMINAL


@pytest.mark.parametrize("name", SCREENS)
@driven
async def test_the_terminals_theme_uses_only_its_colours(name: str) -> None:
    make, said = SCREENS[name]
    async with alone(make(), theme=TERMINAL) as s:
        await s.shows(said)
        for strip in s.strips:
            for segment in strip:
                for colour in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                    assert colour is None or colour.triplet is None, segment


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", TERMINAL])
@pytest.mark.parametrize("name", SCREENS)
@driven
async def test_without_colour_no_colour_is_drawn_and_all_is_said(name: str, theme: str) -> None:
    make, said = SCREENS[name]
    async with alone(make(), theme=theme, colour=False) as s:
        await s.shows(said)
        for strip in s.strips:
            for segment in strip:
                for colour in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                    assert colour is None or colour.is_default, segment


def test_colours_are_left_to_the_theme_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert native_colours() is None

    async def coloured() -> bool:
        app: App[None] = Bare()
        async with app.run_test():
            return app.native_ansi_color

    assert not asyncio.run(coloured())
