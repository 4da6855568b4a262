"""Every screen as a terminal shows it, at three sizes; `pytest --snapshot-update` writes them anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from icarus_local.chat.events import AnswerStarted, CacheUsed, ContextCut, Said, TextDelta
from icarus_local.chat.store import SavedTurn, Store
from icarus_local.errors import ModelFileError
from icarus_tui.app import IcarusApp
from icarus_tui.chat_screen import ChatScreen
from icarus_tui.logs import LogBuffer
from tests.tui.fake import HOLD, FakeChat, FakeHost, done
from tests.tui.screen import Screen, screen

SIZES = [(40, 10), (80, 24), (160, 48)]

MARKDOWN = """\
# Vowels

Count them with **one** pass, `O(n)`; see [the docs](https://example.org/x):

1. lower the text
2. keep what is in *aeiou*
   - accents are another matter

> Simple is better than complex.

```python
def count_vowels(text: str) -> int:
    return sum(1 for char in text.lower() if char in "aeiou")
```

| text | vowels |
|:-----|-------:|
| abc  | 1      |
| 日本語 | 0      |
"""


class Rows(SingleFileSnapshotExtension):
    """A file of plain rows for each screen."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"


@pytest.fixture
def rows(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(Rows)


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def size(request: pytest.FixtureRequest) -> tuple[int, int]:
    width, height = request.param
    return width, height


def says(text: str, agent: str = "coder") -> Iterator[object]:
    yield from (AnswerStarted(agent), TextDelta(agent, text), done(agent, text))


def script(text: str, names: Sequence[str]) -> Iterator[object]:
    if text == "markdown":
        yield from says(MARKDOWN)
    elif text == "cut":
        yield ContextCut(4, 900, ("big.py",), 300)
        yield from says("Yes.")
        yield CacheUsed(3_700, 80 << 20, 2, 160 << 20)
    elif text == "think":
        yield from (AnswerStarted("coder"), TextDelta("coder", "First, what is\nasked?", thought=True))
        yield from (TextDelta("coder", "It is done."), done("coder", "It is done."))
    else:
        yield from (AnswerStarted(name) for name in names)
        for name in names:
            yield TextDelta(name, f"**{name}** says:\n\n- {text}\n- and that is all there is to say about it\n")
        yield from (done(name, "x") for name in names)


def shown(app: IcarusApp) -> str:
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips()) + "\n"


def taken(size: tuple[int, int], do: Callable[[Screen], Awaitable[None]], host: FakeHost | None = None) -> str:
    """What stands on the screen after something was done."""

    async def run() -> str:
        async with screen(host or FakeHost(FakeChat(script)), size=size) as s:
            await do(s)
            await s.pilot.pause()
            return shown(s.app)

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_the_beginning(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    async def do(s: Screen) -> None:
        pass

    assert taken(size, do, FakeHost(FakeChat(notices=["reviewer speaks as the base"]))) == rows


def test_an_answer(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    async def do(s: Screen) -> None:
        await s.ask("@coder markdown")

    assert taken(size, do) == rows


def test_answers_at_once(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    async def do(s: Screen) -> None:
        await s.ask("/all hello")

    assert taken(size, do) == rows


def test_one_of_them_is_kept(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    async def do(s: Screen) -> None:
        await s.ask("/all hello")
        await s.ask("/keep reviewer")

    assert taken(size, do) == rows


def test_browsing_code(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    async def do(s: Screen) -> None:
        await s.ask("@coder markdown")
        s.key("shift+tab")
        await s.until(lambda: s.transcript.has_focus)
        s.key("end")

    assert taken(size, do) == rows


def test_a_thought(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    async def do(s: Screen) -> None:
        await s.ask("think")
        await s.ask("think")
        s.key("ctrl+t")

    assert taken(size, do) == rows


def test_a_cut_of_the_context(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    class Cut(FakeChat):
        def _ask(self, request: object) -> Iterator[object]:
            yield from script("cut", ())

    async def do(s: Screen) -> None:
        await s.ask("hello")

    assert taken(size, do, FakeHost(Cut())) == rows


def test_choices(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    async def do(s: Screen) -> None:
        s.type("/a")
        await s.until(lambda: "/agents" in shown(s.app) or size[1] == 10)

    assert taken(size, do) == rows


def test_finding(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    async def do(s: Screen) -> None:
        await s.ask("@coder markdown")
        s.key("ctrl+f")
        s.type("vowels")
        await s.until(lambda: "of " in shown(s.app))

    assert taken(size, do) == rows


def test_what_is_queued(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    def holding(text: str, names: Sequence[str]) -> Iterator[object]:
        yield from (AnswerStarted("coder"), TextDelta("coder", "Well"), HOLD)

    async def do(s: Screen) -> None:
        await s.send("first")
        await s.until(lambda: "Well" in s.text)
        await s.send("@reviewer second")

    assert taken(size, do, FakeHost(FakeChat(holding))) == rows


def test_a_question_of_the_program(
    rows: SnapshotAssertion, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def do(s: Screen) -> None:
        await s.ask("@coder markdown")
        await s.send("/save-code vowels.py")
        await s.until(lambda: "Leave it" in s.footer or size[0] == 40)

    assert taken(size, do) == rows


def test_a_conversation_that_goes_on(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    before = [
        Said("you", "What is a fox?", answer=False, in_context=False),
        Said("coder", "An *animal*.", answer=True, in_context=False, thought="Hm."),
        Said("you", "notes.md", answer=False, file=True),
        Said("you", "And a cat?", answer=False),
        Said("reviewer", "Another `one`.", answer=True),
    ]

    async def do(s: Screen) -> None:
        pass

    assert taken(size, do, FakeHost(FakeChat(before=before, notices=["42 tokens restored"]))) == rows


def test_help(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    async def do(s: Screen) -> None:
        await s.send("/help")

    assert taken(size, do) == rows


def test_the_palette(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    async def do(s: Screen) -> None:
        s.key("ctrl+p")
        await s.until(lambda: "/add" in shown(s.app))
        await s.pilot.pause(0.2)

    assert taken(size, do) == rows


def test_agents(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    async def do(s: Screen) -> None:
        s.key("f3")
        await s.until(lambda: not isinstance(s.app.screen, ChatScreen))

    assert taken(size, do) == rows


def test_sessions(
    rows: SnapshotAssertion, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_750_000_000.0)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    ids = iter(["c0ffee00", "decade00"])
    monkeypatch.setattr("secrets.token_hex", lambda _n: next(ids))
    store = Store(tmp_path)
    for question in ("What is a fox?", "Count the vowels of a text."):
        id_ = store.create(Path("/models/base.gguf"), "0" * 64, ["coder", "reviewer"])
        store.save(id_, [SavedTurn("user", question, None), SavedTurn("coder", "So it is.", (1, 2))])

    async def do(s: Screen) -> None:
        s.key("f2")
        await s.until(lambda: "fox" in shown(s.app))
        await s.pilot.pause(0.4)

    assert taken(size, do, FakeHost(FakeChat(script), folder=tmp_path)) == rows


def test_the_log(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    async def do(s: Screen) -> None:
        s.key("f4")
        await s.until(lambda: "Log:" in shown(s.app))

    assert taken(size, do) == rows


def begun(host: FakeHost, size: tuple[int, int], until: str) -> str:
    """What stands there before there is a conversation."""

    async def run() -> str:
        app = IcarusApp(host, LogBuffer())
        async with app.run_test(size=size) as pilot:
            start = time.monotonic()
            while until not in shown(app):
                assert time.monotonic() - start < 10, shown(app)
                await asyncio.sleep(0.01)
            await pilot.pause(0.3)
            return shown(app)

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_a_load_error(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    host = FakeHost(FakeChat())
    host.errors = [ModelFileError("tiny.gguf lacks the tensor blk.0.attn_q.weight", "Fetch it again")]
    assert begun(host, size, "lacks the") == rows


def test_the_first_start(rows: SnapshotAssertion, size: tuple[int, int]) -> None:
    assert begun(FakeHost(FakeChat(), base=None), size, "2 bases are here") == rows


@pytest.mark.parametrize(
    "text",
    [
        "Here:\n```py",
        "Here:\n```python\nx = 1",
        "Here:\n```python\nx = 1\n```",
        "Here:\n```python\nx = '''\n``\n",
        "- one\n  ```\n  code\n  ```\n- two\n",
        "````\n```\nnested\n```\n",
        "a **bold",
    ],
    ids=["opening", "open", "closed", "short", "in a list", "nested", "half bold"],
)
def test_fences_as_they_stream(rows: SnapshotAssertion, text: str) -> None:
    def streaming(_text: str, names: Sequence[str]) -> Iterator[object]:
        yield AnswerStarted("coder")
        for character in text:
            yield TextDelta("coder", character)
        yield HOLD

    async def do(s: Screen) -> None:
        await s.send("go")
        await s.until(lambda: list(s.transcript.entries[-1].answers()))
        (answer,) = s.transcript.entries[-1].answers()
        await s.until(lambda: answer.text == text)

    assert taken((60, 16), do, FakeHost(FakeChat(streaming))) == rows
