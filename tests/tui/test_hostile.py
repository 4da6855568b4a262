"""Text of models, people and errors that other programs broke on."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.content import Content

from icarus_local.chat.events import AnswerStarted, TextDelta
from icarus_local.chat.requests import Ask, Request
from icarus_local.errors import RequestError
from icarus_tui.block import Block
from icarus_tui.looks import answer, literal
from tests.tui.fake import FakeChat, FakeReply, done
from tests.tui.screen import Screen, on_screen, screen

HOSTILE = [
    *("[/INST]", "[/]", "[bold", "[bold]x[/bold]", "[@click=app.quit]x[/]", "\\[x]", "$text-error", "[link=a:///]x"),
    *("\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x1b]52;c;aGk=\x07", "\x9b31m", "\x1bPq\x1b\\"),
    *("a\rb", "a\x08b", "\x00", "\x7f", "a\tb\t\tc", "\n\n\n", "x" * 500),
    *("日本語の文字", "👩\u200d👩\u200d👧 family", "e\u0301" * 30, "\u202eabc", "a\u2028b\u2029c", "\ud800", "\ufeff"),
    *("```", "```python", "```python\n[/INST]\n```\n```", "~~~\n```\n~~~~", "`" * 40, "**" * 30, "# "),
    *("```nosuchlanguage\nx\n```", "```python\n'\x0c'\n\u2028\n```"),
]


def sayer(text: str, names: Sequence[str]) -> Iterator[object]:
    yield AnswerStarted("coder")
    for character in text:
        yield TextDelta("coder", character)
    yield done("coder", text)


def shown(text: str) -> str:
    return literal(text).plain


def harmless(s: Screen) -> bool:
    return not any(unicodedata.category(c) in ("Cc", "Cs") for row in s.rows() for c in row)


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (200, 60)], ids=str)
@on_screen
async def test_answers_questions_and_errors_are_shown_as_they_are(size: tuple[int, int]) -> None:
    async with screen(FakeChat(sayer, notices=HOSTILE), size=size) as s:
        for text in HOSTILE:
            assert s.app._submit(f"{text}\n!") == "sent"
            await s.idle()
            assert harmless(s)
            assert f"you\n{shown(text)}\n!\n" in s.text
            assert f"coder\n{shown(text)}\n!\n" in s.text


@on_screen
async def test_errors_are_shown_as_they_are() -> None:
    class Refusing(FakeChat):
        def submit(self, request: Request) -> FakeReply:
            assert isinstance(request, Ask)
            raise RequestError(request.text)

    async with screen(Refusing()) as s:
        for text in HOSTILE:
            assert s.app._submit(f"{text}!") == "sent"
            await s.pilot.pause()
            assert harmless(s)
            assert f"you (taken back)\n{shown(text)}!\n\n{shown(text)}!" in s.text


@on_screen
async def test_hostile_names_cannot_be_addressed() -> None:
    async with screen(FakeChat()) as s:
        s.key(*"@[bold] x", "enter", *"@nobody[/] x", "enter")
        await s.until(lambda: len(s.chat.asked) == 2)
        await s.idle()


@pytest.mark.parametrize("text", HOSTILE)
def test_colouring_moves_no_character(text: str) -> None:
    assert answer(text).plain == shown(text)


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("`~*# \n\tabc[]\\$python{}'\"\x1b日"), max_size=120))
def test_colouring_moves_no_character_of_anything(text: str) -> None:
    coloured = answer(text)
    assert coloured.plain == shown(text)
    assert all(0 <= span.start <= span.end <= len(coloured.plain) for span in coloured.spans)


def test_code_in_a_fence_is_coloured_and_prose_is_not() -> None:
    coloured = answer("say **it**\n```python\nreturn 1\n```\nand `that`")
    styles = {coloured.plain[span.start : span.end]: span.style for span in coloured.spans}
    assert "return" in styles
    assert styles["**it**"] == "bold"
    assert "`that`" in styles
    assert "say " not in styles
    assert not answer("x" * 30_000 + "**a**").spans


@settings(max_examples=100, deadline=None)
@given(
    pieces=st.lists(st.text(st.sampled_from("ab \n\t日🙂́"), max_size=12), max_size=20),
    width=st.integers(1, 20),
    seed=st.randoms(use_true_random=False),
)
def test_a_streamed_block_wraps_as_a_whole_one(pieces: list[str], width: int, seed: object) -> None:
    def wrap(line: Content, look: str) -> list[object]:
        return [line.plain[n : n + width] for n in range(0, max(1, len(line.plain)), width)]

    streamed, whole = Block(Content("")), Block(literal("".join(pieces)))
    for piece in pieces:
        streamed.append(piece)
        if seed.random() < 0.5:  # type: ignore[attr-defined]
            streamed.wrap(wrap)  # type: ignore[arg-type]
    for block in (streamed, whole):
        block.wrap(wrap)  # type: ignore[arg-type]
    assert streamed.rows == whole.rows
    assert [line.plain for line in streamed.lines] == [line.plain for line in whole.lines]


def test_no_color_leaves_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def run() -> None:
        async with screen(FakeChat()) as s:
            await s.ask("hello")
            assert s.app.no_color
            styles = [segment.style for strip in s.app.screen._compositor.render_strips() for segment in strip]
            colours = [colour.triplet for style in styles if style for colour in (style.color, style.bgcolor) if colour]
            assert colours
            assert all(colour is None or max(colour) - min(colour) <= 2 for colour in colours)
            assert "coder reviewer" in s.rows()[0]

    asyncio.run(run())
