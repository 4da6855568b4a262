"""`bench workflow` and `plot`: the shape of what they give, going on where one stopped, and what they refuse."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from icarus_local.bench import measurement
from icarus_local.bench.measurement import run_child
from icarus_local.bench.records import Job, Record
from icarus_local.bench.workflow_child import measure
from icarus_local.cli.main import main
from icarus_local.errors import EngineDiedError, IcarusError
from tests import compare_bench
from tests.bench.jobs import job, tiny_setup, workflow
from tests.tiny import Tiny

FIGURES = ("p50_s", "p95_s", "mean_s", "ttft_s", "tok_s", "encoded", "kv_bytes", "rss_bytes")


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


def measured(tiny: Tiny, *arguments: object) -> Result:
    small = ("--base", tiny.path, "--threads", 1, "--answer-tokens", 4, "--rank", 8)
    return bench("workflow", *arguments, *small)


class Counting:
    """Stands in for the processes: the same work in this one, counted; the one that is due to fail does."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.jobs: list[Job] = []
        self.fails_at = fails_at

    def __call__(self, job: Job) -> Record:
        if len(self.jobs) == self.fails_at:
            raise IcarusError("the power went")
        self.jobs.append(job)
        return measure(job)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    stand_in = Counting()
    monkeypatch.setattr(measurement, "run_child", stand_in)
    return stand_in


def test_every_system_in_a_process_of_its_own(tiny: Tiny) -> None:
    arguments = ("rounds", "--agents", 2, "--context", 256, "--repeats", 1, "--turns-warm", 2, "--json")
    result = measured(tiny, *arguments)
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert list(found["systems"]) == ["icarus", "swap", "separate", "separate_capped"]
    for figures in found["systems"].values():
        assert all(figures[key] > 0 for key in FIGURES)
        assert figures["turns"] == figures["cold"]["turns"] == 2
    assert found["systems"]["separate"]["kv_bytes"] == 2 * found["systems"]["icarus"]["kv_bytes"]
    assert found["gain"]["separate"]["kv_bytes"] == 2
    assert found["machine"]["cores"] >= 1
    assert found["identity"]["threads"] == 1


def test_the_table_names_systems_gains_and_the_machine(tiny: Tiny, counting: Counting) -> None:
    shown = measured(tiny, "panel", "--agents", 3, "--context", 512, "--repeats", 2, "--turns-warm", 3).stdout
    for words in ("tiny.gguf, 1 threads", "panel, 3 agents, 512 tokens", "3 cold and 3 warm", "medians of 2 repeats"):
        assert words in shown
    for words in ("P95 s", "KV MiB", "separate_capped", "against swap: P95"):
        assert words in shown


def test_systems_take_turns_and_say_the_same_in_a_repeat(tiny: Tiny, counting: Counting) -> None:
    systems = ("--systems", "icarus,swap,separate")
    measured(tiny, "rounds", "--agents", 1, "--context", 256, "--repeats", 3, "--turns-warm", 1, *systems)
    order = [job.system for job in counting.jobs]
    assert order == [
        *("icarus", "swap", "separate"),
        *("swap", "separate", "icarus"),
        *("separate", "icarus", "swap"),
    ]
    assert [job.seed for job in counting.jobs] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


ARGUMENTS = ("rounds", "--agents", 1, "--agents", 2, "--context", 256, "--repeats", 1, "--turns-warm", 1, "--out")


def test_a_stopped_measurement_goes_on_where_it_was(tiny: Tiny, tmp_path: Path, counting: Counting) -> None:
    out, counting.fails_at = tmp_path / "runs.json", 5
    stopped = measured(tiny, *ARGUMENTS, out)
    assert stopped.exit_code == 1
    assert "the power went" in stopped.output
    kept = json.loads(out.read_text("utf-8"))
    assert [(run["case"]["agents"], run["system"]) for run in kept["runs"]] == [
        *((1, system) for system in ("icarus", "swap", "separate", "separate_capped")),
        (2, "icarus"),
    ]
    counting.fails_at, counting.jobs = None, []
    assert measured(tiny, *ARGUMENTS, out).exit_code == 0
    assert [(job.case.agents, job.system) for job in counting.jobs] == [
        (2, system) for system in ("swap", "separate", "separate_capped")
    ]
    whole = json.loads(out.read_text("utf-8"))
    assert whole["runs"][:5] == kept["runs"]
    assert [len(result["systems"]) for result in whole["results"]] == [4, 4]
    assert whole["machine"]["cpu"]
    assert whole["identity"]["versions"].keys() == {"icarus_local", "llama_cpp_python", "ggml"}
    counting.jobs = []
    again = measured(tiny, *ARGUMENTS, out, "--json")
    assert not counting.jobs
    assert [json.loads(line)["agents"] for line in again.stdout.splitlines()] == [1, 2]
    assert list(tmp_path.iterdir()) == [out], "nothing is left beside it"


