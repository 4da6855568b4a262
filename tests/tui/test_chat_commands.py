"""Commands that change the conversation, who takes part, or how it is shown."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from icarus_local.chat.events import AnswerStarted, CacheUsed, ContextCut, Said, TextDelta
from icarus_local.chat.requests import AddAgent, AddFile, Ask, BeginAnew, ReloadAgent, RemoveAgent, Resume, TakeBack
from icarus_local.chat.store import SavedTurn, Store
from icarus_local.errors import ContextFullError, IcarusError, RequestError
from tests.tui.fake import HOLD, FakeChat, FakeHost, done, echo
from tests.tui.screen import Screen, on_screen, screen

SAID = (
    Said("you", "What is a fox?", answer=False),
    Said("coder", "An **animal**.\n```python\nfox = 1\n```", answer=True, thought="Hm."),
    Said("you", "File: a.txt", answer=False, file=True),
    Said("you", "And a cat?", answer=False, in_context=False),
    Said("reviewer", "Another.", answer=True, in_context=False),
)


def holding(text: str, names: Sequence[str]) -> Iterator[object]:
    if text != "hold":
        yield from echo(text, names)
        return
    yield from (AnswerStarted("coder"), TextDelta("coder", "a first part"), HOLD)


async def fails(s: Screen, line: str, why: str) -> None:
    """The line is refused, says why, and stays to be corrected."""
    s.prompt.put("")
    s.key(*line, "enter")
    await s.until(lambda: why in s.text)
    assert s.prompt.text == line
    s.prompt.put("")


# -- asking again ------------------------------------------------------------------------------------------------------


@on_screen
async def test_regenerate_takes_the_answers_back_and_asks_again() -> None:
    async with screen(FakeChat()) as s:
        await s.ask("first")
        await s.ask("/rounds 2 @coder second")
        await s.ask("/regenerate")
        again = Ask("second", ("coder",), 2, attempt=1)
        assert s.chat.requests == [Ask("first"), Ask("second", ("coder",), 2), TakeBack(), again]
        assert s.text.count("second") == s.text.count("coder heard: second") + 1
        await s.ask("/regenerate")
        assert s.chat.requests[-1] == Ask("second", ("coder",), 2, attempt=2)
        assert "coder heard: first" in s.text
        assert "/regenerate" not in s.text


@on_screen
async def test_edit_puts_the_question_into_the_input_and_asks_in_its_place() -> None:
    async with screen(FakeChat()) as s:
        await s.ask("first")
        s.key(*"/edit", "enter")
        await s.until(lambda: s.prompt.text == "/edit first")
        s.type(" of all")
        await s.ask("")
        assert s.chat.requests == [Ask("first"), TakeBack(), Ask("first of all")]
        assert "you\nfirst of all\n" in s.text
        assert "you\nfirst\n" not in s.text


@on_screen
async def test_what_is_asked_instead_may_name_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n.txt").write_text("note")
    (tmp_path / "b.bin").write_bytes(b"\0")
    async with screen(FakeChat()) as s:
        await s.ask("first")
        await s.ask("/edit see @n.txt")
        kinds = [type(request).__name__ for request in s.chat.requests]
        assert kinds == ["Ask", "TakeBack", "Weigh", "AddFile", "Ask"]
        await s.send("/edit see @b.bin")
        await s.until(lambda: "b.bin" in s.text.rpartition("/edit")[2])
        await s.idle()
        # Nothing is taken back for what cannot be asked.
        assert [type(request).__name__ for request in s.chat.requests] == kinds
        assert "coder heard: see @n.txt" in s.text


@on_screen
async def test_edit_waits_for_nothing_that_is_under_way() -> None:
    async with screen(FakeChat(holding)) as s:
        await s.ask("first")
        await s.send("hold")
        await s.until(lambda: "a first part" in s.text)
        await fails(s, "/edit", "something is under way. Wait for it, or stop it with Esc")
        s.key("escape")
        await s.idle()


@on_screen
async def test_with_nothing_asked_there_is_nothing_to_ask_again() -> None:
    async with screen(FakeChat()) as s:
        await fails(s, "/edit", "there is no question to edit")
        await s.send("/regenerate")
        await s.until(lambda: "there is no question to take back" in s.text)
        await s.until(lambda: s.prompt.text == "/regenerate")


@on_screen
async def test_a_question_of_a_resumed_conversation_is_asked_again_to_all() -> None:
    chat = FakeChat(before=SAID[:2])
    chat._answered.append(("What is a fox?", 1))
    async with screen(chat) as s:
        assert "fox = 1" in s.text
        await s.ask("/regenerate")
        assert s.chat.requests == [TakeBack(), Ask("What is a fox?", attempt=1)]
        assert s.text.count("What is a fox?") == 1 + 2
        assert "fox = 1" not in s.text


@on_screen
async def test_what_is_asked_instead_may_be_asked_of_others_or_of_the_same() -> None:
    async with screen(FakeChat()) as s:
        await s.ask("/all @coder first")
        await s.ask("/edit second")
        assert s.chat.requests[-1] == Ask("second", ("coder",), at_once=True)
        await s.ask("/edit @reviewer third")
        assert s.chat.requests[-1] == Ask("third", ("reviewer",), at_once=True)
        await fails(s, "/edit @nobody fourth", "there is no agent @nobody here")
        assert s.chat.asked[-1][0] == "third"


@on_screen
async def test_stopped_a_question_asked_again_comes_back_as_it_was_asked() -> None:
    def once(text: str, names: Sequence[str]) -> Iterator[object]:
        yield AnswerStarted("coder")
        if len(s.chat.asked) > 1:
            yield HOLD
        yield from (TextDelta("coder", "x"), done("coder", "x"))

    async with screen(FakeChat(once)) as s:
        await s.ask("/rounds 3 @coder first")
        await s.send("/regenerate")
        await s.until(lambda: "coder is reading" in s.activity)
        s.key("escape")
        await s.until(lambda: s.prompt.text == "/rounds 3 @coder first")


@on_screen
async def test_where_a_file_is_too_large_what_is_asked_instead_replaces_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n.txt").write_text("note")
    chat = FakeChat()
    other = chat.other
    chat.serve = lambda request: [ContextFullError("too large")] if isinstance(request, AddFile) else other(request)
    async with screen(chat) as s:
        await s.ask("first")
        await s.ask("second")
        await s.send("/edit see @n.txt")
        await s.until(lambda: s.prompt.text == "see @n.txt")
        assert "you (taken back)\nsee @n.txt" in s.text
        assert [type(request) for request in s.chat.requests].count(TakeBack) == 1


@on_screen
async def test_what_was_taken_back_is_not_offered_to_be_asked_again() -> None:
    def refused(text: str, names: Sequence[str]) -> Iterator[object]:
        if text == "long":
            raise ContextFullError("too long")
        yield from echo(text, names)

    async with screen(FakeChat(refused), size=(140, 40)) as s:
        await s.ask("first")
        await s.send("long")
        await s.until(lambda: "you (taken back)\nlong" in s.text)
        await s.idle()
        s.key("shift+tab")
        await s.until(lambda: s.transcript.has_focus)
        s.key("end")
        await s.until(lambda: s.transcript.target is not None and s.transcript.target.text == "long")
        assert "Ask again" not in s.footer
        s.key("up")
        await s.until(lambda: "Ask again" in s.footer)


# -- who is asked, who takes part --------------------------------------------------------------------------------------


@on_screen
async def test_agent_says_who_is_asked_from_now_on() -> None:
    async with screen(FakeChat()) as s:
        assert "coder 9.0 MiB  reviewer 9.0 MiB" in s.agents
        await s.send("/agent @reviewer")
        assert "(coder) 9.0 MiB  reviewer" in s.agents
        await s.ask("hello")
        await s.ask("@coder hello")
        await s.send("/agent all")
        assert "(coder)" not in s.agents
        await s.ask("both")
        assert s.chat.asked == [("hello", ("reviewer",)), ("hello", ("coder",)), ("both", ())]
        await fails(s, "/agent nobody", "there is no agent @nobody here")
        await fails(s, "/agent", "/agent wants the names of agents, or all")


@on_screen
async def test_agents_come_and_go_while_the_program_runs() -> None:
    async with screen(FakeChat()) as s:
        await s.ask("/agents add math=my.gguf")
        assert "math 9.0 MiB" in s.agents
        assert "math: AddAgent\na notice about it" in s.text
        await s.ask("@math 1+1?")
        await s.ask("/agents reload @coder")
        await s.ask("/agents remove reviewer")
        assert "reviewer" not in s.agents
        assert s.chat.requests == [
            *(AddAgent("math=my.gguf"), Ask("1+1?", ("math",)), ReloadAgent("coder"), RemoveAgent("reviewer"))
        ]
        await fails(s, "@reviewer hello", "there is no agent @reviewer here")
        await fails(s, "/agents remove nobody", "there is no agent @nobody here")
        await fails(s, "/agents paint coder", "/agents wants add, remove or reload, and an agent")


@on_screen
async def test_who_has_the_word_and_who_is_next() -> None:
    def pausing(text: str, names: Sequence[str]) -> Iterator[object]:
        for name in names:
            yield from (AnswerStarted(name), TextDelta(name, "x"), 0.4, done(name, "x"))

    async with screen(FakeChat(pausing, agents=("coder", "reviewer", "base"))) as s:
        await s.send("hello")
        await s.until(lambda: "▶ coder 9.0 MiB  › reviewer 9.0 MiB  base" in s.agents)
        await s.until(lambda: "coder 9.0 MiB  ▶ reviewer 9.0 MiB  › base" in s.agents)
        await s.until(lambda: "▶ base" in s.agents and "›" not in s.agents)
        await s.idle()
        assert "▶" not in s.agents


@on_screen
async def test_where_those_who_were_asked_have_left_all_are_asked() -> None:
    async with screen(FakeChat()) as s:
        await s.send("/agent coder")
        await s.ask("/agents remove coder")
        assert "(reviewer)" not in s.agents
        await s.ask("hello")
        assert s.chat.asked == [("hello", ())]


@pytest.mark.parametrize("key", ["f2", "f3"])
@on_screen
async def test_what_is_wrong_with_files_beside_is_said_and_ends_nothing(key: str) -> None:
    class Broken(FakeHost):
        def known_agents(self) -> Sequence[tuple[str, str]]:
            raise RequestError("agents.toml is no TOML")

        def store(self) -> Store:
            raise IcarusError("sessions.db cannot be opened")

    async with screen(Broken(FakeChat())) as s:
        s.key(key)
        await s.until(lambda: "agents.toml is no TOML" in s.text or "sessions.db cannot be opened" in s.text)
        s.key(*"/agents add x")
        await s.until(lambda: s.prompt.text == "/agents add x")
        await s.ask("")
        assert s.app.is_running


@on_screen
async def test_a_database_that_cannot_be_written_is_said() -> None:
    class Locked(FakeHost):
        def store(self) -> Store:
            raise sqlite3.OperationalError("database is locked")

    async with screen(Locked(FakeChat())) as s:
        await fails(s, "/rename x", "database is locked")


# -- the cache ---------------------------------------------------------------------------------------------------------


@on_screen
async def test_the_meter_warns_before_the_context_is_cut_and_says_what_left() -> None:
    used = [CacheUsed(3_400, 2**20, 2, 2**21), CacheUsed(3_700, 2**20, 2, 2**21)]
    cut = ContextCut(4, 900, (), 100)

    def filling(text: str, names: Sequence[str]) -> Iterator[object]:
        yield from [cut] if text == "cut" else []
        yield from (AnswerStarted("coder"), TextDelta("coder", "x"), done("coder", "x"))
        yield used[len(s.chat.asked) - 1] if len(s.chat.asked) < 3 else CacheUsed(900, 2**18, 2, 2**19)

    chat = FakeChat(filling)
    chat._ask = lambda request: filling(request.text, ())  # type: ignore[method-assign]
    async with screen(chat, size=(160, 24)) as s:
        await s.ask("one")
        assert "3400/4096 tokens" in s.meter
        assert "nearly full" not in s.meter
        await s.ask("two")
        assert "3700/4096 tokens · nearly full, the oldest leave next" in s.meter
        await s.ask("cut")
        assert s.meter.startswith("██░░░░░░░░ 900")
        assert "900/4096 tokens · 0.2 MiB; 2 separate caches: 0.5 MiB · 4 oldest left, 900 tokens" in s.meter
        assert "coder reused 100 of 110" in s.meter


# -- conversations -----------------------------------------------------------------------------------------------------


@on_screen
async def test_resume_shows_the_other_conversation_in_place_of_this() -> None:
    chat = FakeChat()
    chat.saved["abc"] = SAID
    async with screen(chat, size=(80, 50)) as s:
        await s.ask("before")
        await s.ask("/resume abc")
        assert s.chat.requests[-1] == Resume("abc")
        assert "before" not in s.text
        for words in ("What is a fox?", "animal", "fox = 1", "a.txt", "And a cat?", "it goes on"):
            assert words in s.text
        assert s.text.count("no longer in the context") == 2
        await s.send("/resume nothing")
        await s.until(lambda: "there is no conversation nothing" in s.text)
        await s.idle()
        assert "What is a fox?" in s.text


@on_screen
async def test_what_waits_behind_resume_is_asked_in_the_other_conversation() -> None:
    chat = FakeChat(holding)
    chat.saved["abc"] = SAID
    async with screen(chat, size=(80, 60)) as s:
        await s.send("hold")
        await s.send("/resume abc")
        await s.send("and then?")
        await s.send("and more?")
        s.key("up")
        await s.until(lambda: s.prompt.text == "and more?")
        s.key("escape")
        await s.until(lambda: "And a cat?" in s.text)
        await s.idle()
        assert s.text.index("And a cat?") < s.text.index("coder heard: and then?")
        assert "a first part" not in s.text


@on_screen
async def test_new_leaves_what_was_said_on_the_screen() -> None:
    async with screen(FakeChat()) as s:
        await s.ask("before")
        await s.ask("/new")
        assert s.chat.requests[-1] == BeginAnew()
        assert "before" in s.text
        assert "a new conversation" in s.text
        assert "10/4096 tokens" in s.meter
        assert "reused" not in s.meter
        await s.send("/regenerate")
        await s.until(lambda: "there is no question to take back" in s.text)


@on_screen
async def test_export_writes_what_the_chat_gives_and_asks_before_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with screen(FakeChat()) as s:
        await s.ask("before")
        await s.ask("/export")
        assert (tmp_path / "conversation-c0ffee00.md").read_text() == "the conversation as md\n"
        await s.ask("/export a.jsonl")
        assert (tmp_path / "a.jsonl").read_text() == "the conversation as jsonl\n"
        (tmp_path / "a.jsonl").write_text("mine")
        await s.send("/export a.jsonl")
        await s.until(lambda: s.activity.startswith("Replace a.jsonl? It exists."))
        s.key("escape")
        await s.idle()
        assert (tmp_path / "a.jsonl").read_text() == "mine"
        await s.send("/export a.jsonl")
        await s.until(lambda: s.activity.startswith("Replace"))
        s.key("y", "enter")
        await s.idle()
        assert (tmp_path / "a.jsonl").read_text() == "the conversation as jsonl\n"
        await s.send("/export nowhere/a.md")
        await s.until(lambda: "nowhere" in s.text.rpartition("/export nowhere/a.md")[2])
        s.prompt.put("")
        await fails(s, "/export a.docx", "a.docx names no form of a transcript")


@on_screen
async def test_rename_gives_the_saved_conversation_a_title(tmp_path: Path) -> None:
    store = Store(tmp_path)
    id_ = store.create(Path("base.gguf"), "0" * 64, ["coder"])
    store.save(id_, [SavedTurn("user", "hello", None)])
    async with screen(FakeHost(FakeChat(conversation=id_), folder=tmp_path)) as s:
        await s.send("/rename About [foxes]")
        assert store.find(id_).title == "About [foxes]"
    async with screen(FakeHost(FakeChat(conversation=""), folder=tmp_path)) as s:
        await fails(s, "/rename x", "this conversation is not saved")


# -- what was said -----------------------------------------------------------------------------------------------------


@on_screen
async def test_copy_takes_the_latest_answer_or_a_block_of_it() -> None:
    code = "One:\n```python\nx = 1\n```\nTwo:\n```\ny\n```\n"
    script = [AnswerStarted("coder"), TextDelta("coder", code), done("coder", code)]
    async with screen(FakeChat(lambda text, names: script)) as s:
        await fails(s, "/copy", "there is no answer to copy")
        await s.ask("show")
        await s.send("/copy")
        await s.until(lambda: s.app.clipboard == code)
        await s.until(lambda: f"{len(code)} characters" in s.activity)
        await s.send("/copy 1")
        await s.until(lambda: s.app.clipboard == "x = 1\n")
        await fails(s, "/copy 3", "the answer holds 2 code blocks")


# -- how it is shown ---------------------------------------------------------------------------------------------------


@on_screen
async def test_a_theme_is_taken_and_remembered() -> None:
    async with screen(FakeChat()) as s:
        await s.send("/theme")
        await s.until(lambda: "The theme is textual-dark; there are" in s.text)
        await s.send("/theme textual-light")
        assert s.app.theme == "textual-light"
        assert s.host.remembered == [("screen", "theme", "textual-light")]
        await fails(s, "/theme plaid", "plaid")
        assert s.app.theme == "textual-light"
