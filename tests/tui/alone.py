"""A screen of its own in an app that does nothing else, driven without a terminal."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar
from unittest import mock

from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.strip import Strip
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

from icarus_tui.themes import apply, native_colours

T = TypeVar("T")

SIZES = [(40, 10), (80, 24), (300, 100)]
"""The smallest and the largest terminal, and the usual one."""


class Bare(App[None]):
    """Nothing but what is pushed on it."""

    ENABLE_COMMAND_PALETTE = False

    def __init__(self) -> None:
        super().__init__(ansi_color=native_colours())


class Alone(Generic[T]):
    """The screen, and what it was left with."""

    def __init__(self, app: App[None], pilot: Pilot[None], screen: Screen[T]) -> None:
        self.app, self.pilot, self.screen = app, pilot, screen
        self.results: list[T | None] = []

    @property
    def strips(self) -> list[Strip]:
        """What a terminal would show, with its styles."""
        return self.app.screen._compositor.render_strips()

    @property
    def rows(self) -> list[str]:
        """What a terminal would show."""
        return [strip.text for strip in self.strips]

    @property
    def text(self) -> str:
        """All rows, in one piece."""
        return "\n".join(row.rstrip() for row in self.rows)

    @property
    def footer(self) -> set[str]:
        """What the footer offers."""
        return {key.description for key in self.app.screen.query_one(Footer).query(FooterKey)}

    async def press(self, *keys: str) -> None:
        """Keys, one after the other, and what they do."""
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, condition: Callable[[], object], within: float = 10.0) -> float:
        """Seconds until `condition` held."""
        start = time.monotonic()
        while not condition():
            assert time.monotonic() - start < within, f"waited in vain; the screen shows\n{self.text}"
            await asyncio.sleep(0.005)
        return time.monotonic() - start

    async def shows(self, *texts: str) -> None:
        """Waits until all of these are on the screen."""
        await self.until(lambda: all(text in self.text for text in texts))


@asynccontextmanager
async def alone(
    screen: Screen[Any], size: tuple[int, int] = (80, 24), *, theme: str = "textual-dark", colour: bool = True
) -> AsyncIterator[Alone[Any]]:
    """Runs `screen` until the end of the block; without `colour` as NO_COLOR has it."""
    with mock.patch.dict(os.environ, {} if colour else {"NO_COLOR": "1"}):
        app = Bare()
    apply(app, theme)
    async with app.run_test(size=size) as pilot:
        running = Alone[Any](app, pilot, screen)
        await app.push_screen(screen, running.results.append)
        await pilot.pause()
        yield running


def driven(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs an async test."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return run
