"""Keys are answered while answers stream, in long conversations, and in terminals of every size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import pytest

from icarus_local.chat.events import AnswerStarted, TextDelta
from icarus_tui.reader import Reader
from tests.tui.fake import FakeChat, FakeReply, done, flood
from tests.tui.screen import Screen, on_screen, screen

KEY_S = 0.1  # what a key may take, in the median; a busy machine may be slow once


async def key_times(s: Screen, keys: int) -> list[float]:
    times = []
    for _ in range(keys):
        before = s.prompt.text
        s.key("x")
        times.append(await s.until(lambda before=before: s.prompt.text != before))  # type: ignore[misc]
        await asyncio.sleep(0.02)
    return sorted(times)


@on_screen
async def test_keys_are_answered_while_2000_deltas_stream() -> None:
    async with screen(FakeChat(flood("coder", 2_000, 0.001))) as s:
        await s.send("go")
        times = await key_times(s, 40)
        assert times[20] < KEY_S
        assert s.prompt.text == "x" * 40
        assert "coder is answering" in s.activity
        await s.idle()
        assert " ".join(f"word{n}" for n in range(2_000)) in s.text
        assert s.transcript.scroll_offset.y == s.transcript.max_scroll_y


@on_screen
async def test_deltas_faster_than_the_screen_are_all_shown() -> None:
    async with screen(FakeChat(flood("coder", 20_000))) as s:
        start = time.monotonic()
        await s.ask("go")
        assert time.monotonic() - start < 10
        assert " ".join(f"word{n}" for n in range(20_000)) in s.text


@on_screen
async def test_200_turns_slow_neither_keys_nor_the_stream() -> None:
    code = "Here:\n```python\ndef f(x):\n    return x + 1\n```\n" * 2

    def script(text: str, names: Sequence[str]) -> Iterator[object]:
        if text == "go":
            yield from flood("coder", 400, 0.005)(text, names)
            return
        for name in names:
            yield AnswerStarted(name)
            yield TextDelta(name, code)
            yield done(name, code)

    async with screen(FakeChat(script)) as s:
        for n in range(200):
            assert s.view.submit(f"question {n}") == "sent"
        # Not at the screen's pace: what is measured comes after it.
        await s.until(lambda: s.view.drain() or (len(s.chat.asked) == 200 and not s.activity), within=40)  # type: ignore[func-returns-value]
        await s.send("go")
        times = await key_times(s, 30)
        assert times[15] < KEY_S
        await s.idle()


@pytest.mark.parametrize("size", [(1, 1), (20, 4), (40, 10), (300, 100)], ids=str)
@on_screen
async def test_terminals_of_every_size(size: tuple[int, int]) -> None:
    async with screen(FakeChat(notices=["a notice " * 10]), size=size) as s:
        await s.ask("a question that is longer than a small terminal is wide")
        assert len(s.rows()) == size[1]
        words = ["Ask"] if size[1] >= 4 else []
        words += ["coder", "113/4096", "Send", "tok/s]"] if size[0] >= 40 else []
        await s.until(lambda: all(any(word in row for row in s.rows()) for word in words))


@on_screen
async def test_resizing_while_an_answer_streams() -> None:
    async with screen(FakeChat(flood("coder", 2_000, 0.001))) as s:
        await s.send("go")
        for n in range(30):
            await s.pilot.resize_terminal(40 + 5 * (n % 7), 10 + n % 5)
            await asyncio.sleep(0.01)
        await s.pilot.resize_terminal(100, 30)
        await s.idle()
        await s.until(lambda: s.transcript.virtual_size.width > 90)
        assert s.transcript.scroll_offset.y == s.transcript.max_scroll_y
        assert " ".join(f"word{n}" for n in range(2_000)) in s.text
        assert any("tok/s]" in row for row in s.rows())


@on_screen
async def test_nothing_is_done_while_nothing_happens() -> None:
    async with screen(FakeChat()) as s:
        await s.ask("hello")
        await asyncio.sleep(0.3)
        drained = []
        s.view.agenda._reader.take = lambda: drained.append(1) or []  # type: ignore[method-assign, func-returns-value]
        await asyncio.sleep(0.3)
        assert drained == []


def test_the_reader_joins_text_and_keeps_everything_else_apart() -> None:
    events: list[object] = [
        *(AnswerStarted("a"), TextDelta("a", "1"), TextDelta("a", "2"), done("a", "12")),
        *(AnswerStarted("b"), TextDelta("b", "3"), ValueError("x")),
    ]
    reader = Reader()
    reader.follow(FakeReply(events, None))  # type: ignore[arg-type]
    reader.follow(FakeReply([TextDelta("c", "4")], None))  # type: ignore[arg-type]
    reader.close()
    reader._thread.join(5)
    joined = reader.take()
    assert [repr(outcome) for outcome in joined] == [
        repr(outcome)
        for outcome in [
            *(AnswerStarted("a"), TextDelta("a", "12"), done("a", "12")),
            *(AnswerStarted("b"), TextDelta("b", "3"), ValueError("x"), None),
            *(TextDelta("c", "4"), None),
        ]
    ]
    assert reader.take() == []
