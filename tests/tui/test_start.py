"""How the program begins: a base that loads, one that does not, none at all; its keys, its palette."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.pilot import Pilot

from icarus_local.errors import IcarusError, ModelFileError, RequestError
from icarus_local.settings import Settings
from icarus_tui.app import IcarusApp
from icarus_tui.chat_screen import ChatScreen
from icarus_tui.loading import LoadingScreen
from icarus_tui.logs import LogBuffer
from icarus_tui.welcome import WelcomeScreen
from tests.tui.fake import FakeChat, FakeHost
from tests.tui.screen import Screen, on_screen, screen


class Start:
    """The app before there is a conversation."""

    def __init__(self, app: IcarusApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    def shows(self, text: str) -> bool:
        return any(text in strip.text for strip in self.app.screen._compositor.render_strips())

    async def until(self, condition: Callable[[], object]) -> None:
        start = time.monotonic()
        while not condition():
            assert time.monotonic() - start < 10, "waited in vain"
            await asyncio.sleep(0.005)


@asynccontextmanager
async def started(host: FakeHost) -> AsyncIterator[Start]:
    app = IcarusApp(host, LogBuffer())
    async with app.run_test(size=(80, 24)) as pilot:
        yield Start(app, pilot)


@on_screen
async def test_a_load_error_is_shown_with_its_reason_and_the_ways_back() -> None:
    host = FakeHost(FakeChat(), base="broken.gguf")
    host.errors = [ModelFileError("broken.gguf lacks the tensor [x]", "Fetch it again")] * 2
    async with started(host) as s:
        await s.until(lambda: s.shows("broken.gguf lacks the tensor [x]"))
        assert s.shows("Fetch it again")
        await s.pilot.press("r")
        await s.until(lambda: host.opened == ["broken.gguf"] * 2 and s.shows("Fetch it again"))
        await s.pilot.press("b")
        await s.until(lambda: isinstance(s.app.screen, WelcomeScreen))
        assert s.app.is_running


@on_screen
async def test_after_an_error_it_can_be_left() -> None:
    host = FakeHost(FakeChat())
    host.errors = [IcarusError("no")]
    async with started(host) as s:
        await s.until(lambda: isinstance(s.app.screen, LoadingScreen) and s.shows("cannot be loaded"))
        await s.pilot.press("q")
        await s.until(lambda: not s.app.is_running)
    assert s.app.return_code == 0


@on_screen
async def test_without_a_base_one_is_chosen() -> None:
    host = FakeHost(FakeChat(), base=None)
    async with started(host) as s:
        await s.until(lambda: isinstance(s.app.screen, WelcomeScreen))
        s.app.screen.dismiss("mine.gguf")
        await s.until(lambda: isinstance(s.app.screen, ChatScreen))
    assert host.opened == ["mine.gguf"]


@on_screen
async def test_where_none_is_chosen_the_program_ends() -> None:
    async with started(FakeHost(FakeChat(), base=None)) as s:
        await s.until(lambda: isinstance(s.app.screen, WelcomeScreen))
        s.app.screen.dismiss(None)
        await s.until(lambda: not s.app.is_running)


@on_screen
async def test_keys_are_those_of_the_settings() -> None:
    settings = Settings(keys={"find": "f9", "quit": "f10", "send": "f12", "newline": "enter"})
    async with screen(FakeHost(FakeChat(), settings=settings)) as s:
        s.key("a", "enter", "b", "f12")
        await s.until(lambda: s.chat.asked == [("a\nb", ())])
        await s.idle()
        s.key("f9")
        await s.until(lambda: s.view.focused is not s.prompt)
        s.key("escape", *"/help", "f12")
        await s.until(lambda: "F9 find" in s.text.replace("f9", "F9"))
        s.key("ctrl+q")
        await s.pilot.pause()
        assert s.app.is_running
        s.key("f10")
        await s.until(lambda: not s.app.is_running)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"fly": "f9"}, "there is nothing of that name. There are"),
        ({"find": "hyperspace"}, "'hyperspace' is no key"),
        ({"find": "ctrl+q"}, ""),
        ({"find": "f2"}, "f2 is sessions's already"),
    ],
)
def test_keys_that_cannot_be_are_refused_before_anything_is_drawn(keys: dict[str, str], why: str) -> None:
    host = FakeHost(FakeChat(), settings=Settings(keys=keys))
    if not why:
        IcarusApp(host, LogBuffer())
        return
    with pytest.raises(RequestError, match=why):
        IcarusApp(host, LogBuffer())


async def chosen(s: Screen, words: str) -> None:
    """Looks for something in the palette and takes it."""
    s.key("ctrl+p")
    await s.until(lambda: isinstance(s.app.screen, CommandPalette))
    await s.pilot.press(*words)
    await s.until(lambda: any(words in strip.text for strip in s.app.screen._compositor.render_strips()[3:]))
    await s.pilot.pause(0.2)
    await s.pilot.press("enter")
    await s.until(lambda: not isinstance(s.app.screen, CommandPalette))


@on_screen
async def test_the_palette_answers_nothing_that_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    async with screen(FakeChat()) as s:
        await s.send("/add a.txt")
        await s.until(lambda: s.activity.startswith("Add a.txt?"))
        await chosen(s, "/help")
        await s.until(lambda: "/quit: end the chat" in s.text)
        assert s.activity.startswith("Add a.txt?")
        s.prompt.put("a draft")
        await chosen(s, "/keep")
        await s.until(lambda: s.prompt.text == "/keep ")
        assert s.prompt.recall.older("") == "a draft"


@on_screen
async def test_the_palette_does_commands_and_begins_those_that_want_more() -> None:
    async with screen(FakeChat()) as s:
        await s.ask("hello")
        await chosen(s, "/regenerate")
        await s.until(lambda: len(s.chat.asked) == 2)
        await s.idle()
        await chosen(s, "/keep")
        await s.until(lambda: s.prompt.text == "/keep ")
        assert s.prompt.has_focus
