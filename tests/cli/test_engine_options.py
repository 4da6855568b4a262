"""The options of every command that opens an engine: checked where they are given, and passed on as given."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from icarus_local.cli.engine_options import EngineOptions, engine_options
from icarus_local.cli.main import main
from icarus_local.cli.opening import SessionOptions, open_session
from icarus_local.engine import architecture, base
from icarus_local.engine.engine import Engine
from icarus_local.ggml.gguf import GgufFile
from tests.gguf_files import quantised
from tests.tiny import Tiny


@click.command()
@engine_options
@click.option("--other")
def echo(engine: EngineOptions, other: str | None) -> None:
    """Prints what it was given."""
    click.echo(f"{engine} {other}")


def test_options_arrive_as_given_or_leave_the_choice_to_the_engine() -> None:
    def given(*arguments: str) -> str:
        result = CliRunner().invoke(echo, arguments)
        assert result.exit_code == 0, result.output
        return result.output.strip()

    assert given("--other", "x") == f"{EngineOptions()} x"
    assert given("--gpu-layers", "AUTO") == given("--device", "auto") == f"{EngineOptions()} None"
    everything = ["--base", "b.gguf", "--n-ctx", "512", "--kv-type", "q8_0", "--threads", "3", "--device", "GPU0"]
    everything += ["--gpu-layers", "0", "--no-repack", "--max-adapters", "2"]
    assert given(*everything) == f"{EngineOptions('b.gguf', 512, 'q8_0', 3, 'GPU0', 0, False, 2)} None"


@pytest.mark.parametrize("command", ["chat", "doctor"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kv-type", "q5_0"], "'q5_0' is not one of 'f16', 'f32', 'q8_0', 'q4_0'"),
        (["--gpu-layers", "many"], "'many' is neither a number of layers nor auto"),
        (["--gpu-layers", "-1"], "'-1' is neither a number of layers nor auto"),
        (["--max-adapters", "0"], "0 is not in the range x>=1"),
        (["--n-ctx", "0"], "0 is not in the range x>=1"),
    ],
)
def test_what_no_engine_takes_is_refused_by_its_option(command: str, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, [command, *arguments])
    assert result.exit_code == 2
    assert arguments[0] in result.output
    assert message in result.output


@pytest.mark.parametrize("command", [["chat", "--agents", "base"], ["doctor"]])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "GPU77"], "there is no device 'GPU77'. There are "),
        (["--device", "cpu", "--gpu-layers", "1"], "--gpu-layers is 1 and the device the CPU. Leave it out"),
        (["--gpu-layers", "99"], "--gpu-layers is 99; this base has 0 to 3"),
        (["--kv-type", "q4_0"], "a KV type of q4_0 needs heads of a multiple of 32 values; this base's have 16"),
    ],
)
def test_what_this_base_or_machine_lacks_is_one_line(
    command: list[str], arguments: list[str], message: str, tiny: Tiny
) -> None:
    result = CliRunner().invoke(main, [*command, "--base", str(tiny.path), *arguments])
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_notices_of_the_engine_reach_the_person(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(options: EngineOptions, _report: object = None) -> Engine:
        engine = Engine(Path(str(options.base)), n_ctx=options.n_ctx, device="cpu")
        engine.notices = ["this base is made up"]
        return engine

    monkeypatch.setattr(EngineOptions, "open", opened)
    options = SessionOptions(EngineOptions(base=str(tiny.path), n_ctx=256), agents="base", save=False)
    with ExitStack() as stack:
        _, record = open_session(options, stack, None, lambda _text, _fraction: None)
        assert record.notices == ("this base is made up",)
    result = CliRunner().invoke(main, ["doctor", "--base", str(tiny.path)])
    assert "notice: this base is made up\n" in result.output


def test_debug_shows_where_the_model_was_placed(tiny: Tiny) -> None:
    # In a process of its own: pytest holds the root logger.
    command = [sys.executable, "-m", "icarus_local", "--debug", "chat", "--agents", "base", "--plain"]
    options = ["--base", str(tiny.path), "--device", "cpu", "--no-repack"]
    result = subprocess.run([*command, *options], input="", capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0
    assert "all on CPU; weights used where they are mapped" in result.stderr


def doctor(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["doctor", "--device", "cpu", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("kind", ["F32", "Q4_1", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("repack", ["--repack", "--no-repack"])
def test_doctor_proves_a_prompt_and_a_dual_step(tiny: Tiny, tmp_path: Path, kind: str, repack: str) -> None:
    path = tiny.path if kind == "F32" else quantised(tiny.path, tmp_path / f"{kind}.gguf", kind)
    report = doctor("--base", str(path), "--n-ctx", "300", repack)
    assert "placement: all on CPU; " in report
    assert "of cache for 512 tokens" in report
    assert "for each adapter of rank 16 in F32" in report
    prompt, dual = (line for line in report.splitlines() if line.startswith("proof: "))
    assert prompt.endswith("equal libllama's bit for bit")
    # K and V of one row and of two may go through different kernels but for Q4_1.
    assert dual.startswith("proof: both rows of a dual step ")
    assert kind != "Q4_1" or dual.endswith("equal libllama's bit for bit")


def test_doctor_fails_where_the_logits_are_others(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    # A graph that is wrong somewhere: an epsilon of the norms that the file does not have.
    def other(file: GgufFile) -> architecture.Hyperparameters:
        return dataclasses.replace(architecture.read_hyperparameters(file), norm_eps=2e-6)

    monkeypatch.setattr(base, "read_hyperparameters", other)
    result = CliRunner().invoke(main, ["doctor", "--base", str(tiny.path)])
    assert result.exit_code == 1
    assert "differ from libllama's by" in result.stderr
