"""`icarus-local bench workflow`, `plot` and `roofline`: many agents against many caches, on the user's own machine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import click

from icarus_local.bench.machine import describe
from icarus_local.bench.measurement import Plan, cases, check, identity, measure, prepared
from icarus_local.bench.peaks import COLUMNS, SIDE
from icarus_local.bench.plots import draw
from icarus_local.bench.records import Case
from icarus_local.bench.report import table
from icarus_local.bench.roofline import Roofline, roofline
from icarus_local.bench.runs_file import RunsFile, read_report
from icarus_local.bench.system import IN_PROCESS, LLAMA_SERVER, SYSTEMS
from icarus_local.bench.workflow import Workflow, read_workflow, shipped
from icarus_local.cli.engine_options import EngineOptions
from icarus_local.errors import RequestError

# What `--quick` measures where nothing else is said: ten minutes on two cores with the embedded base.
_QUICK_AGENTS = 3
_QUICK_CONTEXTS = {"rounds": (1024, 4096)}
_QUICK_CONTEXT = (1024,)
_LEAST_CONTEXT = 256  # cells of the engine that is asked about the base


@dataclass(frozen=True, slots=True)
class WorkflowOptions:
    """What to measure, as given on the command line; empty and None leave it to the workflow's file.

    Attributes:
        names: of shipped workflows, or paths of one's own. systems: names with commas between them.
        turns_warm: the least number of warm turns. out: the file that is written, and gone on with.
        llama_server: its program, where it is measured too.
    """

    names: tuple[str, ...]
    agents: tuple[int, ...]
    contexts: tuple[int, ...]
    answer_tokens: tuple[int, ...]
    turns_warm: int | None
    systems: str | None
    llama_server: Path | None
    repeats: int | None
    quick: bool
    rank: int
    out: Path | None
    as_json: bool


def run_bench_workflow(engine_options: EngineOptions, options: WorkflowOptions) -> None:
    """Measures what is not in `--out` yet, and prints every case.

    Raises:
        IncompleteError: systems failed, after everything else was measured.
    """
    plan = _plan(options)
    with ExitStack() as stack:
        # The engine goes before anything is measured: what it says of the base is all that is needed.
        with _on_cpu(engine_options, _LEAST_CONTEXT).open() as engine:
            check(plan, engine.base.hp.n_vocab, engine.base.hp.n_ctx_train)
            most = max(case.agents for case in plan.cases)
            setup = stack.enter_context(prepared(engine, most, options.rank, options.llama_server))
        machine = describe()
        known = identity(setup, options.rank, plan.workflows)
        file = stack.enter_context(RunsFile(options.out, known, machine))
        if not options.as_json:
            click.echo(
                f"{setup.base.name}, {setup.n_threads} threads on {machine['cores']} cores of {machine['cpu']}, "
                f"{setup.kv_type} KV, rank {options.rank}"
            )
        measured_on = {"machine": machine, "identity": file.identity}
        for case, result in measure(plan, setup, file, lambda words: click.echo(words, err=True)):
            click.echo(json.dumps({**result, **measured_on}) if options.as_json else table(case, result))


def _on_cpu(options: EngineOptions, n_ctx: int) -> EngineOptions:
    """The options for a measurement beside llama.cpp, which is on the CPU here."""
    if options.device not in ("auto", "cpu") or options.gpu_layers:
        raise RequestError("all systems are measured on the CPU here", "Leave out --device and --gpu-layers")
    if options.max_adapters is not None:
        raise RequestError("every system holds the adapters of all its agents here", "Leave out --max-adapters")
    return replace(options, device="cpu", gpu_layers=None, n_ctx=n_ctx)


def _plan(options: WorkflowOptions) -> Plan:
    names = options.names or (tuple(shipped()) if options.quick else ())
    if not names:
        raise RequestError(
            "no workflow was named", f"There are {', '.join(shipped())}; or give --quick for all of them"
        )
    workflows: dict[str, Workflow] = {}
    for name in names:
        workflow = read_workflow(name)
        if workflows.setdefault(workflow.name, workflow) != workflow:
            raise RequestError(f"two workflows have the name {workflow.name}")
    found: list[Case] = []
    for workflow in workflows.values():
        agents, contexts, warm = options.agents, options.contexts, options.turns_warm
        if options.quick:
            agents = agents or ((workflow.agents,) if workflow.names_speakers else (_QUICK_AGENTS,))
            contexts, warm = contexts or _QUICK_CONTEXTS.get(workflow.name, _QUICK_CONTEXT), warm or 1
        found += cases(workflow, agents, contexts, options.answer_tokens, warm)
    repeats = {w.name: options.repeats or (1 if options.quick else w.repeats) for w in workflows.values()}
    systems = _systems(options.systems, options.llama_server is not None)
    return Plan(tuple(dict.fromkeys(found)), systems, workflows, repeats)


def _systems(text: str | None, with_server: bool) -> tuple[str, ...]:
    if text is None:
        return SYSTEMS if with_server else IN_PROCESS
    named = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in named if name not in SYSTEMS]
    if unknown or not named:
        what = f"there is no system {', '.join(unknown)}" if unknown else "no system was named"
        raise RequestError(what, f"There are {', '.join(SYSTEMS)}")
    if LLAMA_SERVER in named and not with_server:
        raise RequestError(f"{LLAMA_SERVER} is a program of its own", "Give its path with --llama-server")
    return named


def run_bench_plot(file: Path, folder: Path) -> None:
    """Draws the plots of a measurement's file and names them."""
    for path in draw(read_report(file), folder):
        click.echo(path)


def run_bench_roofline(
    engine_options: EngineOptions, contexts: Sequence[int], rank: int, repeats: int, as_json: bool
) -> None:
    """Prints how far steps are from what the machine allows; one JSON object per length of context where asked for."""
    with _on_cpu(engine_options, max(contexts) + 1).open() as engine:
        for n_context in contexts:
            found = roofline(engine, n_context, rank, repeats)
            click.echo(json.dumps(dataclasses.asdict(found)) if as_json else _roofline_table(found, engine.n_threads))


def _roofline_table(found: Roofline, n_threads: int) -> str:
    peaks = found.peaks
    lines = [
        f"{n_threads} threads: {peaks.copy_bytes_s / 1e9:.1f} GB/s copied (read and written), "
        f"{peaks.read_bytes_s / 1e9:.1f} GB/s read; {peaks.ops_s / 1e9:.0f} billion operations per second in ggml's "
        f"product of a {SIDE} x {SIDE} matrix ({peaks.weight_type}{', repacked' if peaks.repacked else ''}) with "
        f"{COLUMNS} columns",
        f"context of {found.n_context} tokens, rank {found.rank}",
        f"  {'':<12}{'MB read':>10}{'Gop':>10}{'memory ms':>12}{'arithm. ms':>12}{'measured':>10}{'x floor':>9}",
    ]
    lines += [
        f"  {floor.step:<12}{floor.n_bytes / 1e6:>10.1f}{floor.n_ops / 1e9:>10.2f}{1e3 * floor.memory_s:>12.2f}"
        f"{1e3 * floor.arithmetic_s:>12.2f}{1e3 * floor.measured_s:>10.2f}{floor.times:>9.2f}"
        for floor in found.floors
    ]
    return "\n".join(lines)
