"""Plots are made of a measurement's file alone, and say of growth only what is one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from icarus_local.bench.plots import draw
from icarus_local.cli.main import main
from tests.bench.reports import report, written

ALL = ("icarus", "swap", "separate", "separate_capped")
AGENTS = [{"agents": n} for n in (1, 2, 4, 8)]


def plot(file: Path, folder: Path) -> Result:
    return CliRunner().invoke(main, ["bench", "plot", str(file), "-o", str(folder)])


def test_the_same_file_gives_the_same_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "new" / "plots"
    file = written(tmp_path / "runs.json", report(*AGENTS, *({"context": n} for n in (1024, 8192))))
    result = plot(file, folder)
    assert result.exit_code == 0, result.output
    names = ["rounds-latency-agents-context4096", "rounds-latency-context-agents8", "rounds-memory-agents-context4096"]
    files = [folder / f"{name}.{form}" for name in names for form in ("png", "svg")]
    assert sorted(files) == sorted(folder.iterdir())
    assert sorted(map(str, files)) == sorted(result.stdout.split())
    first = {path: path.read_bytes() for path in files}
    for path, content in first.items():
        assert content.startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")
    latency = (folder / "rounds-latency-agents-context4096.svg").read_text("utf-8")
    for words in ("separate, mean with exponent 1.00", "icarus, mean with exponent 0.00", "rounds, 4,096 tokens"):
        assert words in latency
    plot(file, folder)
    assert {path: path.read_bytes() for path in files} == first


def test_a_step_along_agents_is_no_growth(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(report(*AGENTS, {"agents": 16}, systems=ALL), tmp_path)
    latency = (tmp_path / "rounds-latency-agents-context4096.svg").read_text("utf-8")
    for words in ("swap, mean with exponent 0.00 from 2 on", "separate_capped, mean with exponent 0.00 from 4 on"):
        assert words in latency
    # Two points that are no step do not make an exponent.
    draw(report(*AGENTS, systems=ALL), tmp_path)
    latency = (tmp_path / "rounds-latency-agents-context4096.svg").read_text("utf-8")
    assert "swap, mean with exponent 0.00 from 2 on" in latency
    assert "separate_capped" in latency
    assert "separate_capped, mean" not in latency


def test_warm_turns_are_named_where_they_tell_plots_apart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = draw(report(*AGENTS, *({**agents, "warm_turns": 2} for agents in AGENTS)), tmp_path)
    latency = sorted(file.name for file in files if "latency" in file.name and file.suffix == ".svg")
    assert latency == [f"rounds-latency-agents-context4096-warm{n}.svg" for n in (2, 40)]


def test_a_plot_of_nothing_and_a_missing_matplotlib_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "runs.json", report({"agents": 1}))
    assert "nothing to draw" in plot(file, tmp_path).output
    assert "cannot be read" in plot(tmp_path / "gone.json", tmp_path).output
    written(file, report({"agents": 1}, {"agents": 2}))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    refused = plot(file, tmp_path)
    assert refused.exit_code == 1
    assert "pip install 'icarus-local[bench]'" in refused.output
