"""llama-server as a system: what it is asked, what it encodes, how it ends. ICARUS_LLAMA_SERVER may name a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from icarus_local.bench import llama_server, process
from icarus_local.bench.llama_server import LlamaServer, server_version
from icarus_local.bench.process import run_child
from icarus_local.bench.records import Setup
from icarus_local.bench.system import IN_PROCESS, LLAMA_SERVER, SYSTEMS
from icarus_local.bench.workflow_child import measure
from icarus_local.cli.main import main
from icarus_local.errors import IcarusError
from tests.bench import server_stand_in
from tests.bench.jobs import CONTEXT, job, tiny_setup, workflow
from tests.bench.test_systems import PANEL
from tests.tiny import Tiny

if sys.platform == "win32":
    pytest.skip("the stand-in is started by its first line", allow_module_level=True)

Log = Callable[[], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def setup(tiny: Tiny) -> Iterator[Setup]:
    with tiny_setup(tiny, 3) as setup:
        yield setup


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "llama-server"
    program.write_text(f"#!{sys.executable}\n{Path(server_stand_in.__file__).read_text('utf-8')}", "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("SERVER_LOG", str(tmp_path / "requests.jsonl"))
    return program


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return lambda: [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(params=["stand-in", "real"])
def program(request: pytest.FixtureRequest, stand_in: Path) -> Path:
    if request.param == "stand-in":
        return stand_in
    if "ICARUS_LLAMA_SERVER" not in os.environ:
        pytest.skip("ICARUS_LLAMA_SERVER does not name one")
    return Path(os.environ["ICARUS_LLAMA_SERVER"])


def with_server(setup: Setup, program: Path) -> Setup:
    return setup.model_copy(update={"llama_server": program})


@pytest.mark.parametrize("script", [workflow(), PANEL], ids=["in turn", "at once"])
def test_it_encodes_what_separate_caches_do(setup: Setup, program: Path, script: Any) -> None:
    ours = measure(job(with_server(setup, program), LLAMA_SERVER, script))
    separate = measure(job(setup, "separate", script))
    for key in ("agent", "cold", "encoded", "generated"):
        assert [getattr(turn, key) for turn in ours.turns] == [getattr(turn, key) for turn in separate.turns], key
    assert (ours.kv_bytes, ours.kv_used_bytes) == (separate.kv_bytes, separate.kv_used_bytes)
    for turn in ours.turns:
        assert 0 < turn.ttft_s < turn.latency_s


def test_what_it_said_stands_in_the_conversation(setup: Setup, stand_in: Path, log: Log) -> None:
    for script in (workflow(), PANEL):
        (stand_in.parent / "requests.jsonl").unlink(missing_ok=True)
        measure(job(with_server(setup, stand_in), LLAMA_SERVER, script))
        asked = [entry for entry in log() if entry["path"] == "/completion" and entry["n_predict"] > 2]
        assert len(asked) == 9
        # A round begins with all that the round before it has said; its own words are below 7.
        rounds = [asked[i : i + 3] for i in (0, 3, 6)]
        last = max(rounds[0], key=lambda entry: len(entry["prompt"]))["prompt"]
        said = [
            [(entry["prompt"][-1] + entry["lora"][0]["id"] + i) % 7 for i in range(entry["n_predict"])]
            for entry in rounds[0]
        ]
        for entry in (*rounds[1], *rounds[2]):
            text = " ".join(map(str, entry["prompt"]))
            assert all(" ".join(map(str, words)) in text for words in said)
            if script is not PANEL:
                assert entry["prompt"][: len(last)] == last


def test_memory_is_the_server_s(setup: Setup, stand_in: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    monkeypatch.setattr(llama_server, "peak_rss_bytes", lambda pid=None: asked.append(pid))
    measure(job(with_server(setup, stand_in), LLAMA_SERVER, workflow(agents=1), warm_turns=1))
    assert asked == [log()[0]["pid"]]


def test_each_request_names_slot_and_adapter_and_all_options_are_the_others(
    setup: Setup, stand_in: Path, log: Log
) -> None:
    measure(job(with_server(setup, stand_in), LLAMA_SERVER, workflow()))
    started, *requests = log()
    options = started["options"]
    assert options["--lora"].split(",") == list(map(str, setup.adapters))
    assert (options["--parallel"], options["--ctx-size"]) == ("3", str(3 * CONTEXT))
    assert (options["--threads"], options["--cache-type-k"], options["--cache-type-v"]) == ("1", "f16", "f16")
    assert (options["--ubatch-size"], options["--flash-attn"], options["--device"]) == ("512", "on", "none")
    for request in requests:
        assert request["lora"] == [{"id": request["id_slot"], "scale": 1.0}]
        assert request["ignore_eos"]
        assert request["cache_prompt"]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("unable", "ended with status 1: error: unknown argument"),
        ("dies", "ended with status 3: out of memory"),
        ("refuses", "status 400: .*no such slot"),
        ("old", "answers in another form.*newer"),
    ],
)
def test_what_goes_wrong_is_told(
    setup: Setup, stand_in: Path, monkeypatch: pytest.MonkeyPatch, mode: str, words: str
) -> None:
    monkeypatch.setenv("SERVER_MODE", mode)
    with pytest.raises(IcarusError, match=f"(?s){words}"):
        measure(job(with_server(setup, stand_in), LLAMA_SERVER, workflow()))


def test_it_is_gone_when_the_run_is(setup: Setup, stand_in: Path, log: Log) -> None:
    run_child(job(with_server(setup, stand_in), LLAMA_SERVER, workflow(agents=1), warm_turns=1))
    assert is_gone(log()[0]["pid"])


def test_it_does_not_outlive_a_measuring_process_that_is_ended(setup: Setup, stand_in: Path, log: Log) -> None:
    with process._started(subprocess.DEVNULL) as child:  # type: ignore[arg-type]
        until_it_works(child, setup, stand_in, log)
        child.terminate()
        assert child.wait(10) == 1
    assert is_gone(log()[0]["pid"])


def test_it_does_not_outlive_who_asked(setup: Setup, stand_in: Path, log: Log) -> None:
    with process._started(subprocess.DEVNULL) as child:  # type: ignore[arg-type]
        until_it_works(child, setup, stand_in, log)
    assert child.returncode == 1
    assert is_gone(log()[0]["pid"])


def until_it_works(child: subprocess.Popen[bytes], setup: Setup, program: Path, log: Log) -> None:
    endless = job(with_server(setup, program), LLAMA_SERVER, workflow(agents=1), warm_turns=10_000)
    assert child.stdin is not None
    child.stdin.write(endless.model_dump_json().encode() + b"\n")
    child.stdin.flush()
    until = time.monotonic() + 60
    while not (program.parent / "requests.jsonl").exists() or len(log()) < 5:
        assert time.monotonic() < until
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        # One that nobody waits for stays as a zombie until init takes it.
        status = Path(f"/proc/{pid}/stat")
        if status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_caches_that_free_memory_does_not_hold_are_refused_before_it_is_started(
    setup: Setup, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icarus_local.engine.devices.host_memory", lambda: 1 << 20)
    with pytest.raises(IcarusError, match="a pool of 3 caches of 512 tokens"):
        LlamaServer(
            stand_in, setup.base, setup.adapters, CONTEXT, kv_type="f16", n_threads=1, kv_bytes_per_token=64 << 10
        )
    assert not (stand_in.parent / "requests.jsonl").exists()


def test_a_build_is_told_from_another(stand_in: Path, tmp_path: Path) -> None:
    version = server_version(stand_in)
    assert version.startswith("1.2.3 (stand-in), ")
    stand_in.write_text(stand_in.read_text("utf-8") + "\n# another build\n", "utf-8")
    assert server_version(stand_in) != version
    library = tmp_path / "libserver.so"
    library.write_text("computes", "utf-8")
    with_library = server_version(stand_in)
    library.write_text("computes otherwise", "utf-8")
    assert server_version(stand_in) != with_library != version
    for content, words in (("#!/bin/sh\necho no\n", "does not say its version"), ("no program", "cannot be run")):
        other = tmp_path / "other"
        other.write_text(content, "utf-8")
        other.chmod(0o755 if content.startswith("#!") else 0o644)
        with pytest.raises(IcarusError, match=words):
            server_version(other)


def test_options_from_the_environment_do_not_come_in(
    setup: Setup, stand_in: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_API_PREFIX", "/elsewhere")
    measure(job(with_server(setup, stand_in), LLAMA_SERVER, workflow(agents=1), warm_turns=1))
    assert log()[0]["environment"] == []


def command(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["bench", "workflow", *map(str, arguments)])


def test_the_command_measures_it_where_its_program_is_given(
    tiny: Tiny, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ("rounds", "--base", tiny.path, "--threads", 1, "--answer-tokens", 4, "--rank", 8, "--agents", 2)
    small = (*small, "--context", 256, "--repeats", 1, "--turns-warm", 2, "--json")
    # One in the current folder, not one of that name in PATH.
    monkeypatch.chdir(stand_in.parent)
    result = command(*small, "--llama-server", "llama-server")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found["systems"]) == list(SYSTEMS)
    assert found["gain"]["llama_server"]["kv_bytes"] == 2
    assert found["identity"]["llama_server"] == server_version(stand_in)
    without = command(*small, "--systems", LLAMA_SERVER)
    assert without.exit_code == 1
    assert "Give its path with --llama-server" in without.output
    assert SYSTEMS[:-1] == IN_PROCESS


def test_a_program_that_is_none_is_refused_before_anything_is_measured(tiny: Tiny, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho no\n", "utf-8")
    other.chmod(0o755)
    result = command("rounds", "--base", tiny.path, "--context", 512, "--agents", 1, "--llama-server", other)
    assert result.exit_code == 1
    assert "does not say its version" in result.output
    assert "repeat 1" not in result.output
