"""A measured case as a table, with what it says about when to use one cache for all agents and when not."""

from __future__ import annotations

import math

from icarus_local.bench.load import MOST_OTHER_CORES
from icarus_local.bench.records import Case
from icarus_local.bench.summary import Figures
from icarus_local.bench.system import ICARUS, SEPARATE
from icarus_local.chat.figures import counted

_COLUMNS = ("P50 s", "P95 s", "mean s", "TTFT s", "tok/s", "encoded", "cold s", "KV MiB", "RSS MiB")
_WIDTH = 9
_NAME = 17


def table(case: Case, result: Figures) -> str:
    """The systems of a case that `summarise` gave, one a line, and what they come to."""
    systems = result["systems"]
    one = next(iter(systems.values()))
    repeats = max(result["repeats"].values())
    lines = [
        f"{case}; {one['cold']['turns']} cold and {one['turns']} warm turns, "
        + (f"medians of {repeats} repeats" if repeats > 1 else "one repeat"),
        f"  {'':<{_NAME}}" + "".join(f"{column:>{_WIDTH}}" for column in _COLUMNS),
    ]
    lines += [f"  {name:<{_NAME}}" + _cells(figures) for name, figures in systems.items()]
    if ICARUS in systems:
        lines += _gains(result)
    others = result["other_cores"]
    if others is not None and others > MOST_OTHER_CORES:
        lines.append(f"  other programs kept up to {others:.2f} cores busy meanwhile: measure again on an idle machine")
    return "\n".join(lines)


def _cells(figures: Figures) -> str:
    rss = figures["rss_bytes"]
    cells = [
        *(f"{figures[key]:.3f}" for key in ("p50_s", "p95_s", "mean_s", "ttft_s")),
        f"{figures['tok_s']:.1f}",
        f"{figures['encoded'] / figures['turns']:.0f}",
        f"{figures['cold']['mean_s']:.3f}",
        f"{figures['kv_bytes'] / 2**20:.1f}",
        "" if rss is None else f"{rss / 2**20:.0f}",
    ]
    return "".join(f"{cell:>{_WIDTH}}" for cell in cells)


def _gains(result: Figures) -> list[str]:
    lines = []
    for name, gain in result["gain"].items():
        rss = gain["rss_bytes"]
        lines.append(
            f"  against {name}: P95 {gain['p95']:.2f} x lower, {gain['tok_s']:.2f} x the tokens per second, "
            f"{gain['total']:.2f} x faster with the cold turns; it takes {gain['kv_bytes']:.2f} x the K and V"
            + ("" if rss is None else f" and {rss:.2f} x the resident memory")
        )
    if result["slower_than"]:
        lines.append(f"  here icarus is slower than {', '.join(result['slower_than'])}")
    return [*lines, *_break_even(result["break_even"])]


def _break_even(found: Figures) -> list[str]:
    """From how many agents on one cache pays: as it was measured, else as this case lets expect."""
    measured, estimated = found["measured_agents"], found["estimated_agents"]
    agents = estimated if measured is None else math.ceil(measured)
    if agents is None:
        return []
    at = ", ".join(map(str, found["measured_at"]))
    source = "an estimate from this case alone" if measured is None else f"measured with {at}"
    return [
        f"  its warm turns are as fast as with {SEPARATE} caches, or faster, from {counted(agents, 'agent')} on "
        f"({source})"
    ]
