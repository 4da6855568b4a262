"""Recipes: typed, with errors that name file and key, and flags that override."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from icarus_local.errors import RequestError
from icarus_models.cli import main
from icarus_models.commands import run as command
from icarus_models.recipe import TARGET_MODULES, Recipe, read_recipe
from icarus_models.specialists import NAMES, recipe_file, specialist

GOOD = 'agent = "poet"\ndata = "d/train.jsonl"\nout = "run"\nrank = 8\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "poet.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_paths_are_the_recipes_own_and_flags_override(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD + 'base = "OWNER/NAME"\nmodules = ["q_proj"]\n')
    recipe = read_recipe(path, {"rank": 4, "out": Path("elsewhere")})
    assert (recipe.rank, recipe.agent, recipe.modules) == (4, "poet", ("q_proj",))
    assert recipe.data == tmp_path / "d" / "train.jsonl"
    assert recipe.out == Path("elsewhere")
    assert recipe.base == "OWNER/NAME"
    (tmp_path / "base.gguf").touch()
    assert read_recipe(written(tmp_path, GOOD + 'base = "base.gguf"\n'), {}).base == str(tmp_path / "base.gguf")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ranks = 4", r"poet\.toml: key ranks: Extra inputs"),
        ("alpha = -1", r"poet\.toml: key alpha: .*greater than 0"),
        ('schedule = "none"', r"poet\.toml: key schedule: .*'cosine'"),
        ('modules = ["k_proj"]', r"poet\.toml: modules: ICaRus adapts q_proj.*not k_proj"),
        ("patience = 2", r"poet\.toml: patience: needs heldout"),
        ('teacher = "t"', r"poet\.toml: teacher: .*with heldout"),
        ("rank =", r"poet\.toml is no TOML"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_key(tmp_path: Path, line: str, told: str) -> None:
    text = GOOD.replace("rank = 8\n", "") + line + "\n"
    with pytest.raises(RequestError, match=told):
        read_recipe(written(tmp_path, text), {})


def test_what_a_flag_says_wrong_is_not_the_files_fault(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"^the recipe: key batch:"):
        read_recipe(written(tmp_path, GOOD), {"batch": 0})
    with pytest.raises(RequestError, match=r"the recipe: key data: .*--data"):
        read_recipe(None, {"agent": "poet", "out": Path("x")})
    with pytest.raises(RequestError, match="cannot be read"):
        read_recipe(tmp_path / "absent.toml", {})


def test_an_ordinary_lora_may_adapt_k_and_v() -> None:
    places: dict[str, Any] = {"agent": "a", "data": Path("d"), "out": Path("o")}
    assert Recipe(**places, method="lora", modules=("k_proj",)).modules == ("k_proj",)
    assert Recipe(**places, modules="q_proj, o_proj").modules == ("q_proj", "o_proj")


def test_places_are_no_part_of_the_outcome() -> None:
    one = Recipe(agent="a", data=Path("d"), out=Path("o"))
    other = Recipe(agent="a", data=Path("e"), out=Path("p"), max_minutes=3, save_steps=7, report="tensorboard")
    assert one.outcome() == other.outcome()
    assert one.outcome() != Recipe(agent="a", data=Path("d"), out=Path("o"), seed=1).outcome()
    # With early stopping it is a part how often is looked.
    early: dict[str, Any] = {"agent": "a", "data": Path("d"), "out": Path("o"), "heldout": Path("h"), "patience": 1}
    assert Recipe(**early, save_steps=7).outcome() != Recipe(**early).outcome()


def test_every_key_has_a_flag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[tuple[Recipe, bool]] = []
    monkeypatch.setattr(command, "train_by", lambda recipe, resume: seen.append((recipe, resume)))
    given = ["--agent", "a", "--data", "d", "-o", "o", "--modules", "q_proj,o_proj", "--no-pack", "--rslora"]
    given += ["--method", "lora", "--max-minutes", "2.5", "--resume"]
    result = CliRunner().invoke(main, ["run", *given, str(written(tmp_path, GOOD + "pack = true\n"))])
    assert result.exit_code == 0, result.output
    recipe, resume = seen[0]
    assert resume
    assert (recipe.modules, recipe.pack, recipe.rslora, recipe.rank) == (("q_proj", "o_proj"), False, True, 8)
    assert (recipe.method, recipe.max_minutes, recipe.out) == ("lora", 2.5, Path("o"))
    names = {option.name for option in main.commands["run"].params}
    assert set(Recipe.model_fields) - {"teacher"} <= names


@pytest.mark.parametrize("name", NAMES)
def test_the_packaged_recipes_are_whole(name: str) -> None:
    places = {"data": Path("d"), "heldout": Path("h"), "out": Path("o")}
    recipe = read_recipe(recipe_file(name), places)
    assert recipe.agent == name
    assert recipe.modules == TARGET_MODULES
    assert specialist(name).instruction
