"""Intervals and tables: known numbers come out, and a page keeps everything around them."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from icarus_local.errors import IcarusError
from icarus_models.cli import main
from icarus_models.evaluation.evaluate import read_scores
from icarus_models.evaluation.statistics import interval, paired
from icarus_models.evaluation.table import BEGIN, END, write_tables


def test_an_interval_is_that_of_the_mean() -> None:
    rng = random.Random(0)
    values = [float(rng.random() < 0.7) for _ in range(400)]
    found = interval(values)
    error = 1.96 * np.std(values) / 20
    assert found.mean == pytest.approx(np.mean(values))
    assert found.low == pytest.approx(found.mean - error, abs=0.01)
    assert found.high == pytest.approx(found.mean + error, abs=0.01)
    assert interval(values) == found
    assert interval([1.0] * 50) == interval([1.0] * 60)


def test_a_paired_difference_is_narrower_than_two_intervals() -> None:
    rng = random.Random(1)
    a = [float(rng.random() < 0.5) for _ in range(300)]
    b = [value if index % 20 else 1 - value for index, value in enumerate(a)]
    found, one = paired(a, b), interval(a)
    assert found.mean == pytest.approx(np.mean(a) - np.mean(b))
    assert found.high - found.low < 0.6 * (one.high - one.low)
    with pytest.raises(ValueError, match="not of the same items"):
        paired(a, b[:-1])


def scores(folder: Path, task: str, system: str, agent: str, right: int, **others: Any) -> Path:
    items = [{"id": f"i{i}", "score": float(i < right)} for i in range(200)]
    if task == "reviewer":
        items = [{**one, "line": 1.0} if i % 2 else {**one, "intact": 0.0} for i, one in enumerate(items)]  # type: ignore[dict-item]
    content = {"task": task, "system": system, "agent": agent, "items_sha256": "x", "items": items, **others}
    folder.mkdir(exist_ok=True)
    path = folder / f"{task}.{system}-{agent}.{others.get('key', 'k')}.scores.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def run(folder: Path, base: float, trained: float, epochs: int = 1, stopped: bool = False, **others: Any) -> None:
    (folder / "adapter").mkdir(parents=True, exist_ok=True)
    facts = {
        "recipe": {"method": folder.name.rpartition("-")[2], "epochs": epochs},
        "data_sha256": {"train": "x"},
        "losses": {"heldout_base": base, "heldout_trained": trained},
        "steps": {"stopped_by_time": stopped},
        **others,
    }
    (folder / "adapter" / "icarus_run.json").write_text(json.dumps(facts), encoding="utf-8")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    results, runs = tmp_path / "results", tmp_path / "runs"
    scores(results, "coder", "base", "", 20)
    scores(results, "coder", "lora", "coder", 120)
    scores(results, "coder", "icarus", "coder", 119)
    scores(results, "coder", "icarus", "math", 10)
    scores(results, "math", "base", "", 40)
    scores(results, "math", "lora", "math", 80)
    scores(results, "math", "icarus", "math", 50)
    scores(results, "reviewer", "base", "", 1)
    run(runs / "coder-lora", 0.9, 0.7)
    run(runs / "coder-icarus", 0.9, 0.705)
    run(runs / "math-icarus", 0.9, 0.5)
    path = tmp_path / "accuracy.md"
    path.write_text(f"# Accuracy\n\nBefore.\n\n{BEGIN}\nwas here\n{END}\n\nAfter.\n", encoding="utf-8")
    return path


def test_the_tables_say_what_was_scored(page: Path) -> None:
    write_tables(page, page.parent / "results", page.parent / "runs")
    text = page.read_text("utf-8")
    assert text.startswith(f"# Accuracy\n\nBefore.\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\nAfter.\n")
    assert "was here" not in text
    coder = next(line for line in text.splitlines() if line.startswith("| coder | 200"))
    math = next(line for line in text.splitlines() if line.startswith("| math | 200"))
    assert "| 60.0 [53.0, 66.5] | 59.5 [" in coder
    assert "| −0.5 [−1.5, +0.0] ✓ |" in coder
    assert "✗" in math
    assert "| −15.0 [" in math
    assert "| ICaRus math | 5.0 | – | **25.0** |" in text
    assert "| reviewer | base | intact | 100 | 0.0 |" in text
    assert "| reviewer | base | line | 100 | 100.0 |" in text
    assert "| coder | 0.900 | 0.700 | 0.705 | 97.5 % ✓ |" in text
    assert "| math | 0.900 | – | 0.500 | – |" in text
    write_tables(page, page.parent / "results", page.parent / "runs")
    assert page.read_text("utf-8") == text


def test_where_the_ordinary_one_gained_nothing_there_is_no_share(page: Path) -> None:
    run(page.parent / "runs" / "tools-lora", 0.9, 1.1)
    run(page.parent / "runs" / "tools-icarus", 0.9, 1.2)
    write_tables(page, page.parent / "results", page.parent / "runs")
    assert "| tools | 0.900 | 1.100 | 1.200 | – (the ordinary one gained nothing) |" in page.read_text("utf-8")


def test_of_one_cell_the_newest_counts(page: Path) -> None:
    newer = scores(page.parent / "results", "coder", "icarus", "coder", 100, key="a")
    os.utime(newer, (2**31, 2**31))
    found = {(of["task"], of["system"], of["agent"]): of for of in read_scores(page.parent / "results")}
    assert sum(one["score"] for one in found["coder", "icarus", "coder"]["items"]) == 100
    write_tables(page, page.parent / "results", page.parent / "runs")
    assert "| 50.0 [" in page.read_text("utf-8")


def test_other_items_are_not_compared(page: Path) -> None:
    newer = scores(page.parent / "results", "coder", "icarus", "coder", 100, items_sha256="y")
    os.utime(newer, (2**31, 2**31))
    write_tables(page, page.parent / "results", page.parent / "runs")
    text = page.read_text("utf-8")
    assert "| coder | 200 | – | – | 50.0 [" in text, "base and ordinary LoRA answered others"
    assert "| math | 200 | 20.0 [" in text


@pytest.mark.parametrize(
    ("differs", "told"),
    [
        ({"epochs": 2}, "recipe.epochs"),
        ({"data_sha256": {"train": "y"}}, "data_sha256.train"),
        ({"stopped": True}, "steps.stopped_by_time"),
    ],
)
def test_runs_that_differ_have_no_share_of_the_gain(page: Path, differs: dict[str, Any], told: str) -> None:
    run(page.parent / "runs" / "coder-lora", 0.9, 0.7, **differs)
    write_tables(page, page.parent / "results", page.parent / "runs")
    assert f"| coder | 0.900 | 0.700 | 0.705 | – (not the same {told}) |" in page.read_text("utf-8")


@pytest.mark.parametrize("key", ["base_sha256", "llama_cpp", "icarus_local", "version"])
def test_other_bases_and_programs_are_not_compared(page: Path, key: str) -> None:
    newer = scores(page.parent / "results", "coder", "icarus", "coder", 100, **{key: "other"})
    os.utime(newer, (2**31, 2**31))
    write_tables(page, page.parent / "results", page.parent / "runs")
    text = page.read_text("utf-8")
    assert "| coder | 200 | – | – | 50.0 [" in text
    assert "| math | 200 | 20.0 [" in text


def test_what_answered_stands_above(page: Path) -> None:
    folder = page.parent / "results"
    of = {"base": "q8.gguf", "base_sha256": "ab" * 32, "llama_cpp": "0.3", "icarus_local": "0.1"}
    for path in folder.iterdir():
        path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **of}), encoding="utf-8")
    write_tables(page, folder, page.parent / "runs")
    same = "Answered by q8.gguf (SHA-256 abababababab…), icarus-local 0.1, llama-cpp-python 0.3.\n"
    assert same in page.read_text("utf-8")
    newer = scores(folder, "math", "base", "", 100, **{**of, "base": "q4.gguf", "base_sha256": "cd" * 32})
    os.utime(newer, (2**31, 2**31))
    write_tables(page, folder, page.parent / "runs")
    assert "math: answered by q4.gguf (SHA-256 cdcdcdcdcdcd…)" in page.read_text("utf-8")


def test_what_is_missing_is_told(page: Path, tmp_path: Path) -> None:
    with pytest.raises(IcarusError, match="holds no scores"):
        write_tables(page, tmp_path / "absent", tmp_path)
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(IcarusError, match="no place for the tables"):
        write_tables(page, page.parent / "results", tmp_path)
    (page.parent / "results" / "x.scores.json").write_text("{", encoding="utf-8")
    with pytest.raises(IcarusError, match="no file of scores"):
        write_tables(page, page.parent / "results", tmp_path)


def test_the_command_writes_the_page(page: Path) -> None:
    given = ["--page", str(page), "--results", str(page.parent / "results"), "--runs", str(page.parent / "runs")]
    result = CliRunner().invoke(main, ["eval", "--table", *given])
    assert result.exit_code == 0, result.output
    assert "97.5 %" in page.read_text("utf-8")
