"""Two files of measurements: what became worse than llama.cpp is named, and what cannot be compared is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import compare_bench
from tests.bench.reports import latency, report, written


def compared(tmp_path: Path, old: dict[str, Any], new: dict[str, Any]) -> int:
    files = [written(tmp_path / f"{name}.json", content) for name, content in (("old", old), ("new", new))]
    return compare_bench.main([str(file) for file in files])


def test_regressions_over_ten_percent_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = report({"agents": 8}, {"agents": 4})
    assert compared(tmp_path, old, report({"agents": 8}, {"agents": 4}, slower=1.09)) == 0
    assert compared(tmp_path, old, report({"agents": 8}, slower=1.12)) == 1
    shown = capsys.readouterr().out
    assert "rounds, 8 agents, 4096 tokens of context: p95_s over separate's was 0.417 and is 0.467, 12 % worse" in shown
    assert "tok_s over separate's" in shown
    assert "kv_bytes" not in shown


def test_a_day_on_which_all_is_slow_is_no_regression(tmp_path: Path) -> None:
    slow = report({"agents": 8}, seconds=lambda system, case: 3 * latency(system, case))
    assert compared(tmp_path, report({"agents": 8}), slow) == 0


def test_what_the_new_file_lacks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    systems = ("icarus", "separate", "swap")
    old = report({"agents": 8}, {"agents": 4}, systems=systems)
    assert compared(tmp_path, old, report({"agents": 8})) == 0
    shown = capsys.readouterr().out
    assert "rounds, 4 agents, 4096 tokens of context: not measured any more" in shown
    assert "rounds, 8 agents, 4096 tokens of context: swap not measured any more" in shown
    assert "8 agents, 4096 tokens of context: separate" not in shown
    assert compared(tmp_path, old, report({"agents": 2})) == 2


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"base": "other"}, "base"),
        ({"kv_type": "q8_0"}, "kv_type"),
        ({"threads": 1}, "threads"),
        ({"rank": 8}, "rank"),
        ({"workflows": {"rounds": "edited"}}, "workflow rounds"),
    ],
)
def test_other_conditions_are_no_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], words: str
) -> None:
    assert compared(tmp_path, report({}), report({}, slower=2.0, **changed)) == 2
    assert capsys.readouterr().err == f"the two files were measured with other values of {words}\n"


def test_another_version_or_machine_is_compared(tmp_path: Path) -> None:
    other = {"versions": {"ggml": "1"}, "code": "c", "cpu": "another", "workflows": {"rounds": "w", "more": "m"}}
    assert compared(tmp_path, report({}), report({}, **other)) == 0


@pytest.mark.parametrize("content", [None, "words", "[]", '{"format": 2}', '{"format": 1, "results": []}', "{}"])
def test_a_broken_file_is_one_line_and_no_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    new = tmp_path / "broken.json"
    if content is not None:
        new.write_text(content, "utf-8")
    assert compare_bench.main([str(written(tmp_path / "old.json", report({}))), str(new)]) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert str(new) in shown.err
    assert shown.err.count("\n") == 1
