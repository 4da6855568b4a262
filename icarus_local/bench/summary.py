"""What runs come to: latencies and throughput of each system, ratios, break-even, and how cost grows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from icarus_local.bench.records import Case, Record, Run, Turned
from icarus_local.bench.system import ICARUS, SEPARATE, SYSTEMS

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
    systems: dict[str, Figures] = {}
    repeats: dict[str, int] = {}
    for system in SYSTEMS:
        records = [run.record for run in runs if run.case == case and run.system == system]
        if records:
            systems[system] = _median([figures(record) for record in records])
            repeats[system] = len(records)
    found: Figures = {**case.model_dump(), "repeats": repeats, "systems": systems}
    ours = systems.get(ICARUS)
    if ours is None:
        return found
    others = {name: theirs for name, theirs in systems.items() if name != ICARUS}
    found["gain"] = {name: _gain(ours, theirs) for name, theirs in others.items()}
    found["slower_than"] = [name for name, gain in found["gain"].items() if gain["mean"] < 1]
    records = [run.record for run in runs if run.case == case and run.system == SEPARATE]
    found["break_even_agents"] = break_even(ours["mean_s"], records, case.agents) if records else None
    return found


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


def break_even(our_mean_s: float, separate: Sequence[Record], agents: int) -> int | None:
    """The least number of agents whose warm turns are not slower here than with separate caches; None if not known.

    With a cache of its own, an agent encodes what all others said since it spoke, so its turn grows by the same time
    with each agent more. Here a turn does not depend on the number of agents.
    """
    warm = [turn for record in separate for turn in record.turns if not turn.cold]
    queued = any(turn.latency_s > 1.5 * turn.busy_s for turn in warm)
    # One agent has nobody to read, and answers at once wait for each other.
    if agents < 2 or queued:
        return None
    latency, prompt_s, encoded, answer = (
        statistics.fmean(values)
        for values in zip(*[(turn.latency_s, turn.ttft_s, turn.encoded, turn.generated) for turn in warm], strict=True)
    )
    # A turn encodes a prompt for each agent, an answer for each but its own, and the last token that it said itself.
    tokens_of_an_agent = (encoded + answer - 1) / agents
    more_s = prompt_s / encoded * tokens_of_an_agent
    return max(1, math.ceil(agents - (latency - our_mean_s) / more_s))


_AXES = ("context", "agents", "answer_tokens")


def growth(results: Sequence[Figures]) -> list[Figures]:
    """How the mean latency of a turn grows along each axis that has at least three points, all else being the same.

    `exponent` is the slope of log latency over log of the axis, by least squares: 0 is constant, 1 linear.
    """
    found = []
    for axis in _AXES:
        for fixed, points in groups(results, axis):
            if len(points) < _LEAST_POINTS:
                continue
            for system in SYSTEMS:
                xy = [(p[axis], p["systems"][system]["mean_s"]) for p in points if system in p["systems"]]
                if len(xy) >= _LEAST_POINTS:
                    found.append({"axis": axis, **fixed, "system": system, "points": xy, "exponent": exponent(xy)})
    return found


def groups(results: Sequence[Figures], axis: str) -> list[tuple[Figures, list[Figures]]]:
    """Results that differ along `axis` alone, in its order, with what they have in common."""
    keys = [key for key in ("workflow", *_AXES, "warm_turns") if key != axis]
    found: dict[tuple[Any, ...], list[Figures]] = {}
    for result in results:
        if result[axis] is not None:
            found.setdefault(tuple(result[key] for key in keys), []).append(result)
    return [(dict(zip(keys, key, strict=True)), sorted(group, key=itemgetter(axis))) for key, group in found.items()]


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The slope of log y over log x, by least squares."""
    x, y = np.log(np.asarray(points, float)).T
    return float(np.polyfit(x, y, 1)[0])
