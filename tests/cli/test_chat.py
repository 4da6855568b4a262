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
        *("ttft_s", "tok_s", "kv_bytes", "kv_bytes_separate", "drafted", "accepted", "notice", "thought"),
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


def one_line(*arguments: str, text: str) -> tuple[str, str, int]:
    result = run("chat", "--agents", "coder,reviewer", "--max-tokens", "40", *arguments, text=text)
    return result.stdout, result.stderr, result.returncode


@pytest.mark.slow
def test_files_are_weighed_and_read_by_all_and_code_is_saved_after_asking(tmp_path: Path) -> None:
    notes, target = tmp_path / "notes.txt", tmp_path / "vowels.py"
    notes.write_text("The vowels are a, e, i, o and u.\n")
    (tmp_path / "binary").write_bytes(b"\0\1")
    lines = [f"/add {notes}", QUESTION.strip(), f"/save-code {target}", "y", f"/save-code {target}", "n"]
    out, err, code = one_line("--stats", text="\n".join(lines) + "\n")
    assert code == 0, err
    weighed = re.search(r"notes\.txt: 0\.0 KiB, (\d+) tokens; 40\d\d are free", err)
    assert weighed is not None, err
    encoded = re.search(r"\[coder: 0 tokens reused, (\d+) encoded", err)
    assert encoded is not None
    assert int(encoded[1]) > int(weighed[1])
    assert "notes.txt is part of the conversation" in err
    assert target.read_text() in out
    assert target.read_text().startswith("def ")
    assert f"{target}? It exists and would be replaced. [y/N]" in err
    assert err.count(f"{target} is written") == 1
    totals = re.search(r"all: (\d+) tokens encoded; with a cache for each agent it would have been at least (\d+)", err)
    assert totals is not None
    assert 0 < int(totals[1]) < int(totals[2])
    _, err, code = one_line(text=f"/add {tmp_path / 'binary'}\n/save-code\n/nothing\n")
    assert code == 1
    assert len(err.strip().splitlines()) == 3
    assert "no answer holds a code block" in err


@pytest.mark.slow
def test_at_once_one_is_kept_and_a_new_conversation_begins() -> None:
    out, err, code = one_line("--parallel", text=f"{QUESTION}/keep coder\n@coder and again?\n/new\n@coder hello\n")
    assert code == 0, err
    assert [line for line in out.splitlines() if line in ("coder:", "reviewer:")][:3] == [
        "coder:",
        "reviewer:",
        "coder:",
    ]
    assert "the conversation goes on with the answer of coder" in err
    assert "a new conversation" in err
    figures = [line for line in err.splitlines() if line.startswith("[coder: ")]
    counts = [[int(n) for n in re.findall(r"(\d+) (?:tokens reused|encoded|generated)", line)] for line in figures]
    assert counts[1][0] == sum(counts[0]) - ("cut at its length" in figures[0])
    assert 0 < counts[2][0] < 30, "the system prompt alone is kept"


@pytest.mark.slow
def test_rounds_end_when_the_reviewer_accepts() -> None:
    out, err, code = one_line("--rounds", "3", text=QUESTION)
    assert code == 0, err
    spoken = [line for line in out.splitlines() if line in ("coder:", "reviewer:")]
    assert spoken == ["coder:", "reviewer:"] * (len(spoken) // 2)
    assert ("reviewer accepts in round" in err) == ("No issue found" in out)
    assert ("reviewer accepts" in err) or len(spoken) == 6


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
        (["chat", "--agents", "base,base"], "base takes part already"),
        (["chat", "--agents", "base", "--parallel", "--rounds", "2"], "have no rounds"),
        (["chat", "--agents", "base", "--kv-type", "q8_0", "--state-kv-type", "f16"], "f16"),
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
    # What is left of the first answer ends with an empty line.
    while process.stdout.readline() != "base:\n":
        pass
    process.stdout.read(5)
    process.send_signal(signal.SIGINT)
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
