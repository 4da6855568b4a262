"""What the program asks, and what a line, Esc or a question typed ahead is taken for then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from icarus_local.chat.events import AnswerStarted
from icarus_local.chat.requests import AddFile, Ask, Weigh
from tests.tui.fake import HOLD, FakeChat, holding
from tests.tui.screen import Screen, on_screen, screen

CODE = "Here:\n```python\nx = 1\n```\n"
script = holding(CODE)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text(f"the text of {name}\n")
    return tmp_path


def requests(s: Screen) -> list[str]:
    """What was asked of the chat, in order."""
    short = []
    for request in s.chat.requests:
        if isinstance(request, Ask):
            short.append(request.text)
        elif isinstance(request, Weigh | AddFile):
            short.append(f"{type(request).__name__} {request.file.name}")
    return short


async def asked(s: Screen, what: str) -> None:
    await s.until(lambda: s.activity.startswith(what))


@on_screen
async def test_the_screen_says_what_would_be_an_answer() -> None:
    async with screen(FakeChat(script)) as s:
        assert s.placeholder == "Ask all, or @name one. /help"
        await s.send("/add a.txt")
        await asked(s, "Add a.txt? y or n")
        assert s.activity == "Add a.txt? y or n"
        assert s.placeholder == "y adds a.txt, anything else leaves it"
        assert "a.txt: 0.0 KiB, 4 tokens; 4000 are free\nAdd a.txt?" in s.text
        await s.until(
            lambda: s.footer == {"Send", "Browse", "Find", "Sessions", "Agents", "Quit", "palette", "Leave it"}
        )
        s.key("y", "enter")
        await s.idle()
        assert s.placeholder == "Ask all, or @name one. /help"
        assert "Add a.txt?" not in s.text
        await s.until(lambda: s.footer == {"Send", "Browse", "Find", "Sessions", "Agents", "Quit", "palette"})


@pytest.mark.parametrize("answer", ["y", "yes", " Y "])
@on_screen
async def test_yes_does_it_and_is_not_recalled(answer: str) -> None:
    async with screen(FakeChat(script)) as s:
        await s.send("/add a.txt")
        await asked(s, "Add a.txt?")
        await s.send(answer)
        await s.idle()
        assert requests(s) == ["Weigh a.txt", "AddFile a.txt"]
        assert isinstance(added := s.chat.requests[-1], AddFile)
        assert added.file.text == "the text of a.txt\n"
        assert "you\n/add a.txt\na.txt: 0.0 KiB, 4 tokens; 4000 are free\na.txt is part of the conversation" in s.text
        s.key("up")
        await s.until(lambda: s.prompt.text == "/add a.txt")


@pytest.mark.parametrize("keys", [["n", "enter"], [*"No", "enter"], ["enter"], ["escape"]], ids=str)
@on_screen
async def test_no_leaves_it(keys: list[str]) -> None:
    async with screen(FakeChat(script)) as s:
        await s.send("/add a.txt")
        await asked(s, "Add a.txt?")
        s.key(*keys)
        await s.idle()
        assert requests(s) == ["Weigh a.txt"]
        assert s.text.endswith("4000 are free\na.txt is left out")
        assert s.prompt.text == ""
        s.key("up")
        await s.until(lambda: s.prompt.text == "/add a.txt")


@on_screen
async def test_a_line_that_says_neither_leaves_it_and_is_not_lost() -> None:
    async with screen(FakeChat(script)) as s:
        await s.send("/add a.txt")
        await asked(s, "Add a.txt?")
        s.key(*"yellow?", "left", "enter")
        await s.until(lambda: "a.txt is left out" in s.text)
        assert s.prompt.text == "yellow?"
        assert s.activity == "Left as it is; Enter sends the line"
        assert s.prompt.cursor_location == (0, 6)
        await s.ask("")
        assert requests(s) == ["Weigh a.txt", "yellow?"]


@on_screen
async def test_escape_leaves_what_is_asked_and_stops_no_answer() -> None:
    async with screen(FakeChat(script)) as s:
        await s.ask("code")
        await s.send("hold")
        await s.until(lambda: "a first part" in s.text)
        await s.send("/save-code x.py")
        await asked(s, "Write 1 line of python to x.py? y or n; coder is answering")
        await s.until(lambda: "Leave it" in s.footer)
        s.key("escape")
        await s.until(lambda: s.activity == "coder is answering")
        assert "/save-code x.py\nnothing is written" in s.text
        assert not s.chat.replies[-1].cancelled
        assert not os.path.exists("x.py")
        await s.until(lambda: "Stop" in s.footer)
        s.key("escape")
        await s.idle()
        assert "coder stopped\na first part" in s.text


@on_screen
async def test_files_are_weighed_and_asked_about_one_after_the_other() -> None:
    async with screen(FakeChat(script)) as s:
        await s.send("/add c.txt [ab].txt")
        await asked(s, "Add c.txt?")
        assert s.placeholder == "y adds c.txt, anything else leaves it, Esc leaves the other 2 too"
        assert requests(s) == ["Weigh c.txt"]
        s.key("y", "enter")
        await asked(s, "Add a.txt?")
        assert s.placeholder.endswith("Esc leaves the other one too")
        s.key("n", "enter")
        await asked(s, "Add b.txt?")
        assert s.placeholder == "y adds b.txt, anything else leaves it"
        s.key("y", "enter")
        await s.idle()
        assert requests(s) == ["Weigh c.txt", "AddFile c.txt", "Weigh a.txt", "Weigh b.txt", "AddFile b.txt"]
        told = ["c.txt is part of", "a.txt: 0.0 KiB", "a.txt is left out", "b.txt: 0.0 KiB", "b.txt is part of"]
        assert sorted(told, key=s.text.index) == told
        assert s.text.count("you\n") == 1


@on_screen
async def test_escape_leaves_the_files_behind_it_too() -> None:
    async with screen(FakeChat(script)) as s:
        await s.send("/add *.txt")
        await asked(s, "Add a.txt?")
        s.key("y", "enter")
        await asked(s, "Add b.txt?")
        s.key("escape")
        await s.idle()
        assert requests(s) == ["Weigh a.txt", "AddFile a.txt", "Weigh b.txt"]
        assert "b.txt and 1 more are left out" in s.text


@on_screen
async def test_a_question_typed_behind_a_file_waits_until_that_is_decided() -> None:
    async with screen(FakeChat(script)) as s:
        await s.send("hold")
        await s.until(lambda: "a first part" in s.text)
        await s.send("/add a.txt b.txt")
        await s.send("What is in them?")
        assert s.activity == "coder is answering, 2 queued"
        assert "you (queued)\n/add a.txt b.txt" in s.text
        s.key("escape")
        await asked(s, "Add a.txt? y or n, 1 queued")
        assert "you\n/add a.txt b.txt" in s.text
        assert "you (queued)\nWhat is in them?" in s.text
        s.key("y", "enter")
        await asked(s, "Add b.txt? y or n, 1 queued")
        s.key("y", "enter")
        await s.idle()
        assert requests(s)[1:] == ["Weigh a.txt", "AddFile a.txt", "Weigh b.txt", "AddFile b.txt", "What is in them?"]
        assert "coder heard: What is in them?" in s.text


@on_screen
async def test_a_line_begun_before_the_question_is_no_answer_to_it() -> None:
    async with screen(FakeChat(script)) as s:
        await s.send("hold")
        await s.until(lambda: "a first part" in s.text)
        await s.send("/add a.txt")
        s.type("What is")
        s.key("escape")
        await asked(s, "Add a.txt?")
        assert s.prompt.text == "What is"
        await s.send(" it?")
        await asked(s, "Add a.txt? y or n, 1 queued")
        await s.send("y")
        await s.idle()
        assert requests(s) == ["hold", "Weigh a.txt", "AddFile a.txt", "What is it?"]


@on_screen
async def test_yes_is_an_answer_even_where_it_was_begun_before() -> None:
    async with screen(FakeChat(script)) as s:
        s.key(*"/add a.txt", "enter", "y")
        await asked(s, "Add a.txt?")
        s.key("enter")
        await s.idle()
        assert requests(s) == ["Weigh a.txt", "AddFile a.txt"]


@on_screen
async def test_two_questions_are_asked_in_the_order_in_which_they_came() -> None:
    async with screen(FakeChat(script)) as s:
        await s.ask("code")
        await s.send("/add a.txt")
        await asked(s, "Add a.txt?")
        s.view._do("/save-code x.py")
        assert s.activity == "Add a.txt? y or n"
        await s.send("y")
        await asked(s, "Write 1 line of python to x.py?")
        await s.send("y")
        await s.idle()
        assert requests(s) == ["code", "Weigh a.txt", "AddFile a.txt"]
        assert Path("x.py").read_text() == "x = 1\n"


@on_screen
async def test_nothing_is_put_into_the_input_while_something_is_asked() -> None:
    async with screen(FakeChat(lambda text, names: [AnswerStarted("coder"), HOLD])) as s:
        s.view.presenter.answers.append(CODE)
        await s.send("no word")
        await s.until(lambda: s.activity == "coder is reading")
        await s.send("/save-code x.py")
        await asked(s, "Write 1 line")
        s.chat.replies[-1].cancel()
        await s.until(lambda: "taken back, Up brings it back" in s.text)
        assert s.prompt.text == ""
        await s.send("y")
        await s.idle()
        assert os.path.exists("x.py")


@on_screen
async def test_the_question_is_asked_on_a_low_screen_too() -> None:
    async with screen(FakeChat(script), size=(60, 5)) as s:
        await s.send("/add a.txt")
        await asked(s, "Add a.txt?")
        await s.until(lambda: any("y adds a.txt, anything else leaves it" in row for row in s.rows()))


@pytest.mark.parametrize("name", ["[bold]x[∕INST]", "\x1b[2J", "a\nb", "[@click=app.quit]x[∕]"])
@on_screen
async def test_names_of_files_are_shown_as_they_are(name: str) -> None:
    folder = Path("f")
    folder.mkdir()
    (folder / name).write_text("text")
    shown = "f/" + name.replace("\x1b", "�").replace("\n", "�")
    async with screen(FakeChat(script)) as s:
        await s.send("/add f/*")
        await asked(s, f"Add {shown}?")
        await s.until(lambda: any(f"y adds {shown}" in row for row in s.rows()))
        await s.send("y")
        await s.idle()
        assert f"{shown} is part of the conversation" in s.text
