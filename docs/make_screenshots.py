"""Writes the screenshots docs/*.svg: coder and reviewer on the embedded base, and a folder of its own for the rest."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from textual.pilot import Pilot

from icarus_local.cli.bases import find_base
from icarus_local.cli.engine_options import EngineOptions
from icarus_local.cli.opening import SessionOptions
from icarus_local.cli.screen_host import ScreenHost
from icarus_tui.app import IcarusApp
from icarus_tui.chat_screen import ChatScreen
from icarus_tui.logs import LogBuffer

_DOCS = Path(__file__).parent
_SIZE = (120, 34)
_LIMIT_S = 120.0
_QUESTIONS = ("Write a function that counts vowels.", "/all What is a list comprehension?")


class _Camera:
    def __init__(self, app: IcarusApp, pilot: Pilot[None]) -> None:
        self._app, self._pilot = app, pilot

    @property
    def view(self) -> ChatScreen:
        assert isinstance(self._app.screen, ChatScreen)
        return self._app.screen

    async def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + _LIMIT_S
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError("the screen did not come to what was waited for")
            await self._pilot.pause(0.1)

    async def ask(self, line: str) -> None:
        """Asks, and waits for the answers."""
        self.view.prompt.insert(line)
        await self._pilot.press("enter")
        await self.until(lambda: not self.view.agenda.stoppable)

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)
        await self._pilot.pause(0.4)

    def shoot(self, name: str) -> None:
        (_DOCS / f"{name}.svg").write_text(self._app.export_screenshot(title="icarus-local"), "utf-8")


async def _conversation(host: ScreenHost) -> None:
    app = IcarusApp(host, LogBuffer())
    async with app.run_test(size=_SIZE) as pilot:
        camera = _Camera(app, pilot)
        await camera.until(lambda: isinstance(app.screen, ChatScreen) and app.screen.prompt.has_focus)
        await camera.ask(_QUESTIONS[0])
        await pilot.pause(0.3)
        camera.shoot("chat")
        await camera.ask(_QUESTIONS[1])
        await pilot.pause(0.3)
        camera.shoot("columns")
        await camera.press("shift+tab", "up", "up", "up")
        camera.shoot("browsing")
        await camera.press("escape", "f3")
        camera.shoot("agents")
        await camera.press("escape", "f2")
        await pilot.pause(0.5)
        camera.shoot("sessions")


async def _first_start(host: ScreenHost) -> None:
    app = IcarusApp(host, LogBuffer())
    async with app.run_test(size=_SIZE) as pilot:
        await pilot.pause(3)
        _Camera(app, pilot).shoot("first-start")


def main() -> None:
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        # Nobody's own conversations, settings and models are in the pictures.
        os.environ.update(ICARUS_HOME=home, HOME=home, HF_HUB_CACHE=f"{home}/hub")
        os.chdir(home)
        options = SessionOptions(EngineOptions(), agents="coder,reviewer")
        asyncio.run(_conversation(ScreenHost(options, str(find_base(None)), stack)))
        asyncio.run(_first_start(ScreenHost(options, None, stack)))


if __name__ == "__main__":
    main()