def test_other_conditions_are_not_mixed_into_a_file(tiny: Tiny, tmp_path: Path, counting: Counting) -> None:
    out, own = tmp_path / "runs.json", tmp_path / "own.toml"
    text = 'name = "own"\nagents = 1\ncontexts = [256]\n[[turns]]\nrole = "one"\nhand_over = 4\nanswer = 4\n'
    own.write_text(text, "utf-8")
    few = ("--turns-warm", 1, "--repeats", 1, "--out", out)
    assert measured(tiny, own, *few).exit_code == 0
    before = out.read_bytes()
    for changed, words in ((("--rank", 4), "rank"), (("--threads", 2), "threads"), (("--kv-type", "f32"), "kv_type")):
        refused = bench("workflow", own, "--base", tiny.path, "--threads", 1, "--rank", 8, *changed, *few)
        assert refused.exit_code == 1
        assert f"other values of {words}" in refused.output
    own.write_text(text.replace("hand_over = 4", "hand_over = 5"), "utf-8")
    assert "workflow own" in measured(tiny, own, *few).output
    assert out.read_bytes() == before
    # Another workflow is another case, not another condition.
    assert measured(tiny, "rounds", "--agents", 1, "--context", 256, *few).exit_code == 0
    assert {run["case"]["workflow"] for run in json.loads(out.read_text("utf-8"))["runs"]} == {"own", "rounds"}


