"""`icarus-local bench`: figures that hang together, for a person and for a program."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner

from icarus_local.cli.main import main
from tests.tiny import Tiny


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["bench", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_step_gives_an_object_for_each_context_whose_ratios_are_those_of_its_times(tiny: Tiny) -> None:
    arguments = ("step", "--base", str(tiny.path), "--context", "40", "--context", "200", "--repeats", "2", "--json")
    reports = [json.loads(line) for line in run(*arguments).splitlines()]
    assert [report["n_context"] for report in reports] == [40, 200]
    for report in reports:
        ours, theirs = report["row_s"]
        assert math.isclose(report["row_ratio"], ours / theirs)
        assert math.isclose(report["dual_ratio"], report["dual_s"] / theirs)
        assert math.isclose(report["prefill_ratio"], report["prefill_s"][0] / report["prefill_s"][1])
        assert list(report["agents_gain"]) == ["2", "4", "8"]
        for k, gain in report["agents_gain"].items():
            assert math.isclose(gain, int(k) * report["dual_s"] / report["agents_s"][k])
        assert 0 < report["python_share"] < 1
        assert report["load_s"] > 0
        assert report["add_adapter_s"] > 0


def test_step_prints_a_table(tiny: Tiny) -> None:
    shown = run("step", "--base", str(tiny.path), "--context", "40", "--repeats", "1")
    for words in (
        "context of 40 tokens",
        "encoder and decoder row with an adapter",
        "8 agents at once",
        "Python's share",
    ):
        assert words in shown


def test_a_context_beyond_the_bases_is_refused(tiny: Tiny) -> None:
    result = CliRunner().invoke(main, ["bench", "step", "--base", str(tiny.path), "--context", "5000"])
    assert result.exit_code == 1
    assert "was trained for 1 to 1024" in result.output


@pytest.mark.slow
def test_drafts_are_accepted_where_an_agent_writes_a_file_again() -> None:
    report = json.loads(run("drafts", "--repeats", "1", "--json"))
    assert report["generated"] > 40
    assert report["drafted"] >= report["accepted"] > 20
    assert math.isclose(report["gain"], report["drafted_tok_s"] / report["plain_tok_s"])
