"""Text of models, people and errors that other programs broke on."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from icarus_local.chat.events import AnswerStarted, TextDelta
from icarus_local.chat.requests import Ask, Request
from icarus_local.errors import RequestError
from icarus_tui.looks import literal, neutral
from tests.tui.fake import FakeChat, FakeReply, done
from tests.tui.screen import Screen, on_screen, screen
from tests.tui.view import view

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


PLAIN = [text for text in HOSTILE if not set(text) & set("`*~#\\") and not text.startswith("\n")]


@on_screen
async def test_answers_without_markdown_are_shown_character_by_character() -> None:
    async with view() as s:
        for text in PLAIN:
            s.answered("q", f"{text}\n!")
            assert f"\ncoder\n{shown(text)}\n!\n" in s.text


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (200, 60)], ids=str)
@on_screen
async def test_answers_questions_and_errors_are_shown_as_they_are(size: tuple[int, int]) -> None:
    async with screen(FakeChat(sayer, notices=HOSTILE), size=size) as s:
        for text in HOSTILE:
            assert s.view.submit(f"{text}\n!") == "sent"
            await s.idle()
            assert harmless(s)
            assert f"you\n{shown(text)}\n!\n" in s.text
            said = iter(s.text.rpartition("\ncoder\n")[2])
            assert [character for character in shown(text) if character.isalnum() and character not in said] == []


@on_screen
async def test_errors_are_shown_as_they_are() -> None:
    class Refusing(FakeChat):
        def submit(self, request: Request) -> FakeReply:
            assert isinstance(request, Ask)
            raise RequestError(request.text)

    async with screen(Refusing()) as s:
        for text in HOSTILE:
            assert s.view.submit(f"{text}!") == "sent"
            await s.pilot.pause()
            assert harmless(s)
            assert f"you (taken back)\n{shown(text)}!\n\n{shown(text)}!" in s.text


@on_screen
async def test_hostile_names_cannot_be_addressed() -> None:
    async with screen(FakeChat()) as s:
        s.key(*"@[bold] x", "enter", *"@nobody[/] x", "enter")
        await s.until(lambda: len(s.chat.asked) == 2)
        await s.idle()


@settings(max_examples=20, deadline=None)
@given(st.text(st.sampled_from("`~*#>|-1. \n\tabc[]()\\$python{}'\"\x1b\x9b\r日\u200d👩"), max_size=120))
@example("```nosuchlanguage\nx\n```")
@example("```../../x\ny\n```")
@example("```python\n'\x0c'\n\u2028\n```")
def test_no_markdown_steers_the_terminal_or_stops_the_screen(text: str) -> None:
    async def run() -> None:
        async with view((30, 30)) as s:
            exchange, name = s.exchange(text), text.replace("\n", " ")
            exchange.begin_answer(name, 0)
            for thought in (True, False):
                exchange.append(TextDelta(name, text, thought))
            exchange.end_answer(done(name, text))
            s.transcript.toggle_thoughts()
            await s.pilot.pause()
            assert all(unicodedata.category(c) not in ("Cc", "Cs") for row in s.rows() for c in row)

    asyncio.run(run())


@given(st.text(st.characters(codec=None), max_size=40))
def test_neutral_text_keeps_every_other_character(text: str) -> None:
    shown = neutral(text)
    assert len(shown) == len(text)
    assert all(here in (there, "\ufffd") for here, there in zip(shown, text, strict=True))
    assert all(unicodedata.category(c) not in ("Cc", "Cs") or c in "\n\t" for c in shown)


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
            assert {"coder", "reviewer"} <= set(s.rows()[0].split())

    asyncio.run(run())
