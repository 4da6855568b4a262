"""The whole measure by one command: what is done is left alone, and what was killed goes on."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from icarus_local.errors import IcarusError
from icarus_models.cli import main
from icarus_models.evaluation.table import BEGIN, END
from icarus_models.evaluation.tasks import MAIN, TASKS, specialist_of
from icarus_models.recipe import Recipe
from icarus_models.run_record import hashes, is_finished
from icarus_models.specialist_runs import Folders, cells, check_finished, recipe_of, train_all
from icarus_models.specialists import NAMES


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "data", tmp_path / "runs", tmp_path / "accuracy.md")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base.gguf"
    path.touch()
    return path


def test_both_methods_of_a_specialist_have_one_recipe(folders: Folders) -> None:
    for name in NAMES:
        one, other = (recipe_of(name, method, folders, None) for method in ("icarus", "lora"))
        assert one.outcome() == {**other.outcome(), "method": "icarus"}
        assert one.out != other.out
        assert one.data == other.data


def finish(of: Recipe, base: Path, stopped_by_time: bool = False, **differs: Any) -> None:
    """A run's record as training writes it, but for what is no matter here."""
    record = {
        "recipe": of.outcome(),
        "data_sha256": hashes(of, base),
        "steps": {"stopped_by_time": stopped_by_time},
        **differs,
    }
    (of.out / "adapter").mkdir(parents=True, exist_ok=True)
    (of.out / "adapter" / "icarus_run.json").write_text(json.dumps(record), encoding="utf-8")


def write_data(folders: Folders, name: str, text: str = "{}") -> None:
    (folders.data / name).mkdir(parents=True, exist_ok=True)
    for side in ("train", "heldout"):
        (folders.data / name / f"{side}.jsonl").write_text(text, encoding="utf-8")


def test_what_is_done_is_left_alone(folders: Folders, base: Path) -> None:
    write_data(folders, "coder")
    finish(recipe_of("coder", "icarus", folders, base), base)
    finish(recipe_of("math", "lora", folders, base), base, stopped_by_time=True)
    for name in ("math", "tools"):
        (folders.run(name, "lora") / "checkpoint-50").mkdir(parents=True)
    # Of tools' it was killed while it wrote it.
    (folders.run("math", "lora") / "checkpoint-50" / "trainer_state.json").write_text("{}", encoding="utf-8")
    made: list[str] = []
    trained: list[tuple[str, str, bool]] = []

    def make(name: str) -> None:
        assert not trained, "data that cannot be made is noticed before hours of training"
        made.append(name)
        write_data(folders, name)

    def train(recipe: Recipe, resume: bool) -> None:
        trained.append((recipe.agent, recipe.method, resume))

    train_all(NAMES, folders, base, make, train)
    assert made == ["reviewer", "math", "tools"]
    assert ("coder", "icarus", False) not in trained
    assert ("math", "lora", True) in trained
    assert ("tools", "lora", False) in trained
    assert len(trained) == 7
    assert is_finished(recipe_of("coder", "icarus", folders, base), base)
    assert not is_finished(recipe_of("math", "lora", folders, base), base)


def test_a_run_of_something_else_is_not_done(folders: Folders, base: Path) -> None:
    for name in NAMES:
        write_data(folders, name)
    recipe = recipe_of("tools", "icarus", folders, base)
    trained: list[Recipe] = []

    def refused(key: str) -> None:
        with pytest.raises(IcarusError, match=rf"tools-icarus: .* another {key}\. Move the folder away"):
            train_all(NAMES, folders, base, lambda _: None, lambda recipe, _: trained.append(recipe))
        assert not trained, "it is noticed before anything is trained"

    finish(recipe, base, recipe={**recipe.outcome(), "epochs": 2.0})
    refused(r"recipe\.epochs")
    finish(recipe, base)
    write_data(folders, "tools", "{} ")
    refused(r"data_sha256\.train, data_sha256\.heldout")
    write_data(folders, "tools")
    base.write_bytes(b"other")
    refused(r"data_sha256\.base, data_sha256\.tokenizer")
    base.write_bytes(b"")
    # Facts that an earlier version did not write.
    finish(recipe, base, precision="float32")
    assert is_finished(recipe, base)


def test_what_is_not_finished_is_not_evaluated(folders: Folders, base: Path) -> None:
    write_data(folders, "coder")
    for method in ("icarus", "lora"):
        with pytest.raises(IcarusError, match=f"coder-{method}: this run is not finished"):
            check_finished(["coder"], folders, base)
        finish(recipe_of("coder", method, folders, base), base)
    check_finished(["coder"], folders, base)


