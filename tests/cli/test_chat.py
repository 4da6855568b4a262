"""The command as a person runs it: a process of its own on the embedded base with the shipped agents."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "icarus_local"]
QUESTION = "Write a function that counts vowels.\n"


def run(*arguments: str, text: str = "", environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **(environment or {})},
    )


@pytest.mark.slow
def test_coder_answers_and_reviewer_reads_it_at_the_cost_of_the_handover() -> None:
    result = run("chat", "--agents", "coder,reviewer", "--json", text=QUESTION)
    assert result.returncode == 0, result.stderr
    coder, reviewer = (json.loads(line) for line in result.stdout.splitlines())
    assert coder["agent"] == "coder"
    assert "def " in coder["text"]
    assert coder["finish_reason"] == "stop"
    assert reviewer["agent"] == "reviewer"
    assert reviewer["reused"] == coder["reused"] + coder["encoded"] + coder["generated"]
    assert reviewer["encoded"] < 40
    assert reviewer["kv_bytes_separate"] == 2 * reviewer["kv_bytes"]
    assert set(coder) == {
        *("agent", "text", "finish_reason", "reused", "encoded", "generated"),
        *("ttft_s", "tok_s", "kv_bytes", "kv_bytes_separate", "drafted", "accepted", "notice"),
    }


@pytest.mark.slow
def test_plain_lines_address_agents_and_say_what_was_reused() -> None:
    result = run(
        "chat", "--agents", "coder,reviewer,base", "--max-tokens", "8", text=f"{QUESTION}\n@base and you?\n@who x\n"
    )
    assert result.returncode == 1, result.stderr
    assert [line for line in result.stdout.splitlines() if line.endswith(":")][:3] == ["coder:", "reviewer:", "base:"]
    figures = [line for line in result.stderr.splitlines() if line.startswith("[")]
    assert len(figures) == 4
    assert figures[0].startswith("[coder: 0 tokens reused, ")
    assert "no agent @who here. Here are @coder, @reviewer, @base" in result.stderr


def test_an_adapter_of_ones_own_speaks_under_its_name() -> None:
    spec = importlib.util.find_spec("icarus_models")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    adapter = Path(spec.submodule_search_locations[0]) / "adapters" / "coder.gguf"
    result = run("chat", "--agents", f"mine={adapter}", "--json", "--max-tokens", "3", text=QUESTION)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["agent"] == "mine"


def test_without_a_base_it_says_how_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "icarus_models").mkdir()
    (tmp_path / "icarus_models" / "__init__.py").write_text("")
    (tmp_path / "icarus_models" / "catalog.py").write_text(
        "def embedded_base():\n    return None\ndef agents():\n    return []\n"
    )
    result = run("chat", "--agents", "base", environment={"PYTHONPATH": str(tmp_path)})
    assert result.returncode == 2
    assert "pip install 'icarus-local[smollm2]'" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chat", "--agents", "nobody"], "there is no agent 'nobody'. Known are base"),
        (["chat", "--agents", "me=/no/such.gguf"], "agent me: there is no adapter /no/such.gguf"),
        (["chat", "--agents", "=x.gguf"], "'' cannot be an agent's name"),
        (["chat", "--base", "/no/such.gguf"], "there is no file /no/such.gguf"),
        (["chat", "--agents", "base", "--n-ctx", "9999999"], "Give another --n-ctx"),
        (["chat", "--agents", "base", "--chat-template", "/no/such.jinja"], "/no/such.jinja cannot be read"),
        (["chat", "--agents", "base,base"], "named twice"),
        (["chat", "--agents", "base", "--base", __file__], "is not a GGUF file"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str) -> None:
    result = run(*arguments, text=QUESTION)
    assert result.returncode == 1
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


def test_doctor_proves_exactness() -> None:
    result = run("doctor")
    assert result.returncode == 0, result.stderr
    assert "equal libllama's bit for bit" in result.stdout
    assert "SmolLM2" in result.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_stops_the_answer_and_not_the_program() -> None:
    process = subprocess.Popen(
        [*COMMAND, "chat", "--agents", "base", "--max-tokens", "4000"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write("Write a long story about a fox and a crow.\n")
    process.stdin.flush()
    assert process.stdout.readline() == "base:\n"
    process.stdout.read(20)  # it is being said
    process.send_signal(signal.SIGINT)
    start = time.perf_counter()
    stopped = process.stderr.readline()
    assert time.perf_counter() - start < 2
    assert "generated, stopped;" in stopped
    process.stdin.write("Say hello.\n")
    process.stdin.close()
    after = process.stderr.readline()
    counts = [int(n) for n in re.findall(r"(\d+) (?:tokens reused|encoded|generated)", stopped)]
    reused = int(after.split()[1])
    assert sum(counts) - 1 <= reused <= sum(counts)
    process.stdout.read()
    assert process.wait(60) == 0


def test_bytes_that_are_no_text_and_terminal_commands_do_no_harm() -> None:
    result = subprocess.run(
        [*COMMAND, "chat", "--agents", "base", "--max-tokens", "2"],
        input=b"\xff\xfe \x1b[2J hello\n\xed\xa0\x80\n",
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count(b"[base: ") == 2
    assert b"\x1b" not in result.stdout
