"""One cell of the table: a system's answers to a task, scored; both are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icarus_local.errors import IcarusError
from icarus_local.text.tokenizer import Tokenizer
from icarus_models.catalog import agents
from icarus_models.evaluation.adapters import ready, trained
from icarus_models.evaluation.answers import Question, answer_all, facts, file_of
from icarus_models.evaluation.items import SCORE, Task
from icarus_models.evaluation.statistics import interval
from icarus_models.evaluation.systems import System, SystemName, opened
from icarus_models.records import Renderer, dated_template
from icarus_models.run_files import file_sha256, write_json

SCORES_SUFFIX = ".scores.json"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an evaluation is done: the base's GGUF, and the folder of answers and scores."""

    base: Path
    folder: Path


def evaluate(task: Task, system: SystemName, adapter: Path | None, place: Place, tell: Callable[[str], None]) -> Path:
    """Answers what is not answered yet, scores all, and gives the file of scores.

    Raises:
        IcarusError: a system without its adapter, or one that cannot be used; an item too long for the base.
    """
    if (adapter is None) is not (system == "base"):
        raise IcarusError(
            f"the system {system} {'has' if system == 'base' else 'needs'} an adapter", "Give --adapter for the others"
        )
    of = trained(adapter) if adapter is not None else None
    with closing(Tokenizer(place.base)) as tokenizer, ExitStack() as stack:
        questions = _questions(task, tokenizer)
        about = facts(
            task.name,
            system,
            agent=of.agent if of else "",
            adapter_sha256=of.sha256 if of else "",
            base_sha256=file_sha256(place.base),
        )
        file = file_of(place.folder, about)
        label = f"{task.name}, {system}{f' {of.agent}' if of else ''}"

        def open_system() -> System:
            n_ctx = max(len(question.prompt) + question.max_tokens for question in questions)
            as_needed = stack.enter_context(ready(system, of, place.base))
            return stack.enter_context(opened(system, place.base, tokenizer, as_needed, n_ctx))

        def progress(done: int, n: int) -> None:
            if done % 10 == 0 or done == n:
                tell(f"{label}: {done} of {n} answered")

        answers = answer_all(file, about, questions, open_system=open_system, tokenizer=tokenizer, tell=progress)
    scored: list[dict[str, Any]] = [{"id": item.id, **task.score(item, answers[item.id])} for item in task.items]
    out = file.with_suffix(SCORES_SUFFIX)
    items_sha256 = hashlib.sha256("".join(question.sha256 for question in questions).encode()).hexdigest()
    write_json(out, {**about, "base": place.base.name, "items_sha256": items_sha256, "items": scored})
    found = interval([one[SCORE] for one in scored])
    tell(f"{label}: {100 * found.mean:.1f} % right of {len(scored)} ({100 * found.low:.1f} to {100 * found.high:.1f})")
    return out


def _questions(task: Task, tokenizer: Tokenizer) -> list[Question]:
    renderer = Renderer(tokenizer, dated_template(tokenizer), [*agents(), task.agent], task.agent.name)
    return [Question(item.id, renderer.prompt(item.messages), task.agent.max_tokens) for item in task.items]


def read_scores(folder: Path) -> list[dict[str, Any]]:
    """What was scored, of each task, system and agent the newest, in the order in which it was.

    Raises:
        IcarusError: a file that is not one of scores.
    """
    newest: dict[tuple[str, str, str], dict[str, Any]] = {}
    for file in sorted(folder.glob(f"*{SCORES_SUFFIX}"), key=lambda path: (path.stat().st_mtime, path.name)):
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            key = (found["task"], found["system"], found["agent"])
            newest.pop(key, None)
            newest[key] = found
            assert isinstance(found["items_sha256"], str)
            assert all(isinstance(one[SCORE], float) for one in found["items"])
        except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
            raise IcarusError(f"{file} is no file of scores: {error}", "Remove it, and evaluate again") from error
    return list(newest.values())
