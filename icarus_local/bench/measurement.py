"""A measurement: cases, all systems in turn over each, one process for each run, until all are finished."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from icarus_local.bench.adapters import random_adapter, write_random_adapter
from icarus_local.bench.llama_server import server_version
from icarus_local.bench.load import MOST_OTHER_CORES, LoadMeter
from icarus_local.bench.machine import code_sha256, describe, versions
from icarus_local.bench.process import run_child
from icarus_local.bench.records import Case, Job, Run, Setup
from icarus_local.bench.runs_file import RunsFile
from icarus_local.bench.script import Script
from icarus_local.bench.summary import Figures, summarise
from icarus_local.bench.workflow import Workflow
from icarus_local.engine.content import content_id
from icarus_local.engine.engine import Engine
from icarus_local.errors import IcarusError, RequestError


class IncompleteError(IcarusError):
    """Some systems could not be measured; what could be is in the file."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured; all cases with all systems, `repeats` times."""

    cases: tuple[Case, ...]
    systems: tuple[str, ...]
    workflows: dict[str, Workflow]
    repeats: dict[str, int]


@contextmanager
def prepared(engine: Engine, agents: int, rank: int, llama_server: Path | None = None) -> Iterator[Setup]:
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
            llama_server=llama_server,
        )


def identity(setup: Setup, rank: int, workflows: dict[str, Workflow]) -> dict[str, Any]:
    """What must be the same for two runs to belong to one measurement; `workflows` by name."""
    machine = describe()
    return {
        "base": content_id(setup.base),
        "base_name": setup.base.name,
        "cpu": machine["cpu"],
        "cores": machine["cores"],
        "versions": versions(),
        "llama_server": None if setup.llama_server is None else server_version(setup.llama_server),
        "code": code_sha256(),
        "kv_type": setup.kv_type,
        "threads": setup.n_threads,
        "icarus_repacked": setup.repack,
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
        Case(
            workflow=workflow.name,
            agents=n,
            context=context,
            answer_tokens=answer,
            warm_turns=warm_turns or workflow.warm_turns,
        )
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

    Systems take turns within a repeat, and the one that begins changes from repeat to repeat. One that fails is told,
    and is not tried again in that case; all others go on.

    Raises:
        IncompleteError: systems failed, after everything else was measured. BenchFileError: the file cannot be written.
    """
    failed: dict[tuple[Case, str], IcarusError] = {}
    for case in plan.cases:
        for system, repeat in _order(plan, case):
            if (case, system) in failed or file.has(case, system, repeat):
                continue
            report(f"{case}: {system}, repeat {repeat + 1} of {plan.repeats[case.workflow]}")
            job = Job(setup=setup, workflow=plan.workflows[case.workflow], case=case, system=system, seed=repeat)
            meter = LoadMeter()
            try:
                record = run_child(job)
            except IcarusError as error:
                failed[case, system] = error
                report(f"  failed: {error}")
                continue
            others, wall_s = meter.other_cores, meter.wall_s
            run = Run(case=case, system=system, repeat=repeat, record=record, wall_s=wall_s, other_cores=others)
            file.add(run)
            going = [name for name in plan.systems if (case, name) not in failed]
            report(f"  {_taken(run)}{_left(file.runs, case, going, plan.repeats[case.workflow])}")
        if any(run.case == case for run in file.runs):
            yield case, summarise(file.runs, case)
    if failed:
        named = "; ".join(f"{system} with {case}" for case, system in failed)
        raise IncompleteError(f"could not be measured: {named}", "What ended each is said above, where it was tried")


def _order(plan: Plan, case: Case) -> Iterator[tuple[str, int]]:
    """(system, repeat) of all runs of a case."""
    for repeat in range(plan.repeats[case.workflow]):
        first = repeat % len(plan.systems)
        for system in (*plan.systems[first:], *plan.systems[:first]):
            yield system, repeat


def _taken(run: Run) -> str:
    """How long a run took, and whether its figures can be trusted."""
    words = f"took {_duration(run.wall_s)}"
    if run.other_cores is not None and run.other_cores > MOST_OTHER_CORES:
        words += f"; other programs kept {run.other_cores:.2f} cores busy, so its figures are not this machine's best"
    return words


def _left(runs: Sequence[Run], case: Case, systems: Sequence[str], repeats: int) -> str:
    """About how long the rest of a case takes, where every system has been run once."""
    taken = [[run.wall_s for run in runs if (run.case, run.system) == (case, system)] for system in systems]
    if not all(taken):
        return ""
    left_s = sum(statistics.median(times) * max(0, repeats - len(times)) for times in taken)
    return f"; about {_duration(left_s)} of this case are left" if left_s else ""


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
