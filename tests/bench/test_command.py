"""`bench workflow`: the shape of what it gives, going on where it stopped, what fails and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from icarus_local.bench import measurement
from icarus_local.bench.load import LoadMeter
from icarus_local.bench.records import Job, Record
from icarus_local.bench.workflow_child import measure
from icarus_local.cli.main import main
from icarus_local.errors import IcarusError
from tests.tiny import Tiny

FIGURES = ("p50_s", "p95_s", "mean_s", "ttft_s", "tok_s", "encoded", "kv_bytes", "rss_bytes")


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


def measured(tiny: Tiny, *arguments: object) -> Result:
    small = ("--base", tiny.path, "--threads", 1, "--answer-tokens", 4, "--rank", 8)
    return bench("workflow", *arguments, *small)


class Counting:
    """Stands in for the processes: the same work in this one, counted, until it is stopped; some systems fail."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.stops_at: int | None = None
        self.failing: tuple[str, ...] = ()

    def __call__(self, job: Job) -> Record:
        if len(self.jobs) == self.stops_at:
            raise KeyboardInterrupt
        self.jobs.append(job)
        if job.system in self.failing:
            raise IcarusError(f"{job.system}: it has no room", "Give it some")
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
    out, counting.stops_at = tmp_path / "runs.json", 5
    assert measured(tiny, *ARGUMENTS, out).exit_code == 1
    kept = json.loads(out.read_text("utf-8"))
    assert [(run["case"]["agents"], run["system"]) for run in kept["runs"]] == [
        *((1, system) for system in ("icarus", "swap", "separate", "separate_capped")),
        (2, "icarus"),
    ]
    counting.stops_at, counting.jobs = None, []
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


