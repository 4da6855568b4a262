"""`icarus-train data` writes both files of a specialist, in the limits that were given."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from icarus_models.cli import main
from icarus_models.data import general
from icarus_models.data.reviewer import NO_ISSUE

from .conftest import Toy
from .test_data import write_bfcl


def records(path: Path) -> list[str]:
    return [json.loads(line)["messages"][-1]["content"] for line in path.read_text("utf-8").splitlines()]


def data(toy: Toy, agent: str, *given: str) -> Path:
    out = toy.folder / agent
    sizes = ["--train", "12", "--heldout", "4", "--max-tokens", "900"]
    result = CliRunner().invoke(main, ["data", agent, "-o", str(out), "--base", str(toy.base), *sizes, *given])
    assert result.exit_code == 0, result.output
    assert "train.jsonl: 12 records" in result.output
    return out


def test_both_files_are_written_and_talk_is_asked_once(toy: Toy) -> None:
    out = data(toy, "reviewer", "--pairs")
    train, heldout = records(out / "train.jsonl"), records(out / "heldout.jsonl")
    assert (len(train), len(heldout)) == (12, 4)
    own = [answer for answer in train if answer == NO_ISSUE or answer.startswith("Line ")]
    assert abs(2 * own.count(NO_ISSUE) - len(own)) <= 1
    asked = (out / "general.json").stat().st_mtime_ns
    assert len(json.loads((out / "general.json").read_text("utf-8"))["pairs"]) == len(general.QUESTIONS)
    (out / "train.jsonl").unlink()
    data(toy, "reviewer", "--pairs")
    assert (out / "general.json").stat().st_mtime_ns == asked
    assert records(out / "train.jsonl") == train


def test_tools_come_from_the_wheel_that_is_given(toy: Toy) -> None:
    out = data(toy, "tools", "--bfcl", str(write_bfcl(toy.folder / "bfcl")))
    assert any(answer.startswith('{"name"') for answer in records(out / "train.jsonl"))
