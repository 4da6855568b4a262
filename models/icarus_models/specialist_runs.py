"""The whole measure: data, both trainings of each specialist, every answer, the tables; what is done is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from icarus_models.evaluation.systems import SystemName
from icarus_models.recipe import Recipe, read_recipe
from icarus_models.run_files import ADAPTER, RUN_FILE, last_checkpoint, read_json
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


def recipe_of(name: str, method: str, folders: Folders, base: str | None) -> Recipe:
    """The recipe of a specialist: of both methods the same, but for the method and the folder.

    Raises:
        RequestError: the packaged recipe is broken.
    """
    places = {
        "data": folders.data / name / "train.jsonl",
        "heldout": folders.data / name / "heldout.jsonl",
        "out": folders.run(name, method),
    }
    return read_recipe(recipe_file(name), {**places, "method": method, **({"base": base} if base else {})})


def is_finished(run: Path) -> bool:
    """Whether a training came to its end."""
    record = read_json(run / ADAPTER / RUN_FILE)
    return record is not None and not record["steps"]["stopped_by_time"]


def train_all(
    names: Sequence[str],
    folders: Folders,
    base: str | None,
    make_data: Callable[[str], None],
    train: Callable[[Recipe, bool], object],
) -> None:
    """Makes what data is missing and trains what is not finished, one after another.

    `train` gets a recipe, and whether it goes on from a checkpoint.

    Raises:
        IcarusError: as what it calls.
    """
    for name in names:
        for method in METHODS:
            recipe = recipe_of(name, method, folders, base)
            if not recipe.data.is_file():
                make_data(name)
            if not is_finished(recipe.out):
                train(recipe, last_checkpoint(recipe.out) is not None)


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
