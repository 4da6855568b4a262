"""What runs come to: percentiles, medians over repeats, gains and exponents, computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icarus_local.bench.records import Case, Record, Run, Turned
from icarus_local.bench.report import table
from icarus_local.bench.summary import exponent, figures, growth, percentile, summarise, summary

CASE = Case(workflow="tried", agents=4, context=512, answer_tokens=None, warm_turns=40)


def turned(latency: float, *, cold: bool = False, ttft: float = 0.5, encoded: int = 10, **more: Any) -> Turned:
    values = {"agent": 0, "busy_s": latency, "generated": 8, **more}
    return Turned(cold=cold, latency_s=latency, ttft_s=ttft, encoded=encoded, **values)


def record(*latencies: float, **more: Any) -> Record:
    turns = (turned(9.0, cold=True, encoded=100), *(turned(latency, **more) for latency in latencies))
    return Record(turns=turns, kv_bytes=1000, kv_used_bytes=900, rss_bytes=5000)


def run(system: str, found: Record, repeat: int = 0, case: Case = CASE) -> Run:
    return Run(case=case, system=system, repeat=repeat, record=found, wall_s=1.0, other_cores=None)


def test_percentiles_lie_between_neighbours() -> None:
    values = [float(i) for i in range(1, 41)]
    assert percentile(values, 50) == 20.5
    assert percentile(values, 95) == pytest.approx(38.05)
    assert percentile([3.0], 95) == 3.0


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60))
def test_percentiles_are_within_the_values_and_rise(values: list[float]) -> None:
    found = [percentile(values, percent) for percent in (0, 50, 95, 100)]
    assert found == sorted(found)
    assert (found[0], found[3]) == (min(values), max(values))


def test_warm_turns_are_told_from_cold_ones() -> None:
    found = figures(record(1.0, 2.0, 3.0))
    assert (found["p50_s"], found["mean_s"], found["turns"], found["encoded"]) == (2.0, 2.0, 3, 30)
    assert found["tok_s"] == 3 * 8 / 6.0
    assert found["cold"] == {"mean_s": 9.0, "ttft_s": 0.5, "encoded": 100, "turns": 1}
    assert found["total_s"] == 15.0


def test_answers_at_once_count_once_in_throughput() -> None:
    together = [turned(6.0, busy_s=2.0) for _ in range(3)]
    found = figures(Record(turns=(turned(1.0, cold=True), *together), kv_bytes=1, kv_used_bytes=1, rss_bytes=None))
    assert found["tok_s"] == 24 / 6.0
    assert found["p95_s"] == 6.0


def test_a_case_is_the_median_over_repeats_with_gains_over_each_system() -> None:
    ours = [run("icarus", record(1.0), 0), run("icarus", record(5.0), 1), run("icarus", record(2.0), 2)]
    result = summarise([*ours, run("swap", record(22.0)), run("separate", record(1.0))], CASE)
    assert result["repeats"] == {"icarus": 3, "swap": 1, "separate": 1}
    assert result["systems"]["icarus"]["p95_s"] == 2.0
    gain = result["gain"]["swap"]
    assert (gain["p95"], gain["mean"], gain["kv_bytes"]) == (11.0, 11.0, 1.0)
    assert gain["tok_s"] == pytest.approx(11.0)
    assert result["slower_than"] == ["separate"]
    shown = table(CASE, result)
    assert "against swap: P95 11.00 x lower" in shown
    assert "here icarus is slower than separate" in shown
    assert "medians of 3 repeats" in shown
    assert "it takes 1.00 x the K and V and 1.00 x the resident memory" in shown


def test_memory_that_the_system_does_not_tell_stays_unknown() -> None:
    silent = record(1.0).model_copy(update={"rss_bytes": None})
    result = summarise([run("icarus", silent), run("swap", record(2.0))], CASE)
    assert result["systems"]["icarus"]["rss_bytes"] is None
    assert result["gain"]["swap"]["rss_bytes"] is None
    assert "resident" not in table(CASE, result)


@given(st.floats(-2, 3), st.floats(0.01, 10))
def test_the_exponent_of_a_power_is_its_own(power: float, factor: float) -> None:
    assert math.isclose(exponent([(x, factor * x**power) for x in (1, 2, 5, 32)]), power, abs_tol=1e-6)


def test_growth_is_along_one_axis_with_all_else_the_same() -> None:
    runs = [
        run("icarus", record(0.5 * context / 256), 0, CASE.model_copy(update={"context": context}))
        for context in (1024, 256, 512)
    ]
    other = CASE.model_copy(update={"agents": 8, "context": 2048})
    found = summary([*runs, run("icarus", record(99.0), 0, other)])
    assert len(found["results"]) == 4
    (grown,) = found["growth"]
    assert (grown["axis"], grown["system"], grown["agents"]) == ("context", "icarus", 4)
    assert grown["points"] == [(256, 0.5), (512, 1.0), (1024, 2.0)]
    assert grown["exponent"] == pytest.approx(1.0)
    assert growth(found["results"][:2]) == []


def test_a_step_along_agents_is_no_growth() -> None:
    # One agent never swaps, two have room in the capped pool: what follows costs the same for any number.
    seconds = {
        "swap": {1: 1.0, 2: 20.0, 4: 20.0, 8: 20.0},
        "separate": {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0},
        "separate_capped": {1: 1.0, 2: 2.0, 4: 20.0, 8: 20.0},
    }

    def grown(most: int) -> dict[str, tuple[list[int], float]]:
        runs = [
            run(system, record(latency), case=CASE.model_copy(update={"agents": agents}))
            for system, by_agents in seconds.items()
            for agents, latency in (by_agents | {16: 16.0 if system == "separate" else 20.0}).items()
            if agents <= most
        ]
        found = summary(runs)["growth"]
        return {one["system"]: ([agents for agents, _ in one["points"]], one["exponent"]) for one in found}

    few = grown(8)
    assert few.keys() == {"swap", "separate"}
    assert few["swap"] == ([2, 4, 8], pytest.approx(0.0, abs=1e-9))
    assert few["separate"] == ([1, 2, 4, 8], pytest.approx(1.0))
    assert grown(16)["separate_capped"] == ([4, 8, 16], pytest.approx(0.0, abs=1e-9))
