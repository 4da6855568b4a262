"""The input: what it offers while one types, what waits in the queue, and files that a question names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from icarus_local.chat.events import AnswerStarted, TextDelta
from icarus_local.chat.requests import AddFile, Ask, Weigh
from icarus_tui.choices import Choices
from tests.tui.fake import HOLD, FakeChat, echo
from tests.tui.screen import Screen, on_screen, screen


def listed(s: Screen) -> list[str]:
    choices = s.view.query_one(Choices)
    return str(choices.visual).split("\n") if choices.display else []


def holding(text: str, names: Sequence[str]) -> Iterator[object]:
    if text != "hold":
        yield from echo(text, names)
        return
    yield from (AnswerStarted("coder"), TextDelta("coder", "a first part"), HOLD)


@on_screen
async def test_choices_are_shown_and_taken() -> None:
    async with screen(FakeChat()) as s:
        s.type("/ke")
        await s.until(
            lambda: len(listed(s)) == 1 and listed(s)[0].startswith("› /keep AGENT  of answers given at once")
        )
        s.key("tab")
        await s.until(lambda: s.prompt.text == "/keep ")
        await s.until(lambda: listed(s) == ["› coder", "  reviewer"])
        s.key("down")
        await s.until(lambda: listed(s) == ["  coder", "› reviewer"])
        s.key("tab")
        await s.until(lambda: s.prompt.text == "/keep reviewer")
        await s.until(lambda: not listed(s))


@on_screen
async def test_keys_faster_than_the_list_are_completed_too() -> None:
    async with screen(FakeChat()) as s:
        s.key(*"/hel", "tab", "enter")
        await s.until(lambda: "/quit: end the chat" in s.text)
        s.key(*"@rev", "tab", *"hi", "enter")
        await s.until(lambda: s.chat.asked == [("hi", ("reviewer",))])


@on_screen
async def test_escape_closes_the_list_and_not_more() -> None:
    async with screen(FakeChat(holding)) as s:
        await s.send("hold")
        await s.until(lambda: "a first part" in s.text)
        s.type("/ke")
        await s.until(lambda: listed(s))
        s.key("escape")
        await s.until(lambda: not listed(s))
        assert s.prompt.text == "/ke"
        assert "is answering" in s.activity
        s.key("escape")
        await s.until(lambda: "coder stopped" in s.text)


@on_screen
async def test_what_is_recalled_is_not_completed() -> None:
    async with screen(FakeChat()) as s:
        await s.send("/help")
        s.key("up")
        await s.until(lambda: s.prompt.text == "/help")
        await s.pilot.pause()
        assert not listed(s)


@on_screen
async def test_the_list_leaves_room_on_a_small_terminal() -> None:
    async with screen(FakeChat(), size=(40, 10)) as s:
        s.type("/")
        await s.until(lambda: listed(s))
        assert len(listed(s)) == 2
        for _ in range(5):
            s.key("down")
        await s.until(lambda: any(line.startswith("› /agents") for line in listed(s)))
        assert s.transcript.size.height >= 2


# -- the queue ---------------------------------------------------------------------------------------------------------


@on_screen
async def test_up_takes_back_what_was_queued_last_to_be_changed() -> None:
    async with screen(FakeChat(holding)) as s:
        await s.send("hold")
        await s.until(lambda: "a first part" in s.text)
        await s.send("second")
        await s.send("third")
        await s.until(lambda: "2 queued" in s.activity)
        s.key("up")
        await s.until(lambda: s.prompt.text == "third")
        assert "third" not in s.text
        assert "1 queued" in s.activity
        s.type("!")
        await s.send("")
        await s.until(lambda: "you (queued)\nthird!" in s.text)
        s.key("escape")
        await s.idle()
        assert [text for text, _ in s.chat.asked] == ["hold", "second", "third!"]


@on_screen
async def test_what_is_under_way_is_not_taken_out_of_the_queue() -> None:
    async with screen(FakeChat(holding)) as s:
        await s.ask("first")
        await s.send("hold")
        await s.until(lambda: "a first part" in s.text)
        s.key("up")
        # What was sent before comes, as there is nothing in the queue.
        await s.until(lambda: s.prompt.text == "hold")
        assert "is answering" in s.activity
        s.key("f7", "delete", "escape")
        await s.idle()


# -- files by @ --------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@on_screen
async def test_a_file_that_a_question_names_is_added_before_it(here: Path) -> None:
    (here / "notes.md").write_text("remember the milk")
    (here / "my file.txt").write_text("more")
    async with screen(FakeChat()) as s:
        await s.ask('@coder what is in @notes.md, and "@my file.txt" or @"my file.txt"? Mail me@home or @nobody')
        kinds = [type(request) for request in s.chat.requests]
        assert kinds == [Weigh, AddFile, Weigh, AddFile, Ask]
        files = [request.file.name for request in s.chat.requests if isinstance(request, AddFile)]
        assert [Path(name).name for name in files] == ["notes.md", "my file.txt"]
        assert s.chat.asked[0][1] == ("coder",)
        assert "is part of the conversation" in s.text


@on_screen
async def test_stopped_before_anybody_answers_the_question_comes_back_and_the_file_stays(here: Path) -> None:
    (here / "a.txt").write_text("text")
    async with screen(FakeChat(lambda text, names: [AnswerStarted("coder"), HOLD])) as s:
        await s.send("what is @a.txt")
        await s.until(lambda: s.activity == "coder is reading")
        s.key("escape")
        await s.until(lambda: s.prompt.text == "what is @a.txt")
        assert "you (taken back)\nwhat is @a.txt" in s.text
        assert "is part of the conversation" in s.text
        assert "the question was taken back, it is in the input again" in s.text


@on_screen
async def test_a_file_that_cannot_be_read_is_said_and_nothing_is_asked(here: Path) -> None:
    (here / "binary.bin").write_bytes(b"\0\1\2")
    async with screen(FakeChat()) as s:
        await s.send("what is @binary.bin")
        await s.until(lambda: s.prompt.text == "what is @binary.bin")
        assert "binary.bin" in s.text
        assert s.chat.asked == []
