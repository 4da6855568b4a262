"""The screen while a chat opens: progress, stopping, errors and the ways back, and that nothing opened is lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icarus_local.errors import CancelledError, ModelFileError
from icarus_tui.loading import Left, LoadingScreen, Tell, bar
from icarus_tui.logs import LogBuffer
from tests.tui.alone import SIZES, alone, driven


class Opened:
    """What is opened; counts how often it was closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Opener:
    """Opens when it may, fails as it is told, and ends when it is cancelled."""

    def __init__(self, error: BaseException | None = None, heeds: bool = True) -> None:
        self.error, self.heeds = error, heeds
        self.may, self.cancelled = threading.Event(), threading.Event()
        self.opened: Opened | None = None
        self.tells: list[Tell] = []

    def start(self, tell: Tell) -> Opened:
        self.tells.append(tell)
        while not self.may.wait(0.005):
            if self.heeds and self.cancelled.is_set():
                raise CancelledError("loading was stopped")
        if self.error is not None:
            raise self.error
        self.opened = Opened()
        return self.opened

    def cancel(self) -> None:
        self.cancelled.set()

    def screen(self, logs: LogBuffer | None = None) -> LoadingScreen[Opened]:
        return LoadingScreen("tiny.gguf", self.start, self.cancel, logs)


def waited(condition: Callable[[], object]) -> bool:
    end = time.monotonic() + 5
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(condition())


@pytest.mark.parametrize("size", SIZES)
@driven
async def test_progress_is_shown_and_what_was_opened_is_given(size: tuple[int, int]) -> None:
    opener = Opener()
    async with alone(opener.screen(), size) as s:
        await s.until(lambda: opener.tells)
        await s.shows("Loading tiny.gguf", "0 s")
        await s.until(lambda: s.footer == {"Stop", "Quit"})
        opener.tells[0]("reading [b]tiny[/b].gguf \x1b[2J", 0.5)
        await s.shows("reading [b]tiny[/b].gguf �[2J", "█░", "50%")
        opener.tells[0]("checking the base", None)
        await s.shows("checking the base")
        assert "%" not in s.text
        opener.may.set()
        await s.until(lambda: s.results)
    assert s.results == [opener.opened]
    assert opener.opened is not None
    assert opener.opened.closed == 0
    assert not opener.cancelled.is_set()


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
@driven
async def test_stopping_takes_no_time_and_leaves_the_choice(key: str) -> None:
    opener = Opener()
    async with alone(opener.screen()) as s:
        await s.until(lambda: opener.tells)
        s.app.simulate_key(key)
        assert await s.until(lambda: "Loading tiny.gguf was stopped" in s.text) < 1
        assert s.results == []
        await s.until(lambda: s.footer == {"Try again", "Another base", "Quit"})
        await s.press(key)
        await s.until(lambda: s.results)
    assert s.results == [Left.QUIT]


@pytest.mark.parametrize(
    ("key", "left"),
    [("r", Left.AGAIN), ("enter", Left.AGAIN), ("b", Left.OTHER), ("q", Left.QUIT), ("escape", Left.QUIT)],
)
@driven
async def test_an_error_gives_its_reason_and_the_ways_back(key: str, left: Left) -> None:
    opener = Opener(ModelFileError("tiny.gguf is [red]damaged[/]", "Fetch it again"))
    opener.may.set()
    async with alone(opener.screen(), (40, 10)) as s:
        await s.shows("tiny.gguf cannot be loaded", "tiny.gguf is [red]damaged[/]", "Fetch it again")
        await s.press(key)
        await s.until(lambda: s.results)
    assert s.results == [left]


@driven
async def test_what_is_no_error_for_people_is_shown_too() -> None:
    opener = Opener(KeyError("a bug"))
    opener.may.set()
    async with alone(opener.screen()) as s:
        await s.shows("KeyError: 'a bug'")


@driven
async def test_while_it_loads_only_stopping_and_quitting_do_something() -> None:
    opener = Opener()
    async with alone(opener.screen()) as s:
        await s.until(lambda: opener.tells)
        await s.press("r", "enter", "b", "l")
        assert s.results == []
        assert s.app.screen is s.screen
        await s.press("q")
        await s.until(lambda: s.results)
        assert opener.cancelled.is_set()
    assert s.results == [Left.QUIT]


@driven
async def test_what_opens_after_the_person_left_is_closed() -> None:
    opener = Opener(heeds=False)
    async with alone(opener.screen()) as s:
        await s.until(lambda: opener.tells)
        # It does not end when it is cancelled: the second key does not wait for it.
        await s.press("escape")
        await s.shows("stopping")
        await s.press("escape")
        await s.until(lambda: s.results)
    assert s.results == [Left.QUIT]
    opener.may.set()
    assert waited(lambda: opener.opened is not None and opener.opened.closed == 1)


@driven
async def test_what_opens_when_the_program_ends_is_closed() -> None:
    opener = Opener(heeds=False)
    async with alone(opener.screen()) as s:
        await s.until(lambda: opener.tells)
    assert opener.cancelled.is_set()
    opener.may.set()
    assert waited(lambda: opener.opened is not None and opener.opened.closed == 1)


@driven
async def test_the_log_can_be_looked_at_and_what_was_opened_meanwhile_waits() -> None:
    opener, logs = Opener(), LogBuffer()
    logs.handle(logging.makeLogRecord({"name": "icarus_local.x", "levelno": logging.WARNING, "msg": "a reason"}))
    async with alone(opener.screen(logs)) as s:
        await s.press("l")
        await s.shows("WARNING icarus_local.x: a reason")
        opener.may.set()
        assert waited(lambda: opener.opened is not None)
        await s.pilot.pause(0.2)  # several times as long as it takes to see it
        assert s.results == []
        await s.press("escape")
        await s.until(lambda: s.results)
    assert s.results == [opener.opened]


@given(st.floats(-100, 100), st.integers(1, 200))
def test_a_bar_has_its_length_whatever_is_told(fraction: float, cells: int) -> None:
    assert len(bar(fraction, cells)) == cells + 5