def test_a_file_that_cannot_be_written_stays_as_it_was(
    tiny: Tiny, tmp_path: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, counting.fails_at = tmp_path / "runs.json", 1
    measured(tiny, *ARGUMENTS, out)
    before, counting.fails_at = out.read_bytes(), None

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    result = measured(tiny, *ARGUMENTS, out)
    assert result.exit_code == 1
    assert f"{out} cannot be written: No space left on device" in result.output
    assert out.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_of_something_else_is_left_alone(tiny: Tiny, tmp_path: Path) -> None:
    out = tmp_path / "runs.json"
    for content in ("words", "[]", '{"format": 2}', '{"format": 1}', '{"format": 1, "runs": []}'):
        out.write_text(content, "utf-8")
        result = measured(tiny, *ARGUMENTS, out)
        assert result.exit_code == 1
        assert str(out) in result.output
        assert out.read_text("utf-8") == content
    assert "no folder" in measured(tiny, *ARGUMENTS, tmp_path / "missing" / "runs.json").output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rounds", "--context", 2048), "longer than the 1024 that the base was trained for"),
        (("rounds", "--context", 64), "does not hold two rounds"),
        (("rounds", "--systems", "icarus,vllm"), "no system vllm"),
        (("rounds", "--systems", ","), "no system was named"),
        (("rounds", "--device", "Vulkan0"), "on the CPU"),
        (("rounds", "--max-adapters", 2), "--max-adapters"),
        (("chess",), "no workflow chess"),
        ((), "no workflow was named"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(
    tiny: Tiny, counting: Counting, arguments: tuple[object, ...], words: str
) -> None:
    result = measured(tiny, *arguments)
    assert result.exit_code == 1
    assert words in result.output
    assert not counting.jobs


def test_quick_is_all_workflows_few_turns_and_one_repeat(
    tiny: Tiny, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icarus_local.cli.bench_workflow._QUICK_CONTEXTS", {"rounds": (512, 1024)})
    assert measured(tiny, "--quick").exit_code == 0
    assert [(job.case.workflow, job.case.context) for job in counting.jobs[::4]] == [
        *(("panel", 1024), ("react", 1024), ("reflexion", 1024)),
        *(("rounds", 512), ("rounds", 1024)),
    ]
    assert {(job.case.agents, job.case.warm_turns) for job in counting.jobs} == {(3, 1)}


# -- the process -------------------------------------------------------------------------------------------------------


def test_the_memory_of_a_process_is_its_own(tiny: Tiny) -> None:
    if sys.platform != "linux":
        pytest.skip("other systems tell a process's own maximum")
    ballast = np.ones(400 << 20, np.uint8)
    with tiny_setup(tiny, 1) as setup:
        record = run_child(job(setup, "icarus", workflow(agents=1), warm_turns=1))
    assert record.rss_bytes is not None
    assert 10 << 20 < record.rss_bytes < ballast.nbytes


def test_an_error_of_a_system_comes_through_with_its_name(tiny: Tiny, tmp_path: Path) -> None:
    with tiny_setup(tiny, 1) as setup:
        broken = setup.model_copy(update={"base": tmp_path / "gone.gguf"})
        with pytest.raises(IcarusError, match=r"swap: .*gone\.gguf"):
            run_child(job(broken, "swap", workflow(agents=1)))


def test_a_process_that_dies_is_told_with_its_last_words(tiny: Tiny) -> None:
    with tiny_setup(tiny, 1) as setup, pytest.raises(EngineDiedError, match=r"measures nobody ended with status 1.*"):
        run_child(job(setup, "nobody", workflow(agents=1)))


# -- plots and comparison ----------------------------------------------------------------------------------------------


def report(*cases: dict[str, Any], slower: float = 1.0) -> dict[str, Any]:
    def figures(seconds: float, agents: int) -> dict[str, Any]:
        return {
            **dict.fromkeys(("p50_s", "p95_s", "mean_s", "ttft_s", "total_s"), seconds),
            "tok_s": 32 / seconds,
            "kv_bytes": agents << 20,
            "rss_bytes": None,
        }

    results = []
    for given in cases:
        case = {"workflow": "rounds", "agents": 8, "context": 4096, "answer_tokens": None, "warm_turns": None, **given}
        n = case["agents"]
        systems = {"icarus": figures(slower * case["context"] / 4096, 1), "separate": figures(0.3 * n, n)}
        results.append({**case, "systems": systems})
    return {"format": 1, "results": results}


def test_plots_are_made_of_the_file_alone_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file, folder = tmp_path / "runs.json", tmp_path / "new" / "plots"
    agents = [{"agents": n} for n in (1, 2, 4, 8)]
    contexts = [{"context": n} for n in (1024, 8192)]
    file.write_text(json.dumps(report(*agents, *contexts)), "utf-8")
    result = bench("plot", file, "-o", folder)
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
    bench("plot", file, "-o", folder)
    assert {path: path.read_bytes() for path in files} == first


def test_a_plot_of_nothing_and_a_missing_matplotlib_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "runs.json"
    file.write_text(json.dumps(report({"agents": 1})), "utf-8")
    assert "nothing to draw" in bench("plot", file, "-o", tmp_path).output
    assert "cannot be read" in bench("plot", tmp_path / "gone.json", "-o", tmp_path).output
    file.write_text(json.dumps(report({"agents": 1}, {"agents": 2})), "utf-8")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    refused = bench("plot", file, "-o", tmp_path)
    assert refused.exit_code == 1
    assert "pip install 'icarus-local[bench]'" in refused.output


def compared(tmp_path: Path, old: dict[str, Any], new: dict[str, Any]) -> int:
    files = []
    for name, content in (("old", old), ("new", new)):
        files.append(str(tmp_path / f"{name}.json"))
        Path(files[-1]).write_text(json.dumps(content), "utf-8")
    return compare_bench.main(files)


def test_regressions_over_ten_percent_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = report({"agents": 8}, {"agents": 4})
    assert compared(tmp_path, old, report({"agents": 8}, {"agents": 4}, slower=1.09)) == 0
    assert compared(tmp_path, old, report({"agents": 8}, slower=1.12)) == 1
    shown = capsys.readouterr().out
    assert "workflow rounds, agents 8, context 4096: p95_s over separate's was 0.417 and is 0.467, 12 % worse" in shown
    assert "tok_s over separate's" in shown
    assert "kv_bytes" not in shown
    assert compared(tmp_path, old, report({"agents": 2})) == 2


def test_a_day_on_which_all_is_slow_is_no_regression(tmp_path: Path) -> None:
    old, new = report({"agents": 8}), report({"agents": 8})
    for figures in new["results"][0]["systems"].values():
        figures.update({key: 3 * value for key, value in figures.items() if key.endswith("_s") and key != "tok_s"})
        figures["tok_s"] /= 3
    assert compared(tmp_path, old, new) == 0
