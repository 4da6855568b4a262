"""`icarus-convert base OWNER/NAME` against a stand-in for the Hub that speaks its HTTP on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from icarus_local.engine.base import BaseFile
from tests.convert.hf_models import converted, save
from tests.hub_server import HubServer, serving

REPO = "somebody/tiny-llama"
COMMAND = [sys.executable, "-c", "from icarus_convert.cli import main; main()", "base"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    folder = save(tmp_path / "model", max_shard_size="200KB")
    with serving(tmp_path / "served") as server:
        for file in folder.iterdir():
            server.add(f"{REPO}/{file.name}", file.read_bytes())
        # What nobody asked for.
        for name in ("pytorch_model.bin", "original/consolidated.safetensors", "README.md", "onnx/model.onnx"):
            server.add(f"{REPO}/{name}", b"x")
        yield server


def start(hub: HubServer, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # huggingface-hub reads its endpoint once, at import: hence a process of its own.
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING", "XDG_"))}
    mine = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home / "home"), "HF_HUB_DOWNLOAD_TIMEOUT": "5"}
    result = subprocess.run(
        [*COMMAND, *arguments], env={**kept, **mine}, capture_output=True, text=True, timeout=120, check=False
    )
    assert "Traceback" not in result.stderr, result.stderr
    return result


def test_a_repository(hub: HubServer, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    result = start(hub, tmp_path, REPO, "-o", str(out))
    assert result.returncode == 0, result.stderr
    assert "tiny-llama, llama in F32" in result.stdout
    ours, folders = BaseFile(out), BaseFile(converted(tmp_path / "model", tmp_path / "folder.gguf"))
    assert ours.family_id == folders.family_id
    ours.close()
    folders.close()
    fetched = {asked.path.rpartition("/main/")[2] for asked in hub.asked if "/resolve/" in asked.path}
    assert not any(part in path for path in fetched for part in ("pytorch", "original", "README", "onnx"))
    # From the cache, with no word to anybody.
    n_asked = len(hub.asked)
    again = start(hub, tmp_path, REPO, "-o", str(tmp_path / "again.gguf"), "--local-files-only")
    assert again.returncode == 0, again.stderr
    assert len(hub.asked) == n_asked
    assert (tmp_path / "again.gguf").read_bytes() == out.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("nobody/nothing",), "no repository nobody/nothing"),
        ((REPO, "--revision", "ghost"), "no revision ghost"),
        ((REPO, "--local-files-only"), "is not in"),
    ],
)
def test_refused(hub: HubServer, tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    result = start(hub, tmp_path, *arguments, "-o", str(tmp_path / "out.gguf"))
    assert result.returncode == 1
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("*.gguf"))
