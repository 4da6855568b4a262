"""What runs come to: latencies and throughput of each system, ratios, break-even, and how cost grows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from icarus_local.bench.break_even import estimated_break_even, measured_break_even
from icarus_local.bench.records import Case, Record, Run, Turned
from icarus_local.bench.system import CAP, ICARUS, SEPARATE, SEPARATE_CAPPED, SWAP, SYSTEMS

Figures = dict[str, Any]
_LEAST_POINTS = 3  # of a fit


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, interpolated between neighbours."""
    return float(np.percentile(np.asarray(values), percent))


def summary(runs: Sequence[Run]) -> Figures:
    """All runs of a measurement: `results` by case, and `growth`."""
    results = [summarise(runs, case) for case in dict.fromkeys(run.case for run in runs)]
    return {"results": results, "growth": growth(results)}


def figures(record: Record) -> Figures:
    """One run: warm turns by themselves, then the cold ones, then all."""
    warm = [turn for turn in record.turns if not turn.cold]
    cold = [turn for turn in record.turns if turn.cold]
    latencies = [turn.latency_s for turn in warm]
    return {
        "p50_s": percentile(latencies, 50),
        "p95_s": percentile(latencies, 95),
        "mean_s": statistics.fmean(latencies),
        "ttft_s": statistics.median(turn.ttft_s for turn in warm),
        "tok_s": _tok_s(warm),
        "encoded": sum(turn.encoded for turn in warm),
        "turns": len(warm),
        "kv_bytes": record.kv_bytes,
        "kv_used_bytes": record.kv_used_bytes,
        "rss_bytes": record.rss_bytes,
        "cold": {
            "mean_s": statistics.fmean(turn.latency_s for turn in cold),
            "ttft_s": statistics.median(turn.ttft_s for turn in cold),
            "encoded": sum(turn.encoded for turn in cold),
            "turns": len(cold),
        },
        "total_s": sum(turn.busy_s for turn in record.turns),
    }


def _tok_s(turns: Sequence[Turned]) -> float:
    """Output tokens for each second that the system worked, prompts included."""
    return sum(turn.generated for turn in turns) / sum(turn.busy_s for turn in turns)


def _median(repeats: Sequence[Any]) -> Any:
    """Repeats of one figure, or of a table of figures, as their median; None where one of them is not known."""
    first = repeats[0]
    if isinstance(first, dict):
        return {key: _median([repeat[key] for repeat in repeats]) for key in first}
    if any(value is None for value in repeats):
        return None
    value = statistics.median(repeats)
    return round(value) if isinstance(first, int) else value


def summarise(runs: Sequence[Run], case: Case) -> Figures:
    """A case: each system's medians over repeats, what icarus gains over each, and where it loses."""
    systems = _medians(runs, case)
    of_case = [run for run in runs if run.case == case]
    found: Figures = {
        **case.model_dump(),
        "repeats": {system: sum(run.system == system for run in of_case) for system in systems},
        "other_cores": max((run.other_cores for run in of_case if run.other_cores is not None), default=None),
        "systems": systems,
    }
    ours = systems.get(ICARUS)
    if ours is None:
        return found
    others = {name: theirs for name, theirs in systems.items() if name != ICARUS}
    found["gain"] = {name: _gain(ours, theirs) for name, theirs in others.items()}
    found["slower_than"] = [name for name, gain in found["gain"].items() if gain["mean"] < 1]
    found["break_even"] = _break_even(runs, case, ours["mean_s"])
    return found


def _medians(runs: Sequence[Run], case: Case) -> dict[str, Figures]:
    """By system, its figures of a case."""
    found = {}
    for system in SYSTEMS:
        records = [run.record for run in runs if (run.case, run.system) == (case, system)]
        if records:
            found[system] = _median([figures(record) for record in records])
    return found


def _break_even(runs: Sequence[Run], case: Case, our_mean_s: float) -> Figures:
    """`measured_agents` of all cases that differ from this one in agents alone, `estimated_agents` from it alone."""
    points = []
    for other in {run.case for run in runs if run.case.model_copy(update={"agents": case.agents}) == case}:
        means = {name: system["mean_s"] for name, system in _medians(runs, other).items()}
        if ICARUS in means and SEPARATE in means:
            points.append((other.agents, means[ICARUS], means[SEPARATE]))
    separate = [run.record for run in runs if (run.case, run.system) == (case, SEPARATE)]
    return {
        "measured_agents": measured_break_even(sorted(points)),
        "measured_at": sorted(agents for agents, _, _ in points),
        "estimated_agents": estimated_break_even(our_mean_s, separate, case.agents) if separate else None,
    }


def _gain(ours: Figures, theirs: Figures) -> Figures:
    """How many times lower a latency is here, or higher a throughput; bytes as theirs over ours."""
    rss = None if ours["rss_bytes"] is None or theirs["rss_bytes"] is None else theirs["rss_bytes"] / ours["rss_bytes"]
    return {
        "p50": theirs["p50_s"] / ours["p50_s"],
        "p95": theirs["p95_s"] / ours["p95_s"],
        "mean": theirs["mean_s"] / ours["mean_s"],
        "ttft": theirs["ttft_s"] / ours["ttft_s"],
        "tok_s": ours["tok_s"] / theirs["tok_s"],
        "total": theirs["total_s"] / ours["total_s"],
        "kv_bytes": theirs["kv_bytes"] / ours["kv_bytes"],
        "rss_bytes": rss,
    }


_AXES = ("context", "agents", "answer_tokens")


def growth(results: Sequence[Figures]) -> list[Figures]:
    """How the mean latency of a turn grows along each axis that has at least three points, all else being the same.

    `points` are those of `fitted`, `exponent` is theirs.
    """
    found = []
    for axis in _AXES:
        for fixed, points in groups(results, axis):
            for system in SYSTEMS:
                xy = fitted(axis, system, points)
                if xy:
                    found.append({"axis": axis, **fixed, "system": system, "points": xy, "exponent": exponent(xy)})
    return found


def fitted(axis: str, system: str, points: Sequence[Figures]) -> list[tuple[int, float]]:
    """(axis, mean seconds of a warm turn) of the results that an exponent may be taken of; none where these are few.

    Along agents a step is no power: one agent never swaps, and up to `CAP` agents none of them is evicted.
    """
    least = {SWAP: 2, SEPARATE_CAPPED: CAP + 1}.get(system, 1) if axis == "agents" else 1
    xy = [(p[axis], p["systems"][system]["mean_s"]) for p in points if p[axis] >= least and system in p["systems"]]
    return xy if len(xy) >= _LEAST_POINTS else []


def groups(results: Sequence[Figures], axis: str) -> list[tuple[Figures, list[Figures]]]:
    """Results that differ along `axis` alone, in its order, with what they have in common."""
    keys = [key for key in ("workflow", *_AXES, "warm_turns") if key != axis]
    found: dict[tuple[Any, ...], list[Figures]] = {}
    for result in results:
        if result[axis] is not None:
            found.setdefault(tuple(result[key] for key in keys), []).append(result)
    return [(dict(zip(keys, key, strict=True)), sorted(group, key=itemgetter(axis))) for key, group in found.items()]


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The slope of log y over log x, by least squares: 0 is constant, 1 linear."""
    x, y = np.log(np.asarray(points, float)).T
    return float(np.polyfit(x, y, 1)[0])
