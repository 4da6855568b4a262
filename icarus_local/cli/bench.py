"""`icarus-local bench`: what steps cost beside llama.cpp's, and what drafts gain, on the user's own machine."""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import click

from icarus_local.bench.drafts import DraftReport, measure
from icarus_local.bench.step import AGENTS, ROOM, StepBench, StepReport
from icarus_local.chat.session import Session
from icarus_local.cli.engine_options import EngineOptions
from icarus_local.cli.opening import load
from icarus_local.errors import RequestError


def run_bench_step(options: EngineOptions, contexts: Sequence[int], rank: int, repeats: int, as_json: bool) -> None:
    """Measures and prints; one JSON object per length of context where asked for."""
    if options.max_adapters is not None and options.max_adapters < max(AGENTS):
        raise RequestError(f"--max-adapters is {options.max_adapters}, and {max(AGENTS)} agents are measured at once")
    options = replace(options, n_ctx=max(contexts) + ROOM)
    start = time.perf_counter()
    with options.open() as engine:
        load_s = time.perf_counter() - start
        if not as_json:
            click.echo(
                f"{engine.base.path.name}, {engine.n_threads} threads of {platform.machine()}, "
                f"{engine.kv_type} KV, rank {rank}; loaded in {load_s:.2f} s: {engine.base.placement.reason}"
                + ("" if engine.base.placement.head.is_cpu else "; llama.cpp on the CPU")
            )
        for n_context in contexts:
            with StepBench(engine, n_context, rank) as bench:
                report = bench.run(repeats)
            as_dict = {"load_s": load_s, **dataclasses.asdict(report)}
            click.echo(json.dumps(as_dict) if as_json else _step_table(report))


def _step_table(report: StepReport) -> str:
    def row(what: str, ours: float, theirs: float, ratio: float) -> str:
        return f"  {what:<44}{1e3 * ours:>10.1f}{1e3 * theirs:>10.1f}{ratio:>8.2f}"

    one = report.row_s[1]
    lines = [
        f"context of {report.n_context} tokens{'ms here':>29}{'llama.cpp':>10}{'ratio':>8}",
        row("prefill", *report.prefill_s, report.prefill_ratio),
        row("one row", *report.row_s, report.row_ratio),
        row("encoder and decoder row with an adapter", report.dual_s, one, report.dual_ratio),
    ]
    lines += [
        f"  {f'{k} agents at once, a token each':<44}{1e3 * seconds:>10.1f}{'':>10}{'':>8}"
        f"  {report.agents_gain[k]:.2f} x the tokens per second of one after another"
        for k, seconds in report.agents_s.items()
    ]
    lines.append(
        f"  Python's share of a step {100 * report.python_share:.1f} %; an adapter is added in "
        f"{1e3 * report.add_adapter_s:.0f} ms"
    )
    return "\n".join(lines)


def run_bench_drafts(options: EngineOptions, agent: str, repeats: int, as_json: bool) -> None:
    """Measures and prints what drafts gain on an answer that repeats a file."""
    with ExitStack() as stack:
        loaded = load(options, [agent], stack)
        (ready,) = loaded.roster.agents
        if ready.adapter_id is None:
            raise RequestError(f"@{ready.name} has no adapter: for the base nothing is drafted", "Give another --agent")

        def make(drafts: bool) -> Session:
            return Session(loaded.engine, loaded.tokenizer, loaded.template, loaded.roster, speculate=drafts)

        report = measure(make, ready.name, repeats)
    click.echo(json.dumps(dataclasses.asdict(report)) if as_json else _draft_line(ready.name, report))


def _draft_line(agent: str, report: DraftReport) -> str:
    return (
        f"@{agent} edits a file, {report.generated} tokens: {report.plain_tok_s:.1f} tok/s without drafts, "
        f"{report.drafted_tok_s:.1f} with ({report.gain:.2f} x; {report.accepted} of {report.drafted} drafted tokens "
        f"were said), {'the same text' if report.exact else 'where texts may differ by rounding'}"
    )
