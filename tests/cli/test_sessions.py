"""`icarus-local sessions` and `chat --resume`, as a person uses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from icarus_local.cli.main import main
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


def test_what_is_not_there_is_said(tiny: Tiny) -> None:
    for arguments in (("show", "x"), ("export", "x"), ("rm", "x")):
        result = run("sessions", *arguments)
        assert result.exit_code == 1
        assert "there is no conversation x" in result.output
    result = run("chat", "--base", str(tiny.path), "--agents", "base", "--resume", text="hi\n")
    assert result.exit_code == 1
    assert "there is no saved conversation" in result.output
