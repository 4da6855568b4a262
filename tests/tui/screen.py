"""The app over a scripted chat, driven without a terminal."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from textual import events
from textual.pilot import Pilot
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

from icarus_tui.app import IcarusApp
from icarus_tui.chat_screen import ChatScreen
from icarus_tui.logs import LogBuffer
from icarus_tui.prompt import Taken
from icarus_tui.status import Activity, AgentBar, Meter
from tests.tui.fake import FakeChat, FakeHost


class Screen:
    def __init__(self, app: IcarusApp, pilot: Pilot[None], host: FakeHost) -> None:
        self.app, self.pilot, self.host, self.chat = app, pilot, host, host.chat
        view = app.screen
        assert isinstance(view, ChatScreen)
        self.view = view
        self.prompt, self.transcript = view.prompt, view.transcript
        self.sent = 0
        submit = self.prompt._submit

        def counting(line: str) -> Taken:
            taken = submit(line)
            self.sent += taken != "stays"
            return taken

        self.prompt._submit = counting

    @property
    def text(self) -> str:
        """The transcript, as it was written."""
        return self.transcript.text

    @property
    def meter(self) -> str:
        return str(self.view.query_one(Meter).visual)

    @property
    def agents(self) -> str:
        return str(self.view.query_one(AgentBar).visual)

    @property
    def activity(self) -> str:
        return str(self.view.query_one(Activity).visual)

    @property
    def placeholder(self) -> str:
        """What the empty input says."""
        return str(self.prompt.placeholder)

    @property
    def footer(self) -> set[str]:
        """What the footer offers."""
        return {key.description for key in self.app.screen.query_one(Footer).query(FooterKey)}

    def rows(self) -> list[str]:
        """What a terminal would show."""
        return [strip.text for strip in self.app.screen._compositor.render_strips()]

    def key(self, *keys: str) -> None:
        """Keys in one burst, without waiting for what they do."""
        for key in keys:
            character = key if len(key) == 1 else {"space": " "}.get(key)
            self.app.post_message(events.Key(key, character))

    def type(self, text: str) -> None:
        self.key(*text)

    async def send(self, line: str) -> None:
        """Types a line and sees it taken."""
        sent = self.sent
        self.key(*line, "enter")
        await self.until(lambda: self.sent > sent)

    async def ask(self, line: str) -> None:
        """Asks and waits for the answers."""
        await self.send(line)
        await self.idle()

    async def until(self, condition: Callable[[], object], within: float = 10.0) -> float:
        """Seconds until `condition` held."""
        start = time.monotonic()
        while not condition():
            assert time.monotonic() - start < within, f"waited in vain; the screen shows\n{chr(10).join(self.rows())}"
            await asyncio.sleep(0.005)
        return time.monotonic() - start

    async def idle(self) -> None:
        """Waits until every question is answered and shown."""
        await self.until(lambda: not self.activity)
        await self.pilot.pause()


@asynccontextmanager
async def screen(chat: FakeChat | FakeHost, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Screen]:
    host = FakeHost(chat) if isinstance(chat, FakeChat) else chat
    app = IcarusApp(host, LogBuffer())
    async with app.run_test(size=size) as pilot:
        start = time.monotonic()
        while not (isinstance(app.screen, ChatScreen) and app.screen.is_mounted and app.screen.prompt.has_focus):
            assert time.monotonic() - start < 10, "the conversation did not open"
            await asyncio.sleep(0.005)
        await pilot.pause()
        yield Screen(app, pilot, host)


def on_screen(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs an async test."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return run
