"""`icarus-local sessions` and `chat --resume`, as a person uses them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from icarus_local.chat.store import SavedTurn, Store
from icarus_local.cli.main import main
from icarus_local.cli.opening import sessions_folder
from tests.tiny import Tiny


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ICARUS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run(*arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(main, arguments, input=text)


def chat(tiny: Tiny, question: str, *more: str) -> Result:
    options = ("--base", str(tiny.path), "--agents", "base", "--max-tokens", "6", "--threads", "1", "--json")
    result = run("chat", *options, *more, text=f"{question}\n")
    assert result.exit_code == 0, result.output
    return result


def listed() -> list[dict[str, object]]:
    return [json.loads(line) for line in run("sessions", "list", "--json").stdout.splitlines()]


def test_a_conversation_is_listed_shown_exported_resumed_and_removed(tiny: Tiny) -> None:
    chat(tiny, "Who are you?")
    chat(tiny, "Something else")
    second, first = listed()
    assert (first["title"], second["title"]) == ("Who are you?", "Something else")
    assert first["state_bytes"]
    resumed = chat(tiny, "And then?", "--resume", str(first["id"])[:6])
    assert json.loads(resumed.stdout)["reused"] > 20
    assert "you: Who are you?" in resumed.stderr
    assert "tokens restored" in resumed.stderr
    assert "base:" not in chat(tiny, "New", "--no-save").stderr
    assert len(listed()) == 2
    shown = run("sessions", "show", str(first["id"])).stdout
    assert shown.index("you: Who are you?") < shown.index("base:") < shown.index("you: And then?")
    turns = [
        json.loads(line)
        for line in run("sessions", "export", "--format", "jsonl", str(first["id"])).stdout.splitlines()
    ]
    assert [turn["speaker"] for turn in turns] == ["system", "user", "base", "user", "base"]
    assert run("sessions", "export", str(first["id"])).stdout.startswith("# Who are you?")
    assert run("sessions", "rm", str(first["id"]), text="n\n").exit_code == 1
    assert len(listed()) == 2
    assert run("sessions", "rm", str(first["id"]), text="y\n").exit_code == 0
    assert [session["id"] for session in listed()] == [second["id"]]
    assert run("sessions", "rm", "--yes", str(second["id"])).exit_code == 0
    assert run("sessions", "list").stdout == ""


def saved(*turns: SavedTurn, state_bytes: int = 0) -> str:
    store = Store(sessions_folder())
    session = store.create(Path("base.gguf"), "ab", ["coder"])
    store.save(session, turns)
    if state_bytes:
        with store.state_file(session).open("wb") as file:
            file.truncate(state_bytes)
    return session


TURNS = (
    SavedTurn("system", "Be good.", None),
    SavedTurn("file", "File a.py:\n\n```py\nx = 1\n```", None, False),
    SavedTurn("user", "What is x?", None, False),
    SavedTurn("hand-over", "Answer as a coder.", None, False),
    SavedTurn("coder", "<think>1?</think>It is 1.", (5, 6, 7), False, 2),
    SavedTurn("user", "Why?", None),
    # An agent may be named like this.
    SavedTurn("hand-over", "Because.", (8,)),
)


def test_an_export_tells_what_is_no_longer_in_the_context() -> None:
    session = saved(*TURNS)
    result = run("sessions", "export", session)
    assert result.stdout.startswith("# What is x?\n\nConversation")
    assert result.stdout.partition("base.gguf.\n\n")[2] == (
        "## system\n\nBe good.\n\n"
        "## file (no longer in the context)\n\nFile a.py:\n\n```py\nx = 1\n```\n\n"
        "## user (no longer in the context)\n\nWhat is x?\n\n"
        "## coder (no longer in the context)\n\n<think>1?</think>It is 1.\n\n"
        "## user\n\nWhy?\n\n"
        "## hand-over\n\nBecause.\n"
    )
    lines = [json.loads(line) for line in run("sessions", "export", "--format", "jsonl", session).stdout.splitlines()]
    assert lines == [{"speaker": turn.speaker, "content": turn.text, "in_context": turn.in_context} for turn in TURNS]


def test_conversations_are_looked_through() -> None:
    session = saved(*TURNS)
    other = saved(SavedTurn("user", "It is\x1b[2J what?", None))
    assert run("sessions", "search", "IT IS").stdout.splitlines() == [
        f"{other}  you: It is\ufffd[2J what?",
        f"{session}  coder: It is 1.",
    ]
    lines = [json.loads(line) for line in run("sessions", "search", "it is 1", "--json").stdout.splitlines()]
    assert lines == [{"id": session, "title": "What is x?", "turn": 4, "speaker": "coder", "excerpt": "It is 1."}]
    nothing = run("sessions", "search", "nothing of it")
    assert (nothing.exit_code, nothing.output) == (0, "")


def test_a_title_is_shown_wherever_the_conversation_is() -> None:
    session = saved(*TURNS)
    assert run("sessions", "rename", session[:6], "About x").exit_code == 0
    assert [found["title"] for found in listed()] == ["About x"]
    assert "About x" in run("sessions", "list").stdout
    assert run("sessions", "export", session).stdout.startswith("# About x\n\nConversation")
    assert run("sessions", "search", "about").stdout == f"{session}  title: About x\n"
    assert run("sessions", "rename", session, "").exit_code == 0
    assert [found["title"] for found in listed()] == ["What is x?"]
    refused = run("sessions", "rename", session, "x" * 121)
    assert refused.exit_code == 1
    assert "121 characters" in refused.output


def test_the_list_ends_with_what_states_take_and_marks_the_first_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, without = saved(TURNS[2], state_bytes=100 << 20), saved(TURNS[2], state_bytes=600 << 20), saved(TURNS[2])
    os.utime(Store(sessions_folder()).state_file(old), (1, 1))
    *lines, last = run("sessions", "list").stdout.splitlines()
    assert last == "saved KV states take 0.7 of 4.0 GiB"
    assert not any("*" in line for line in lines)
    monkeypatch.setattr("icarus_local.cli.sessions.MAX_STATE_BYTES", 1200 << 20)
    *lines, last = run("sessions", "list").stdout.splitlines()
    assert last == (
        "saved KV states take 0.7 of 1.2 GiB; another of 600.0 MiB would remove those marked * (their transcripts stay)"
    )
    assert [line.split()[0] for line in lines] == [without, new, old]
    assert ["*" in line for line in lines] == [False, False, True]
    assert [session["id"] for session in listed()] == [without, new, old]


def test_what_is_not_there_is_said(tiny: Tiny) -> None:
    for arguments in (("show", "x"), ("export", "x"), ("rm", "x"), ("rename", "x", "title")):
        result = run("sessions", *arguments)
        assert result.exit_code == 1
        assert "there is no conversation x" in result.output
    result = run("chat", "--base", str(tiny.path), "--agents", "base", "--resume", text="hi\n")
    assert result.exit_code == 1
    assert "there is no saved conversation" in result.output
