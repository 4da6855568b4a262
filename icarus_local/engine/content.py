"""The content id of a base: which tensors, bit for bit. Saved K and V are bound to it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
from pathlib import Path

from icarus_local.engine.base import Report
from icarus_local.ggml.gguf import GgufFile
from icarus_local.paths import cache_dir


def content_id(path: Path, report: Report | None = None) -> str:
    """SHA-256 (hex) over names, types, shapes and data of a file's tensors; its keys may change.

    Remembered by the file's path, size and time of change, since a large file takes seconds to read; `report` is told
    how far that is.

    Raises:
        ModelFileError: no GGUF file.
    """
    memory, state = cache_dir() / "content-ids.json", path.stat()
    key = f"{path.resolve()} {state.st_size} {state.st_mtime_ns}"
    known = _read(memory)
    if key not in known:
        known[key] = _hash(path, report)
        # Without a place to remember it, it is computed again.
        with contextlib.suppress(OSError):
            _write(memory, known)
    return known[key]


def _hash(path: Path, report: Report | None) -> str:
    digest, done = hashlib.sha256(), 0
    with (
        GgufFile(path) as file,
        path.open("rb") as handle,
        mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as mapping,
        memoryview(mapping) as data,
    ):
        total = sum(info.n_bytes for info in file.tensors.values())
        for name in sorted(file.tensors):
            info = file.tensors[name]
            digest.update(f"{name} {info.type} {info.shape}\n".encode())
            with data[info.offset : info.offset + info.n_bytes] as part:
                digest.update(part)
            done += info.n_bytes
            if report is not None:
                report(f"checking {path.name}", done / total)
    return digest.hexdigest()


def _read(memory: Path) -> dict[str, str]:
    try:
        known = json.loads(memory.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in known.items() if isinstance(value, str)} if isinstance(known, dict) else {}


def _write(memory: Path, known: dict[str, str]) -> None:
    memory.parent.mkdir(parents=True, exist_ok=True)
    beside = memory.with_name(f".{memory.name}.{os.getpid()}.part")
    beside.write_text(json.dumps(known), "utf-8")
    beside.replace(memory)
