"""A measurement: cases, all systems in turn over each, one process for each run, until all are finished."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import TypeAdapter, ValidationError

from icarus_local.bench.adapters import random_adapter, write_random_adapter
from icarus_local.bench.machine import versions
from icarus_local.bench.records import Case, Failure, Job, Record, Run, Setup
from icarus_local.bench.runs_file import RunsFile
from icarus_local.bench.script import Script
from icarus_local.bench.summary import Figures, summarise
from icarus_local.bench.workflow import Workflow
from icarus_local.engine.content import content_id
from icarus_local.engine.engine import Engine
from icarus_local.errors import EngineDiedError, IcarusError, RequestError

_CHILD = [sys.executable, "-m", "icarus_local.bench.workflow_child"]
_ANSWER: TypeAdapter[Record | Failure] = TypeAdapter(Record | Failure)
_END_OF_STDERR = 400  # characters of what a process that died said


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured; all cases with all systems, `repeats` times."""

    cases: tuple[Case, ...]
    systems: tuple[str, ...]
    workflows: dict[str, Workflow]
    repeats: dict[str, int]


@contextmanager
def prepared(engine: Engine, agents: int, rank: int) -> Iterator[Setup]:
    """What all systems share: the engine's base and options, and files of `agents` random adapters.

    Raises:
        IcarusError: the adapters cannot be written.
    """
    base = engine.base
    with TemporaryDirectory(prefix="icarus-bench-") as folder:
        paths = []
        for i in range(agents):
            paths.append(Path(folder) / f"random-{i}.gguf")
            try:
                write_random_adapter(paths[-1], random_adapter(base, rank, i), base.hp.name)
            except OSError as error:
                raise IcarusError(f"{paths[-1]} cannot be written: {error.strerror}") from error
        yield Setup(
            base=base.path,
            adapters=tuple(paths),
            kv_type=engine.kv_type,
            n_threads=engine.n_threads,
            repack=bool(base.placement.repacked),
            n_vocab=base.hp.n_vocab,
            kv_bytes_per_token=engine.kv_bytes_per_token,
        )


def identity(setup: Setup, rank: int, workflows: dict[str, Workflow]) -> dict[str, Any]:
    """What must be the same for two runs to belong to one measurement."""
    return {
        "base": content_id(setup.base),
        "base_name": setup.base.name,
        "versions": versions(),
        "kv_type": setup.kv_type,
        "threads": setup.n_threads,
        "repacked": setup.repack,
        "rank": rank,
        "workflows": {name: workflow.sha256 for name, workflow in workflows.items()},
    }


def cases(
    workflow: Workflow,
    agents: Sequence[int],
    contexts: Sequence[int],
    answer_tokens: Sequence[int],
    warm_turns: int | None,
) -> list[Case]:
    """All combinations; where nothing is given, the file's."""
    answers: list[int | None] = [*answer_tokens] or [None]
    choices = itertools.product(agents or [workflow.agents], contexts or workflow.contexts, answers)
    return [
        Case(workflow=workflow.name, agents=n, context=context, answer_tokens=answer, warm_turns=warm_turns)
        for n, context, answer in choices
    ]


def check(plan: Plan, n_vocab: int, n_ctx_train: int) -> None:
    """Raises RequestError for a case that cannot be measured, before the first is."""
    for case in plan.cases:
        if case.context > n_ctx_train:
            raise RequestError(
                f"a context of {case.context} tokens is longer than the {n_ctx_train} that the base was trained for",
                "Give a smaller --context",
            )
        Script(plan.workflows[case.workflow], case, n_vocab)


def measure(plan: Plan, setup: Setup, file: RunsFile, report: Callable[[str], None]) -> Iterator[tuple[Case, Figures]]:
    """Does what is not finished yet; gives the summary of each case. `report` is told of each run in words.

    Systems take turns within a repeat, and the one that begins changes from repeat to repeat.

    Raises:
        IcarusError: a system does. What was finished is in the file.
    """
    for case in plan.cases:
        for repeat in range(plan.repeats[case.workflow]):
            first = repeat % len(plan.systems)
            for system in (*plan.systems[first:], *plan.systems[:first]):
                if file.has(case, system, repeat):
                    continue
                report(f"{case}: {system}, repeat {repeat + 1} of {plan.repeats[case.workflow]}")
                job = Job(setup=setup, workflow=plan.workflows[case.workflow], case=case, system=system, seed=repeat)
                file.add(Run(case=case, system=system, repeat=repeat, record=run_child(job)))
        yield case, summarise(file.runs, case)


def run_child(job: Job) -> Record:
    """Measures a job in a process of its own.

    Raises:
        IcarusError: the system's own. EngineDiedError: the process ended without an answer.
    """
    done = subprocess.run(_CHILD, input=job.model_dump_json().encode(), capture_output=True, check=False)
    try:
        answer = _ANSWER.validate_json(done.stdout)
    except ValidationError as error:
        said = done.stderr.decode("utf-8", "replace").strip()[-_END_OF_STDERR:]
        raise EngineDiedError(
            f"the process that measures {job.system} ended with status {done.returncode}: {said or 'it said nothing'}",
            "Where memory ran out, give fewer --agents or a smaller --context",
        ) from error
    if isinstance(answer, Failure):
        raise IcarusError(f"{job.system}: {answer.error}", answer.hint)
    return answer
