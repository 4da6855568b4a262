"""The whole measure: data, both trainings of each specialist, every answer, the tables; what is done is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from icarus_local.errors import IcarusError
from icarus_models.evaluation.systems import SystemName
from icarus_models.recipe import Recipe, read_recipe
from icarus_models.run_files import ADAPTER, last_checkpoint
from icarus_models.run_record import is_finished
from icarus_models.specialists import recipe_file

METHODS: tuple[SystemName, ...] = ("icarus", "lora")


@dataclass(frozen=True, slots=True)
class Folders:
    """Where the data, the runs and the page with the tables are."""

    data: Path
    runs: Path
    page: Path

    @property
    def answers(self) -> Path:
        """Of answers and scores."""
        return self.runs / "evaluation"

    def run(self, name: str, method: str) -> Path:
        """Of one training."""
        return self.runs / f"{name}-{method}"

    def adapter(self, name: str, method: str) -> Path:
        """What one training makes."""
        return self.run(name, method) / ADAPTER


def recipe_of(name: str, method: str, folders: Folders, base: Path | None) -> Recipe:
    """The recipe of a specialist: of both methods the same, but for the method and the folder.

    Raises:
        RequestError: the packaged recipe is broken.
    """
    places = {
        "data": folders.data / name / "train.jsonl",
        "heldout": folders.data / name / "heldout.jsonl",
        "out": folders.run(name, method),
    }
    return read_recipe(recipe_file(name), {**places, "method": method, **({"base": str(base)} if base else {})})


def train_all(
    names: Sequence[str],
    folders: Folders,
    base: Path,
    make_data: Callable[[str], None],
    train: Callable[[Recipe, bool], object],
) -> None:
    """Makes what data is missing, then trains what is not finished, one after another.

    `train` gets a recipe, and whether it goes on from a checkpoint.

    Raises:
        IcarusError: a run is finished that was made of something else (before anything is trained), or as what is
            called.
    """
    recipes = [recipe_of(name, method, folders, base) for name in names for method in METHODS]
    for recipe in recipes:
        if not recipe.data.is_file():
            make_data(recipe.agent)
    for recipe in [recipe for recipe in recipes if not is_finished(recipe, base)]:
        train(recipe, last_checkpoint(recipe.out) is not None)


def check_finished(names: Sequence[str], folders: Folders, base: Path) -> None:
    """Refuses (IcarusError) what cannot be compared: a run that is not finished, or was made of something else."""
    for recipe in (recipe_of(name, method, folders, base) for name in names for method in METHODS):
        if not is_finished(recipe, base):
            raise IcarusError(f"{recipe.out}: this run is not finished", "Leave --no-train out to go on with it")


@dataclass(frozen=True, slots=True)
class Cell:
    """One system on one task; `name` is the specialist that answers, "" for the base."""

    task: str
    system: SystemName
    name: str


def cells(
    names: Sequence[str], tasks: Sequence[str], owner: Callable[[str], str], crossed: Sequence[str]
) -> Iterator[Cell]:
    """The cells of the tables: base and own specialist on each task first, then each on the others' `crossed` tasks.

    Tasks whose `owner` is not among `names` are left out.
    """
    tasks = [task for task in tasks if owner(task) in names]
    for task in tasks:
        yield Cell(task, "base", "")
        for method in METHODS:
            yield Cell(task, method, owner(task))
    for task in (task for task in tasks if task in crossed):
        for method in METHODS:
            for name in names:
                if name != owner(task):
                    yield Cell(task, method, name)
