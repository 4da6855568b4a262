"""The chat without a screen, over a conversation with tiny agents: every command, and what it says."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icarus_local.chat.agents import Agent
from icarus_local.chat.keeper import Keeper
from icarus_local.chat.lines import COMMANDS
from icarus_local.chat.reply import Opened, Reply
from icarus_local.chat.requests import Ask, Request, TakeBack
from icarus_local.chat.session import Session
from icarus_local.chat.store import Store
from icarus_local.cli.plain import PlainChat
from icarus_local.errors import IcarusError
from tests.chat.chats import make_session, tiny_agents
from tests.tiny import Tiny


class Here:
    """A chat whose session is in this thread."""

    def __init__(self, session: Session, opened: Opened) -> None:
        self._session, self.opened = session, opened
        self.requests: list[Request] = []

    def submit(self, request: Request) -> Reply:
        if isinstance(request, Ask):
            request.check(self.opened.agents)
        self.requests.append(request)
        reply = Reply(request)
        try:
            for event in self._session.run(request):
                self.opened = self.opened.after(event)
                reply.put(event)
        except IcarusError as error:
            reply.put(error)
        reply.put(None)
        return reply

    def close(self) -> None:
        pass


class Held:
    """What happened when some lines were sent."""

    def __init__(self, chat: Here, served: bool, out: str, err: str) -> None:
        self.chat, self.served, self.out, self.err = chat, served, out, err

    @property
    def spoken(self) -> list[str]:
        return [line.removesuffix(":") for line in self.out.splitlines() if line in ("a:", "b:", "base:")]

    @property
    def asked(self) -> list[Ask]:
        return [request for request in self.chat.requests if isinstance(request, Ask)]


@pytest.fixture(scope="module")
def agents(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> list[Agent]:
    return tiny_agents(tiny, tmp_path_factory.mktemp("agents"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "sessions")


Hold = Callable[..., Held]


@pytest.fixture
def hold(
    tiny: Tiny,
    agents: list[Agent],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Hold:
    """Sends lines to a chat with a and b; base may be added."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def hold(*lines: str, saved: bool = True, as_json: bool = False, **options: Any) -> Held:
        with ExitStack() as stack:
            session = make_session(tiny.path, agents[:2], stack, known=agents)
            conversation = ""
            if saved:
                conversation = stack.enter_context(Keeper(store, session, session._tokenizer)).id
            chat = Here(session, session.opened(conversation=conversation))
            monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
            plain = PlainChat(chat, False, as_json, store=store if saved else None, **options)
            served = plain.run()
            captured = capsys.readouterr()
        return Held(chat, served, captured.out, captured.err)

    return hold


def test_events_that_nobody_needs_leave_no_line(hold: Hold) -> None:
    held = hold("question", "/agents add base")
    assert held.served
    assert held.spoken == ["a", "b"]
    assert "icarus-local: \n" not in held.err
    assert held.err.splitlines()[-1] == "icarus-local: base takes part from now on, without an adapter"
    assert [line[:4] for line in held.err.splitlines()] == ["[a: ", "[b: ", "icar"]
    as_json = hold("question", as_json=True)
    assert [json.loads(line)["agent"] for line in as_json.out.splitlines()] == ["a", "b"]
    assert as_json.err == ""


def test_a_line_asks_those_who_were_named_last(hold: Hold) -> None:
    held = hold(
        "/agent b", "one", "@a two", "/rounds 2 three", "/agents add base", "/agent base, @b", "four", "/all five"
    )
    assert held.served
    assert [ask.names for ask in held.asked] == [("b",), ("a",), ("b",), ("base", "b"), ()]
    assert "a line that names nobody asks base, b" in held.err
    held = hold("/agent a", "/agents remove a", "one", "/agent all", "two", "/agent a")
    # One who is gone is not waited for.
    assert [ask.names for ask in held.asked] == [(), ()]
    assert "asks all" in held.err
    assert not held.served
    assert "no agent @a here" in held.err


def test_agents_are_listed_added_removed_and_read_again(hold: Hold) -> None:
    held = hold(
        "/agents", "/agents add base", "/agents remove a", "/agents reload b", "/agents", "/agents add b", "hello"
    )
    assert held.spoken == ["b", "base"]
    listed = [line for line in held.err.splitlines() if line.startswith("@")]
    assert [line.split(":")[0] for line in listed] == ["@a", "@b", "@b", "@base"]
    assert listed[0].endswith("in memory")
    for text in ("a takes part no more", "b was read again: 0.1 MiB, in memory", "the agent b takes part already"):
        assert f"icarus-local: {text}" in held.err
    assert not held.served


def test_the_newest_question_is_asked_again_and_otherwise(hold: Hold) -> None:
    held = hold("@a one", "/regenerate", "/regenerate", "/edit two", "/regenerate", "/edit @b three")
    assert held.served
    assert [(ask.text, ask.names, ask.attempt) for ask in held.asked] == [
        *(("one", ("a",), 0), ("one", ("a",), 1), ("one", ("a",), 2)),
        *(("two", ("a",), 0), ("two", ("a",), 1), ("three", ("b",), 0)),
    ]
    assert held.err.count("the newest question and 1 answer to it left the conversation") == 5
    figures = [line for line in held.err.splitlines() if line.startswith("[a")]
    assert ", 0 encoded" in figures[1]


