"""The commands of the screen on their good and bad paths; what they ask is in test_asking.py."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from icarus_local.chat.events import ConversationBegun, RoundsEnded
from icarus_local.chat.files import TextFile
from icarus_local.chat.reply import Said
from icarus_local.chat.requests import AddFile, Ask, BeginAnew, Join, Request, Weigh
from icarus_local.errors import ContextFullError, EngineDiedError, IcarusError, RequestError
from icarus_tui import errands
from tests.tui.fake import HOLD, FakeChat, FakeReply, echo, holding
from tests.tui.screen import Screen, on_screen, screen

CODE = "Two:\n```python\nx = 1\n```\n```sh\nls\n```\n"
script = holding(CODE)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("text")
    return tmp_path


class Failing(FakeChat):
    """Some requests about files end with an error."""

    def __init__(self, errors: dict[str, IcarusError]) -> None:
        super().__init__(script)
        self.errors = errors
        self.serve = self._serve

    def _serve(self, request: Request) -> Iterable[object]:
        if isinstance(request, Weigh | AddFile):
            error = self.errors.get(f"{type(request).__name__} {request.file.name}")
            return [error] if error else self.other(request)
        return self.other(request)


async def asked(s: Screen, what: str) -> None:
    await s.until(lambda: s.activity.startswith(what))


# -- /add --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("/add", "/add wants the path of a file. For example: /add src/*.py"),
        ("/add nothing.txt", "there is no file nothing.txt"),
        ("/add *.py", "*.py matches no file"),
        ("/add 'a.txt", "a quote is not closed"),
        ("/add .", ". is a folder"),
        ("/add a.txt zeros", "the file zeros is binary"),
    ],
)
@on_screen
async def test_what_cannot_be_read_is_said_and_the_line_comes_back(line: str, error: str) -> None:
    Path("zeros").write_bytes(bytes(4))
    async with screen(FakeChat(script)) as s:
        await s.send(line)
        await s.until(lambda: s.prompt.text == line)
        await s.idle()
        assert f"you\n{line}\n\n{error}" in s.text
        assert s.chat.requests == []


@on_screen
async def test_a_wrong_path_or_name_is_said_while_an_answer_streams() -> None:
    async with screen(FakeChat(script)) as s:
        await s.send("hold")
        s.key(*"@nobody x", "enter")
        await s.until(lambda: "there is no agent @nobody here" in s.text)
        assert s.prompt.text == "@nobody x"
        s.key("f7", "delete")
        await s.send("/add nothing.txt")
        await s.until(lambda: "there is no file nothing.txt" in s.text)
        await s.until(lambda: s.prompt.text == "/add nothing.txt")
        s.key("f7", "delete")
        await s.send("/add a.txt")
        assert s.activity == "coder is answering, 1 queued"
        s.key("escape")
        await asked(s, "Add a.txt?")


@on_screen
async def test_what_cannot_be_weighed_is_said_and_what_is_queued_goes_on() -> None:
    async with screen(Failing({"Weigh b.txt": RequestError("no such thing")})) as s:
        await s.send("hold")
        await s.send("/add b.txt")
        await s.send("next")
        s.key("escape")
        await s.until(lambda: "coder heard: next" in s.text)
        await s.idle()
        assert "you\n/add b.txt\n\nno such thing\n" in s.text
        assert s.prompt.text == "/add b.txt"


@on_screen
async def test_where_the_engine_dies_over_a_file_the_files_behind_it_are_not_asked_about() -> None:
    async with screen(Failing({"Weigh b.txt": EngineDiedError("the engine ended")})) as s:
        Path("c.txt").write_text("text")
        await s.send("/add *.txt")
        await asked(s, "Add a.txt?")
        await s.send("y")
        await s.until(lambda: "the engine ended" in s.text)
        await s.idle()
        assert s.prompt.text == ""  # a.txt is not to be added twice
        assert "taken back" not in s.text
        assert len(s.chat.requests) == 3


@on_screen
async def test_a_file_that_is_too_large_does_not_keep_the_next_out() -> None:
    async with screen(Failing({"AddFile a.txt": ContextFullError("a.txt takes 5000 tokens")})) as s:
        await s.send("/add *.txt")
        await asked(s, "Add a.txt?")
        await s.send("y")
        await asked(s, "Add b.txt?")
        await s.send("y")
        await s.idle()
        assert "a.txt takes 5000 tokens" in s.text
        assert "b.txt is part of the conversation" in s.text


@on_screen
async def test_a_long_search_holds_neither_keys_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def search(rest: str) -> list[TextFile]:
        released.wait(30)
        return []

    monkeypatch.setattr(errands, "files_named", search)
    try:
        async with screen(FakeChat(script)) as s:
            await s.send("/add **/*.py")
            await s.send("meanwhile")
            await s.until(lambda: s.activity == "reading files, 1 queued")
            assert all(thread.daemon for thread in threading.enumerate() if thread.name == "icarus-files")
            s.type("abc")
            await s.until(lambda: s.prompt.text == "abc", within=1)
            s.key("f7", "delete", "escape")
            await s.until(lambda: "stopped; nothing more is added" in s.text)
            await s.until(lambda: "coder heard: meanwhile" in s.text)
            await s.send("/add **/*.py")
            start = time.monotonic()
            s.key("ctrl+q")
            await s.until(lambda: not s.app.is_running, within=2)
        assert time.monotonic() - start < 2
    finally:
        released.set()


@on_screen
async def test_a_fault_in_reading_is_a_message_and_the_program_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(rest: str) -> list[TextFile]:
        raise ZeroDivisionError("a [bold] bug")

    monkeypatch.setattr(errands, "files_named", fault)
    async with screen(FakeChat(script)) as s:
        await s.send("/add a.txt")
        await s.until(lambda: s.prompt.text == "/add a.txt")
        assert "ZeroDivisionError: a [bold] bug" in s.text


@on_screen
async def test_stopped_while_it_is_weighed_a_file_is_not_asked_about() -> None:
    class Slow(FakeChat):
        def submit(self, request: Request) -> FakeReply:
            self.serve = lambda request: [HOLD, *self.other(request)]
            return super().submit(request)

    async with screen(Slow(script)) as s:
        await s.send("/add *.txt")
        await s.until(lambda: s.activity == "waiting")
        s.key("escape")
        await s.idle()
        assert "stopped; nothing more is added" in s.text
        assert len(s.chat.requests) == 1


# -- /save-code --------------------------------------------------------------------------------------------------------


@on_screen
async def test_a_block_is_written_after_asking() -> None:
    async with screen(FakeChat(script)) as s:
        await s.ask("code")
        await s.ask("no code")
        await s.send("/save-code 1 one.py")
        await asked(s, "Write 1 line of python to one.py? y or n")
        assert s.placeholder == "y writes it, anything else leaves it"
        assert not os.path.exists("one.py")
        await s.send("y")
        await s.until(lambda: "you\n/save-code 1 one.py\none.py is written" in s.text)
        assert Path("one.py").read_text() == "x = 1\n"
        assert s.prompt.recall.older("") == "/save-code 1 one.py"


@pytest.mark.parametrize("keys", [["n", "enter"], ["escape"]], ids=str)
@on_screen
async def test_a_file_that_is_there_is_replaced_only_after_yes(keys: list[str]) -> None:
    async with screen(FakeChat(script)) as s:
        await s.ask("code")
        await s.send("/save-code 2 a.txt")
        await asked(s, "Write 1 line of sh to a.txt? It exists and would be replaced. y or n")
        assert s.placeholder == "y replaces it, anything else leaves it"
        s.key(*keys)
        await s.until(lambda: "nothing is written" in s.text)
        assert Path("a.txt").read_text() == "text"
        await s.send("/save-code 2 a.txt")
        await asked(s, "Write 1 line of sh to a.txt?")
        await s.send("yes")
        await s.until(lambda: "a.txt is written" in s.text)
        assert Path("a.txt").read_text() == "ls\n"


@on_screen
async def test_a_block_that_there_is_not_is_said_and_the_line_stays() -> None:
    async with screen(FakeChat(script)) as s:
        s.key(*"/save-code", "enter")
        await s.until(lambda: "no answer holds a code block" in s.text)
        assert s.prompt.text == "/save-code"
        s.key("f7", "delete")
        await s.ask("code")
        s.key(*"/save-code 3 x", "enter")
        await s.until(lambda: "the answer holds 2 code blocks: 1: 1 line of python; 2: 1 line of sh" in s.text)
        assert s.prompt.text == "/save-code 3 x"
        assert not s.activity


@pytest.mark.parametrize("target", ["nowhere/x.py", "x" * 400, "a.txt/x.py"], ids=["folder", "long", "file"])
@on_screen
async def test_a_block_that_cannot_be_written_is_said_and_the_line_comes_back(target: str) -> None:
    async with screen(FakeChat(script)) as s:
        await s.ask("code")
        line = f"/save-code 1 {target}"
        await s.send(line)
        await asked(s, "Write 1 line")
        await s.send("y")
        await s.until(lambda: s.prompt.text == line)
        assert f"you\n{line}\n\n" in s.text
        assert sorted(os.listdir()) == ["a.txt", "b.txt"]
        s.key("f7", "delete")
        await s.ask("still there?")


# -- /keep, /rounds, /new ----------------------------------------------------------------------------------------------


@on_screen
async def test_an_answer_is_kept() -> None:
    async with screen(FakeChat(script)) as s:
        await s.ask("/keep @reviewer")
        assert s.chat.requests == [Join("reviewer")]
        assert "you\n/keep @reviewer\nthe conversation goes on with the answer of reviewer" in s.text


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("/keep", "/keep wants the name of an agent. For example: /keep coder"),
        ("/keep nobody", "there is no agent @nobody here. Here are @coder, @reviewer"),
        ("/rounds many", "/rounds wants a number and a question"),
        ("/rounds 0 x", "0 rounds; 1 to 100 are possible"),
        ("/rounds 2 ", "/rounds wants a number and a question"),
        ("/all", "the question is empty"),
        ("/all @nobody x", "there is no agent @nobody here"),
    ],
)
@on_screen
async def test_a_command_that_is_wrong_stays(line: str, error: str) -> None:
    async with screen(FakeChat(script)) as s:
        s.key(*line, "enter")
        await s.until(lambda: error in s.text)
        assert s.prompt.text == line
        assert s.chat.requests == []


@on_screen
async def test_a_command_that_the_session_refuses_comes_back() -> None:
    chat = FakeChat(script)
    chat.serve = lambda request: [RequestError("coder has given no answer to choose")]
    async with screen(chat) as s:
        await s.send("/keep coder")
        await s.until(lambda: s.prompt.text == "/keep coder")
        assert "you\n/keep coder\n\ncoder has given no answer to choose" in s.text


@on_screen
async def test_rounds_end_where_one_accepts() -> None:
    def rounds(text: str, names: Sequence[str]) -> Iterator[object]:
        yield from echo(text, names)
        yield RoundsEnded("reviewer", 1, 3)

    async with screen(FakeChat(rounds)) as s:
        await s.ask("/rounds 3 @coder @reviewer Write it")
        assert s.chat.requests == [Ask("Write it", ("coder", "reviewer"), 3)]
        assert "you /rounds 3 @coder @reviewer\nWrite it\n" in s.text
        assert s.text.endswith("tok/s]\nreviewer accepts in round 1 of 3")


@on_screen
async def test_a_new_conversation_shows_a_break_and_begins_with_an_empty_cache() -> None:
    async with screen(FakeChat(script)) as s:
        await s.ask("code")
        assert "113/4096 tokens · 2.0 MiB" in s.meter
        await s.send("hold")
        await s.send("/new")
        await s.send("after it")
        assert "you (queued)\n/new" in s.text
        s.key("escape")
        await s.idle()
        assert [type(request) for request in s.chat.requests] == [Ask, Ask, BeginAnew, Ask]
        order = ["x = 1", "a first part", "you\n/new\na new conversation", "coder heard: after it"]
        assert sorted(order, key=s.text.index) == order
        lines = [line for entry in s.transcript.entries for block in entry.blocks() for line in block.lines]
        assert [line.text for line in lines if line.form.look == "break"] == ["a new conversation"]
        await s.ask("/new")
        assert s.meter.endswith(" 10/4096 tokens · 0.2 MiB; 2 separate caches: 0.5 MiB")
        # What was answered before can still be saved.
        await s.send("/save-code 1 one.py")
        await asked(s, "Write 1 line of python to one.py?")
        await s.send("y")
        await s.until(lambda: os.path.exists("one.py"))


@on_screen
async def test_what_could_not_be_saved_of_the_old_conversation_is_told() -> None:
    chat = FakeChat(script)
    chat.serve = lambda request: [ConversationBegun("", "the disk is [full]")]
    async with screen(chat) as s:
        await s.ask("/new")
        assert s.text.endswith("a new conversation. the disk is [full]")


@on_screen
async def test_what_was_said_before_is_shown_and_its_code_can_be_saved(folder: Path) -> None:
    before = [
        Said("you", "Write it.", answer=False),
        Said("coder", "Old.\n```python\nold = 1\n```", answer=True, in_context=False),
        Said("coder", "New.\n```python\nnew = 2\n```", answer=True),
        Said("you", "```python\nmine\n```", answer=False),
    ]
    async with screen(FakeChat(before=before)) as s:
        assert "you\nWrite it.\n" in s.text
        assert "coder (no longer in the context)\nOld.\npython\nold = 1\n" in s.text
        s.key(*"/save-code new.py", "enter")
        await s.until(lambda: "Write 1 line of python to new.py?" in s.text)
        s.key("y", "enter")
        await s.until((folder / "new.py").exists)
        assert (folder / "new.py").read_text() == "new = 2\n"
