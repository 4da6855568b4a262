"""The files of a run's folder: hashes, versions, JSON written beside and renamed. No torch here."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

RUN_FILE = "icarus_run.json"
RUN_FORMAT = 1
ADAPTER = "adapter"  # the folder within a run's
_PACKAGES = ("torch", "transformers", "peft", "accelerate", "icarus-local")


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Writes a value that a reader sees whole or not at all."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text that a reader sees whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def read_json(path: Path) -> Any:
    """A file's value, or None where there is no such file or it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def last_checkpoint(run: Path) -> Path | None:
    """The newest checkpoint of a run that is whole: transformers writes the trainer's state last."""
    found = [path for path in run.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdecimal()]
    whole = [path for path in found if read_json(path / "trainer_state.json") is not None]
    return max(whole, key=lambda path: int(path.name.removeprefix("checkpoint-")), default=None)


def versions() -> dict[str, str | None]:
    """Python's version, and those of the packages that training depends on; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
