"""Plots of a measurement's file, as PNG and SVG: latency against agents, context and answers, memory against agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icarus_local.bench.summary import exponent, fitted, groups
from icarus_local.bench.system import SYSTEMS
from icarus_local.errors import IcarusError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LABELS = {"agents": "agents", "context": "tokens of context", "answer_tokens": "tokens of an answer"}
_COLOURS = {
    "icarus": "#0072b2",
    "swap": "#d55e00",
    "separate": "#009e73",
    "separate_capped": "#cc79a7",
    "llama_server": "#e69f00",
}
_MARKERS = {"icarus": "o", "swap": "s", "separate": "^", "separate_capped": "v", "llama_server": "D"}
_LEAST_POINTS = 2
_FORMATS = ("png", "svg")


class PlotError(IcarusError):
    """Plots cannot be drawn."""


@dataclass(frozen=True, slots=True)
class Plot:
    """What is drawn over an axis: a figure of each system, and in dashes a second one where there is one."""

    kind: str
    label: str
    figure: str
    dashed: str | None
    scale: float
    axes: tuple[str, ...]


_PLOTS = (
    Plot("latency", "seconds of a warm turn: median, P95 dashed", "p50_s", "p95_s", 1.0, ("agents", "context")),
    Plot("answers", "seconds of a warm turn: mean", "mean_s", None, 1.0, ("answer_tokens",)),
    Plot("memory", "MiB of K and V set aside; resident in all dashed", "kv_bytes", "rss_bytes", 2.0**-20, ("agents",)),
)


def draw(report: dict[str, Any], folder: Path) -> list[Path]:
    """Draws every plot that a report has at least two points for; gives the files.

    Args:
        report: as `read_report` gives it. folder: made where it is missing.

    Raises:
        PlotError: matplotlib is missing, the report has one point of everything, or a file cannot be written.
    """
    files = []
    results = report.get("results", [])
    for plot in _PLOTS:
        for axis in plot.axes:
            for fixed, points in groups(results, axis):
                if len(points) >= _LEAST_POINTS:
                    files += _draw(plot, axis, _named(fixed, results), points, folder)
    if not files:
        raise PlotError(
            "there is nothing to draw: no two cases differ in agents, context or answers alone",
            "Measure more with `bench workflow --out`, such as --agents 1 --agents 2 --agents 4 --agents 8",
        )
    return files


def _named(fixed: dict[str, Any], results: Sequence[Any]) -> dict[str, Any]:
    """What is told of a plot: warm turns only where they tell it from another one."""
    known = {result["warm_turns"] for result in results if result["workflow"] == fixed["workflow"]}
    return fixed if len(known) > 1 else {**fixed, "warm_turns": None}


def _draw(plot: Plot, axis: str, fixed: dict[str, Any], points: Sequence[Any], folder: Path) -> list[Path]:
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError("matplotlib is not installed", "pip install 'icarus-local[bench]'") from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for system in SYSTEMS:
        _lines(axes, plot, axis, system, points)
    axes.set(xscale="log", yscale="log", xlabel=_LABELS[axis], ylabel=plot.label, title=_title(fixed))
    ticks = [point[axis] for point in points]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    name = "-".join([fixed["workflow"], plot.kind, axis.replace("_", "-"), *_distinct(fixed)])
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The same report gives the same file: no date, and no random ids.
        with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
            for form in _FORMATS:
                files.append(folder / f"{name}.{form}")
                figure.savefig(files[-1], dpi=150, metadata={"Date": None} if form == "svg" else None)
    except OSError as error:
        raise PlotError(f"{folder} cannot be written into: {error.strerror}", "Give another folder with -o") from error
    return files


def _lines(axes: Axes, plot: Plot, axis: str, system: str, points: Sequence[Any]) -> None:
    found = [(point[axis], point["systems"][system]) for point in points if system in point["systems"]]
    for key, style in ((plot.figure, "-"), (plot.dashed, "--")):
        xy = [(x, plot.scale * figures[key]) for x, figures in found if key and figures[key] is not None]
        if not xy:
            continue
        label = system if key == plot.figure else None
        fit = fitted(axis, system, points) if label and plot.scale == 1 else []
        if fit:
            since = f" from {fit[0][0]} on" if fit[0][0] != found[0][0] else ""
            slope = round(exponent(fit), 2) + 0.0  # no -0
            label = f"{system}, mean with exponent {slope:.2f}{since}"
        # Lines that lie on each other stay visible: the first system is the smallest, and on top.
        depth = SYSTEMS.index(system)
        colour, marker = _COLOURS[system], _MARKERS[system]
        axes.plot(
            *zip(*xy, strict=True),
            style,
            label=label,
            color=colour,
            marker=marker,
            markersize=5 + 2 * depth,
            zorder=9 - depth,
        )


def _distinct(fixed: dict[str, Any]) -> list[str]:
    short = {"agents": "agents", "context": "context", "answer_tokens": "answers", "warm_turns": "warm"}
    return [f"{words}{fixed[key]}" for key, words in short.items() if fixed.get(key) is not None]


def _title(fixed: dict[str, Any]) -> str:
    words = {"agents": "agents", "context": "tokens of context", "answer_tokens": "tokens an answer"}
    known = [f"{fixed[key]:,} {what}" for key, what in words.items() if fixed.get(key) is not None]
    return ", ".join([fixed["workflow"], *known])