def test_only_finished_runs_are_shipped(folders: Folders, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script: Any = runpy.run_path(str(Path(__file__).parents[2] / "models" / "ship_adapters.py"))
    shipped: list[str] = []
    names = script["main"].__globals__
    monkeypatch.setitem(names, "ship", lambda name, run, base: shipped.append(name))
    monkeypatch.setitem(names, "embedded", lambda: base)
    for name in NAMES:
        write_data(folders, name)
    finish(recipe_of("coder", "icarus", folders, base), base)
    finish(recipe_of("math", "icarus", folders, base), base, stopped_by_time=True)
    script["main"](folders.runs, folders.data)
    assert shipped == ["coder"]
    write_data(folders, "coder", "{} ")
    with pytest.raises(IcarusError, match="coder-icarus"):
        script["main"](folders.runs, folders.data)


def test_the_cells_are_the_whole_table_with_the_specialists_own_first() -> None:
    made = list(cells(NAMES, TASKS, specialist_of, MAIN))
    assert len(made) == len(set(made)) == 3 * len(TASKS) + 2 * len(MAIN) * (len(NAMES) - 1)
    own = [cell for cell in made if cell.name in ("", specialist_of(cell.task))]
    assert made[: len(own)] == own
    few = list(cells(["coder"], TASKS, specialist_of, MAIN))
    assert {(cell.task, cell.name) for cell in few} == {(t, n) for t in ("coder", "humaneval") for n in ("", "coder")}


def command(folders: Folders, base: Path, *given: str) -> Result:
    places = ["--base", base, "--data", folders.data, "--runs", folders.runs, "--page", folders.page]
    return CliRunner().invoke(main, ["specialists", *given, *map(str, places), "--items", "2"])


def test_the_command_goes_through_all_of_it(folders: Folders, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from icarus_models.commands import run as run_command
    from icarus_models.evaluation import evaluate as evaluation
    from icarus_models.evaluation import table

    done: list[tuple[Any, ...]] = []

    def make(name: str, *_: Any, pairs: bool, **__: Any) -> None:
        done.append(("data", name, pairs))
        write_data(folders, name)

    def train(recipe: Recipe, resume: bool) -> None:
        done.append(("train", recipe.agent, recipe.method))
        finish(recipe, base)

    monkeypatch.setattr("icarus_models.commands.data.write_data", make)
    monkeypatch.setattr(run_command, "train_by", train)
    monkeypatch.setattr(
        evaluation, "evaluate", lambda task, system, adapter, *_: done.append((task.name, system, adapter))
    )
    monkeypatch.setattr(table, "write_tables", lambda *_: None)
    folders.page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    result = command(folders, base, "reviewer", "coder")
    assert result.exit_code == 0, result.output
    assert done[:3] == [("data", "reviewer", True), ("data", "coder", False), ("train", "reviewer", "icarus")]
    assert ("coder", "base", None) in done
    assert ("coder", "lora", folders.adapter("reviewer", "lora")) in done
    assert not any(one[0] in ("math", "tools", "humaneval") for one in done)
    # Without training, what is there is to be finished.
    (folders.adapter("coder", "lora") / "icarus_run.json").unlink()
    result = command(folders, base, "reviewer", "coder", "--no-train")
    assert result.exit_code == 1
    assert "coder-lora: this run is not finished" in result.output


def test_what_the_evaluation_lacks_is_noticed_before_training(
    folders: Folders, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Recipe] = []
    monkeypatch.setattr("icarus_models.commands.run.train_by", lambda recipe, _: trained.append(recipe))
    for name in NAMES:
        write_data(folders, name)
    told = [command(folders, base, "tools").output]
    folders.page.write_text("no marks", encoding="utf-8")
    told.append(command(folders, base, "tools").output)
    folders.page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    told.append(command(folders, base, "tools").output)
    for part, output in zip(("cannot be read", "has no place for the tables", "--bfcl"), told, strict=True):
        assert part in output
    assert not trained


def test_eval_looks_where_specialists_writes() -> None:
    of = {name: {p.name: p.default for p in main.commands[name].params} for name in ("eval", "specialists")}
    assert of["eval"]["runs"] == of["specialists"]["runs"]
    assert of["eval"]["results"] == Folders(Path("d"), of["specialists"]["runs"], Path("p")).answers
    assert of["eval"]["page"] == of["specialists"]["page"]
