"""Adapters from the Hub, against the stand-in that speaks its HTTP on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from icarus_convert.base import read_base
from icarus_local.engine.adapter_file import MODULES
from tests.convert.folders import lora_tensors, write_folder
from tests.hub_server import HubServer, serving
from tests.tiny import Tiny


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served") as hub:
        yield hub


def run(hub: HubServer, home: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    # huggingface-hub reads its endpoint once, at import: hence a process of its own.
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environment = {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1", **changes}
    command = [sys.executable, "-c", "from icarus_convert.cli import main; main()", "adapter", *arguments]
    result = subprocess.run(command, text=True, capture_output=True, env=environment, timeout=120, check=False)
    assert "Traceback" not in result.stderr, result.stderr
    return result


def served(hub: HubServer, tiny: Tiny, directory: Path) -> None:
    base = read_base(tiny.path)
    folders = {
        "coder": write_folder(directory / "main", lora_tensors(base, MODULES)),
        "several/a": write_folder(directory / "a", lora_tensors(base, MODULES, seed=1)),
        "several/b": write_folder(directory / "b", lora_tensors(base, MODULES, seed=2)),
        "pickled": write_folder(directory / "pickled", lora_tensors(base, MODULES)),
    }
    weights = {name: torch.from_numpy(values) for name, values in lora_tensors(base, MODULES).items()}
    torch.save(weights, directory / "pickled" / "adapter_model.bin")
    (directory / "pickled" / "adapter_model.safetensors").unlink()
    for name, folder in folders.items():
        for path in folder.iterdir():
            hub.add(f"somebody/{name}/{path.name}", path.read_bytes())
            if name.startswith("several/"):
                repo, inner = name.split("/")
                hub.add(f"somebody/{repo}/{inner}/{path.name}", path.read_bytes())
    for path in folders["several/b"].iterdir():
        hub.add(f"somebody/coder/{path.name}", path.read_bytes(), "v2")
    hub.add("somebody/coder/pytorch_model.bin", b"much", "main")
    hub.add("somebody/bases/tiny.gguf", tiny.path.read_bytes())


def test_by_name(hub: HubServer, tiny: Tiny, tmp_path: Path) -> None:
    served(hub, tiny, tmp_path / "folders")
    home, out = tmp_path / "home", tmp_path / "out"
    out.mkdir()

    def convert(name: str, file: str, *options: str, **changes: str) -> subprocess.CompletedProcess[str]:
        target = ["-o", str(out / file), "--base", str(tiny.path), "--assume-icarus"]
        return run(hub, home, name, *target, *options, **changes)

    offline = convert("somebody/coder", "a.gguf", "--local-files-only")
    assert offline.returncode == 1
    assert not hub.asked
    first = convert("somebody/coder", "a.gguf")
    assert first.returncode == 0, first.stderr
    assert not any("pytorch_model" in asked.path for asked in hub.asked if asked.method == "GET")
    other = convert("somebody/coder", "b.gguf", "--revision", "v2")
    assert other.returncode == 0, other.stderr
    assert (out / "a.gguf").read_bytes()[-4096:] != (out / "b.gguf").read_bytes()[-4096:]
    asked = len(hub.asked)
    cached = convert("somebody/coder", "c.gguf", "--local-files-only")
    assert cached.returncode == 0, cached.stderr
    assert len(hub.asked) == asked
    unreachable = convert("somebody/coder", "h.gguf", HF_ENDPOINT="http://127.0.0.1:9")
    assert unreachable.returncode == 0, unreachable.stderr
    nothing = convert("somebody/pickled", "i.gguf", HF_ENDPOINT="http://127.0.0.1:9")
    assert nothing.returncode == 1
    assert "there is no folder somebody/pickled here, and" in nothing.stderr
    assert "the connection to" in nothing.stderr
    pickled = convert("somebody/pickled", "d.gguf")
    assert pickled.returncode == 0, pickled.stderr
    several = convert("somebody/several", "e.gguf")
    assert several.returncode == 1
    assert "a, b" in several.stderr
    assert convert("somebody/several", "f.gguf", "--adapter", "b").returncode == 0
    based = run(hub, home, "somebody/coder", "--base", "somebody/bases/tiny.gguf", "-o", str(out / "g.gguf"))
    assert "--assume-icarus" in based.stderr
    left = {path.name for path in out.iterdir()}
    assert left == {"a.gguf", "b.gguf", "c.gguf", "d.gguf", "f.gguf", "h.gguf"}


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "somebody/nothing",
            [],
            ["there is no folder somebody/nothing here", "there is no repository somebody/nothing"],
        ),
        ("somebody/coder", ["--revision", "v9"], ["no revision v9"]),
        ("somebody/coder", ["--adapter", "b"], ["no adapter 'b'"]),
        ("not-a-name", [], ["no folder not-a-name"]),
        ("some body/coder", [], ["no folder"]),
    ],
)
def test_what_the_hub_does_not_have(
    hub: HubServer, tiny: Tiny, tmp_path: Path, name: str, options: list[str], words: list[str]
) -> None:
    served(hub, tiny, tmp_path / "folders")
    out = tmp_path / "out.gguf"
    result = run(hub, tmp_path / "home", name, "--base", str(tiny.path), "-o", str(out), "--assume-icarus", *options)
    assert result.returncode == 1
    assert not out.exists()
    assert result.stderr.splitlines()[-1].startswith("icarus-convert: ")
    for word in words:
        assert word in result.stderr