def test_other_conditions_are_not_mixed_into_a_file(
    tiny: Tiny, tmp_path: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    for seam, value, words in (
        ("describe", {"cpu": "of a laptop", "cores": 1 << 10}, "cpu, cores"),
        ("code_sha256", "of another commit", "code"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(measurement, seam, lambda value=value: value)
            assert f"other values of {words}" in measured(tiny, own, *few).output
    own.write_text(text.replace("hand_over = 4", "hand_over = 5"), "utf-8")
    assert "workflow own" in measured(tiny, own, *few).output
    assert out.read_bytes() == before
    # Another workflow is another case, not another condition.
    assert measured(tiny, "rounds", "--agents", 1, "--context", 256, *few).exit_code == 0
    assert {run["case"]["workflow"] for run in json.loads(out.read_text("utf-8"))["runs"]} == {"own", "rounds"}


def test_as_many_warm_turns_as_the_file_said_are_a_case_of_their_own(
    tiny: Tiny, tmp_path: Path, counting: Counting
) -> None:
    out, own = tmp_path / "runs.json", tmp_path / "own.toml"
    keys = 'name = "own"\nagents = 1\ncontexts = [256]\nrepeats = 1\nwarm_turns = {}\n'
    for turns in (1, 2):
        own.write_text(f'{keys.format(turns)}[[turns]]\nrole = "one"\nhand_over = 4\nanswer = 4\n', "utf-8")
        assert measured(tiny, own, "--systems", "icarus", "--out", out).exit_code == 0
    assert [job.case.warm_turns for job in counting.jobs] == [1, 2]
    results = json.loads(out.read_text("utf-8"))["results"]
    assert [(found["warm_turns"], found["systems"]["icarus"]["turns"]) for found in results] == [(1, 1), (2, 2)]


def test_a_system_that_fails_is_told_and_the_others_go_on(tiny: Tiny, tmp_path: Path, counting: Counting) -> None:
    out, counting.failing = tmp_path / "runs.json", ("separate",)
    arguments = ("rounds", "--agents", 1, "--agents", 2, "--context", 256, "--repeats", 2, "--turns-warm", 1)
    result = measured(tiny, *arguments, "--out", out)
    assert result.exit_code == 1
    assert "failed: separate: it has no room. Give it some" in result.stderr
    last = result.stderr.splitlines()[-1]
    for words in ("separate with rounds, 1 agent, 256", "separate with rounds, 2 agents, 256"):
        assert words in last
    assert "swap" not in last
    tried = [(job.case.agents, job.system) for job in counting.jobs]
    for agents in (1, 2):
        # Not again in the second repeat.
        assert tried.count((agents, "separate")) == 1
        for system in ("icarus", "swap", "separate_capped"):
            assert tried.count((agents, system)) == 2
    assert result.stdout.count("against swap") == 2
    counting.failing, counting.jobs = (), []
    assert measured(tiny, *arguments, "--out", out).exit_code == 0
    assert [job.system for job in counting.jobs] == 4 * ["separate"]


def test_a_case_of_which_nothing_could_be_measured_has_no_table(tiny: Tiny, counting: Counting) -> None:
    counting.failing = ("swap",)
    result = measured(tiny, "rounds", "--agents", 1, "--context", 256, "--systems", "swap")
    assert result.exit_code == 1
    assert "could not be measured: swap" in result.output
    assert "P95" not in result.stdout


def test_a_run_says_how_long_it_took_and_what_is_left(
    tiny: Tiny, tmp_path: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadMeter, "wall_s", 200.0)
    monkeypatch.setattr(LoadMeter, "other_cores", 0.1)
    arguments = ("rounds", "--agents", 1, "--context", 256, "--repeats", 2, "--turns-warm", 1)
    shown = measured(tiny, *arguments, "--systems", "icarus,swap", "--out", tmp_path / "runs.json").stderr
    assert [line.strip() for line in shown.splitlines() if line.startswith("  ")] == [
        "took 3 min",
        "took 3 min; about 7 min of this case are left",
        "took 3 min; about 3 min of this case are left",
        "took 3 min",
    ]


def test_a_run_beside_other_programs_is_told_and_kept(
    tiny: Tiny, tmp_path: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, busy = tmp_path / "runs.json", iter([0.15, 0.97])
    monkeypatch.setattr(LoadMeter, "other_cores", property(lambda _: next(busy)))
    arguments = ("rounds", "--agents", 1, "--context", 256, "--repeats", 1, "--turns-warm", 1)
    result = measured(tiny, *arguments, "--systems", "icarus,swap", "--out", out)
    told = [line for line in result.stderr.splitlines() if "took" in line]
    assert ["0.97 cores" in line for line in told] == [False, True]
    assert "other programs kept up to 0.97 cores busy" in result.stdout
    whole = json.loads(out.read_text("utf-8"))
    assert [run["other_cores"] for run in whole["runs"]] == [0.15, 0.97]
    assert whole["results"][0]["other_cores"] == 0.97


def test_a_file_that_cannot_be_written_is_found_before_anything_is_measured(
    tiny: Tiny, tmp_path: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    out = tmp_path / "runs.json"
    for seam in ("pathlib.Path.write_text", "pathlib.Path.replace", "icarus_local.bench.runs_file.FileLock.acquire"):
        with monkeypatch.context() as patch:
            patch.setattr(seam, denied)
            result = measured(tiny, *ARGUMENTS, out)
        assert result.exit_code == 1
        assert f"{out} cannot be written: Permission denied" in result.output
    assert not counting.jobs
    assert not list(tmp_path.iterdir())


def test_one_measurement_at_a_time_writes_into_a_file(tiny: Tiny, tmp_path: Path, counting: Counting) -> None:
    out, second = tmp_path / "runs.json", []

    def measure_too(job: Job) -> Record:
        if not second:
            second.append(subprocess.run(command, capture_output=True, text=True, timeout=120, check=False))
        return counting(job)

    command = [sys.executable, "-m", "icarus_local", "bench", "workflow", *map(str, (*ARGUMENTS, out))]
    command += ["--base", str(tiny.path), "--threads", "1", "--answer-tokens", "4", "--rank", "8"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "run_child", measure_too)
        assert measured(tiny, *ARGUMENTS, out, "--systems", "icarus").exit_code == 0
    assert second[0].returncode == 1
    assert f"another process measures into {out}. Wait until it has ended" in second[0].stderr
    assert len(json.loads(out.read_text("utf-8"))["runs"]) == 2
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_that_cannot_be_written_stays_as_it_was(
    tiny: Tiny, tmp_path: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, counting.stops_at = tmp_path / "runs.json", 1
    measured(tiny, *ARGUMENTS, out)
    before, counting.stops_at = out.read_bytes(), None

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
    for content in ("words", "[]", '{"format": 1}', '{"format": 2}', '{"format": 2, "runs": []}'):
        out.write_text(content, "utf-8")
        result = measured(tiny, *ARGUMENTS, out)
        assert result.exit_code == 1
        assert str(out) in result.output
        assert out.read_text("utf-8") == content
        assert list(tmp_path.iterdir()) == [out]
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
