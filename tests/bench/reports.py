"""Files of measurements that were never made: what `bench workflow --out` would write of given latencies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from icarus_local.bench.records import Case, Record, Run, Turned
from icarus_local.bench.runs_file import FORMAT
from icarus_local.bench.summary import summary

IDENTITY = {"base": "b", "kv_type": "f16", "threads": 2, "rank": 16, "workflows": {"rounds": "w"}, "cpu": "a CPU"}


def case(**given: Any) -> Case:
    """Eight agents over 4,096 tokens, where nothing else is said."""
    plain = {"workflow": "rounds", "agents": 8, "context": 4096, "answer_tokens": None, "warm_turns": 40}
    return Case(**{**plain, **given})


def latency(system: str, of: Case) -> float:
    """Grows with the context in icarus, with the agents in separate, and is a step along agents in the others."""
    alone = 0.3 * of.agents
    return {
        "icarus": of.context / 4096,
        "separate": alone,
        "swap": 20.0 if of.agents > 1 else 0.3,
        "separate_capped": 20.0 if of.agents > 2 else alone,
    }[system]


def run(system: str, of: Case, seconds: float, repeat: int = 0, other_cores: float | None = None) -> Run:
    """A run whose cold and warm turn took as long."""
    kv_bytes = (of.agents if system == "separate" else 1) << 20
    turns = tuple(
        Turned(agent=0, cold=cold, latency_s=seconds, ttft_s=seconds / 2, busy_s=seconds, encoded=10, generated=32)
        for cold in (True, False)
    )
    record = Record(turns=turns, kv_bytes=kv_bytes, kv_used_bytes=kv_bytes, rss_bytes=None)
    return Run(case=of, system=system, repeat=repeat, record=record, wall_s=1.0, other_cores=other_cores)


def report(
    *cases: dict[str, Any],
    systems: tuple[str, ...] = ("icarus", "separate"),
    slower: float = 1.0,
    seconds: Callable[[str, Case], float] = latency,
    **identity: Any,
) -> dict[str, Any]:
    """The file's content; icarus is `slower` times slower than `seconds` says."""
    runs = [
        run(system, case(**given), seconds(system, case(**given)) * (slower if system == "icarus" else 1))
        for given in cases
        for system in systems
    ]
    return {
        "format": FORMAT,
        "identity": {**IDENTITY, **identity},
        "machine": {},
        **summary(runs),
        "runs": [run.model_dump() for run in runs],
    }


def written(path: Path, content: dict[str, Any]) -> Path:
    """A file of that content."""
    path.write_text(json.dumps(content), "utf-8")
    return path