def test_files_that_a_question_names_are_added_before_it(
    hold: Hold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n.txt").write_text("note")
    held = hold("@a see @n.txt", "/regenerate", "/edit and @n.txt?", "@a mail me@n.txt")
    kinds = [type(request).__name__ for request in held.chat.requests]
    assert kinds == ["Weigh", "AddFile", "Ask", "TakeBack", "Ask", "TakeBack", "AddFile", "Ask", "Ask"]
    (tmp_path / "b.bin").write_bytes(b"\0")
    held = hold("@a before", "/edit see @b.bin")
    assert not held.served
    assert [type(request).__name__ for request in held.chat.requests] == ["Ask"]


def test_what_a_question_meant_it_means_again(hold: Hold) -> None:
    held = hold("/all one", "/regenerate", "/rounds 2 @b two", "/regenerate")
    assert [(ask.names, ask.rounds, ask.at_once) for ask in held.asked] == [
        *(((), 1, True), ((), 1, True), (("b",), 2, False), (("b",), 2, False))
    ]


def test_what_cannot_be_asked_again_takes_nothing_back(hold: Hold) -> None:
    held = hold("/regenerate", "/edit two", "one", "/edit", "/edit @nobody two", "/edit @a")
    assert not held.served
    errors = [line for line in held.err.splitlines() if line.startswith("icarus-local: ")]
    assert [error.partition(". ")[0].removeprefix("icarus-local: ") for error in errors] == [
        "there is no question to take back",
        "there is no question to take back",
        "/edit wants the question to ask instead",
        "there is no agent @nobody here",
        "the question is empty",
    ]
    assert [ask.text for ask in held.asked] == ["one"]
    assert sum(isinstance(request, TakeBack) for request in held.chat.requests) == 2


def test_one_who_is_gone_is_not_asked_again(hold: Hold) -> None:
    held = hold("/agents add base", "@a @base one", "/agents remove a", "/regenerate")
    assert [ask.names for ask in held.asked] == [("a", "base"), ("base",)]


def test_code_is_saved_of_what_was_not_taken_back(hold: Hold) -> None:
    held = hold("one", "/regenerate", "/save-code")
    assert "no answer holds a code block" in held.err
    assert held.asked[1].attempt == 1


def test_a_conversation_is_resumed_with_its_question(hold: Hold, store: Store) -> None:
    hold("@a one")
    (first,) = store.sessions()
    held = hold("@b another", f"/resume {first.id}", "/regenerate", "/resume", "/resume nothing")
    assert not held.served
    assert "you: one\n" in held.err
    assert f"conversation {first.id} goes on: " in held.err
    # Whom it was asked of is not saved, so it is asked as any line.
    assert [(ask.text, ask.names, ask.attempt) for ask in held.asked[1:]] == [("one", (), 1)]
    assert "you: another\n" in held.err
    assert "there is no conversation nothing" in held.err
    assert {saved.title for saved in store.sessions()} == {"one", "another"}
    assert "saves nothing" in hold("/resume", saved=False).err


def test_a_conversation_is_exported_saved_or_not(hold: Hold) -> None:
    assert hold("one", "/export a.md", "/export 'b c.jsonl'", saved=False).served
    assert Path("a.md").read_text("utf-8").startswith("# one\n\nA conversation with a, b on ")
    assert json.loads(Path("b c.jsonl").read_text("utf-8").splitlines()[1])["content"] == "one"
    # It replaces no file unasked.
    before = Path("a.md").read_text("utf-8")
    held = hold("another", "/export a.md", "n", saved=False)
    assert "a.md exists. Replace it? [y/N]" in held.err
    assert "is written" not in held.err
    assert Path("a.md").read_text("utf-8") == before
    assert "a.md is written" in hold("another", "/export a.md", "y").err
    assert Path("a.md").read_text("utf-8").startswith("# another\n\nConversation ")
    for line, message in (("/export a.txt", "names no form"), ("/export none/a.md", "there is no folder none")):
        held = hold("one", line)
        assert not held.served
        assert message in held.err


def test_a_title_is_given_to_the_conversation_that_there_is(hold: Hold, store: Store) -> None:
    held = hold("one", "/rename  About one ", "/new", "two", "/rename About two", "/rename")
    assert held.served
    assert "the title is About one\n" in held.err
    assert "the title is two\n" in held.err
    assert {saved.title for saved in store.sessions()} == {"About one", "two"}
    assert "this conversation is not saved" in hold("/rename x", saved=False).err
    assert "the title has 200 characters" in hold(f"/rename {'x' * 200}").err


@pytest.mark.parametrize("name", [name for name, info in COMMANDS.items() if info.on_screen])
def test_what_needs_a_screen_says_so(hold: Hold, name: str) -> None:
    held = hold(f"/{name}")
    assert not held.served
    assert held.err == f"icarus-local: /{name} works on the screen. Chat in a terminal without --plain\n"


def test_help_tells_what_lines_can_do(hold: Hold) -> None:
    shown = [line.split()[0].rstrip(":") for line in hold("/help").err.splitlines()]
    assert shown == [f"/{name}" for name, info in COMMANDS.items() if not info.on_screen]


def test_an_engine_that_was_started_again_is_told_once(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = Here.submit

    def dies_once(self: Here, request: Request) -> Reply:
        if isinstance(request, Ask) and request.text == "two":
            self.opened = replace(self.opened, engine=1)
        return serve(self, request)

    monkeypatch.setattr(Here, "submit", dies_once)
    # Whose adapter is in memory, and who takes part, is another matter.
    held = hold("one", "/agents add base", "two", "three")
    assert held.err.count("the engine had ended and was started again; the conversation goes on") == 1
