"""The whole measure by one command: what is done is left alone, and what was killed goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from icarus_models.evaluation.tasks import MAIN, TASKS, specialist_of
from icarus_models.recipe import Recipe
from icarus_models.specialist_runs import Folders, cells, is_finished, recipe_of, train_all
from icarus_models.specialists import NAMES


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "data", tmp_path / "runs", tmp_path / "accuracy.md")


def test_both_methods_of_a_specialist_have_one_recipe(folders: Folders) -> None:
    for name in NAMES:
        one, other = (recipe_of(name, method, folders, None) for method in ("icarus", "lora"))
        assert one.outcome() == {**other.outcome(), "method": "icarus"}
        assert one.out != other.out
        assert one.data == other.data


def finish(run: Path, stopped_by_time: bool = False) -> None:
    (run / "adapter").mkdir(parents=True)
    record = {"steps": {"stopped_by_time": stopped_by_time}}
    (run / "adapter" / "icarus_run.json").write_text(json.dumps(record), encoding="utf-8")


def test_what_is_done_is_left_alone(folders: Folders) -> None:
    finish(folders.run("coder", "icarus"))
    finish(folders.run("math", "lora"), stopped_by_time=True)
    for name in ("math", "tools"):
        (folders.run(name, "lora") / "checkpoint-50").mkdir(parents=True)
    # Of tools' it was killed while it wrote it.
    (folders.run("math", "lora") / "checkpoint-50" / "trainer_state.json").write_text("{}", encoding="utf-8")
    (folders.data / "coder").mkdir(parents=True)
    (folders.data / "coder" / "train.jsonl").touch()
    made: list[str] = []
    trained: list[tuple[str, str, bool]] = []

    def make(name: str) -> None:
        made.append(name)
        (folders.data / name).mkdir(parents=True)
        (folders.data / name / "train.jsonl").touch()

    def train(recipe: Recipe, resume: bool) -> None:
        trained.append((recipe.agent, recipe.method, resume))

    train_all(NAMES, folders, None, make, train)
    assert made == ["reviewer", "math", "tools"]
    assert ("coder", "icarus", False) not in trained
    assert ("math", "lora", True) in trained
    assert ("tools", "lora", False) in trained
    assert len(trained) == 7
    assert is_finished(folders.run("coder", "icarus"))
    assert not is_finished(folders.run("math", "lora"))


def test_the_cells_are_the_whole_table_with_the_specialists_own_first() -> None:
    made = list(cells(NAMES, TASKS, specialist_of, MAIN))
    assert len(made) == len(set(made)) == 3 * len(TASKS) + 2 * len(MAIN) * (len(NAMES) - 1)
    own = [cell for cell in made if cell.name in ("", specialist_of(cell.task))]
    assert made[: len(own)] == own
    few = list(cells(["coder"], TASKS, specialist_of, MAIN))
    assert {(cell.task, cell.name) for cell in few} == {(t, n) for t in ("coder", "humaneval") for n in ("", "coder")}


def test_the_command_goes_through_all_of_it(folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from icarus_models.cli import main
    from icarus_models.commands import run as run_command
    from icarus_models.evaluation import evaluate as evaluation
    from icarus_models.evaluation import table

    done: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        "icarus_models.commands.data.write_data", lambda *a, **k: done.append(("data", a[0], k["pairs"]))
    )
    monkeypatch.setattr(
        run_command, "train_by", lambda recipe, resume: done.append(("train", recipe.agent, recipe.method))
    )
    monkeypatch.setattr(
        evaluation, "evaluate", lambda task, system, adapter, *_: done.append((task.name, system, adapter))
    )
    monkeypatch.setattr(table, "write_tables", lambda *_: None)
    base = tmp_path / "base.gguf"
    base.touch()
    given = ["--base", str(base), "--data", str(folders.data), "--runs", str(folders.runs), "--items", "2"]
    result = CliRunner().invoke(main, ["specialists", "reviewer", "coder", *given])
    assert result.exit_code == 0, result.output
    assert done[:2] == [("data", "reviewer", True), ("train", "reviewer", "icarus")]
    assert ("data", "coder", False) in done
    assert ("coder", "base", None) in done
    assert ("coder", "lora", folders.adapter("reviewer", "lora")) in done
    assert not any(one[0] in ("math", "tools", "humaneval") for one in done)
