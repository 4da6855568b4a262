"""Saved KV states: token ids, K and V of one sequence in a safetensors file, restored without computing anything."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from icarus_local.engine.content import content_id
from icarus_local.engine.engine import Engine
from icarus_local.errors import ContextFullError, StateError

FORMAT_VERSION = 1
_TOKENS = "tokens"
_NOT_USED = "The conversation can be encoded again from its text"


def save_state(engine: Engine, sequence: int, path: Path) -> int:
    """Writes a sequence's state and gives the file's size in bytes.

    It is written beside its place and renamed, readable by its owner only: a reader sees the old file or the new one.

    Raises:
        StateError: the file cannot be written; what was there before stays.
    """
    tokens = np.array(engine.cells.tokens(sequence), np.int32)
    tensors: dict[str, npt.NDArray[Any]] = {_TOKENS: tokens, **engine.kv_rows(sequence)}
    header = {"icarus": json.dumps({**_facts(engine), "sha256": _checksum(tensors)})}
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.touch(mode=0o600)
        save_file(tensors, beside, metadata=header)
        beside.chmod(0o600)
        with beside.open("rb") as handle:
            os.fsync(handle.fileno())
        beside.replace(path)
    except (OSError, SafetensorError) as error:
        raise StateError(f"the state {path} cannot be written: {error}") from error
    finally:
        beside.unlink(missing_ok=True)
    return path.stat().st_size


def load_state(engine: Engine, path: Path) -> int:
    """Restores a state as a new sequence; nothing is encoded.

    Everything is checked before a byte of the cache changes.

    Raises:
        StateError: the file is missing, damaged, or of another base, type or version: which. ContextFullError: no room.
    """
    try:
        with safe_open(path, "numpy") as file:
            header = json.loads((file.metadata() or {}).get("icarus", "null"))
            _check_facts(path, header, _facts(engine))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - a file is no mapping
    except FileNotFoundError as error:
        raise StateError(f"there is no state {path}") from error
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        raise StateError(f"the state {path} is damaged: {error}", _NOT_USED) from error
    expected = {_TOKENS, *(f"{part}.{layer}" for layer in range(engine.base.hp.n_layer) for part in "kv")}
    if set(tensors) != expected or tensors[_TOKENS].dtype != np.int32 or tensors[_TOKENS].ndim != 1:
        raise StateError(f"the state {path} is damaged: it does not hold what its header says", _NOT_USED)
    if _checksum(tensors) != header.get("sha256"):
        raise StateError(f"the state {path} is damaged: its checksum differs", _NOT_USED)
    tokens = tensors.pop(_TOKENS)
    if len(tokens) > engine.cells.n_free:
        raise ContextFullError(
            f"the state {path} holds {len(tokens)} tokens and {engine.cells.n_free} are free",
            "Give a larger --n-ctx, or close other conversations",
        )
    return engine.restore(tokens, tensors)


def _facts(engine: Engine) -> dict[str, Any]:
    """What must be the same for K and V to mean the same."""
    hp = engine.base.hp
    return {
        "format": FORMAT_VERSION,
        "base": content_id(engine.base.path),
        "kv_type": engine.kv_type,
        "n_layer": hp.n_layer,
        "n_embd_kv": hp.n_embd_kv,
        "rope": [_rope(rope, engine.n_ctx) for rope in (hp.rope, hp.rope_windowed)],
    }


def _rope(rope: Any, n_ctx: int) -> list[Any]:
    """The rope's parameters, and which factors a context of this size takes."""
    values = dataclasses.asdict(rope)
    values["factors"] = rope.factors_for(n_ctx)
    return [values[name] for name in sorted(values)]


_WHAT = {
    "format": "has another format version",
    "base": "is of another base, or another quantisation of it",
    "kv_type": "has another type of K and V",
    "n_layer": "has another number of layers",
    "n_embd_kv": "has K and V of another width",
    "rope": "was made with other rope parameters: for LongRoPE another --n-ctx changes them",
}


def _check_facts(path: Path, header: Any, facts: Mapping[str, Any]) -> None:
    if not isinstance(header, dict):
        raise StateError(f"{path} is no saved state of this program")
    for key, value in facts.items():
        if header.get(key) != value:
            shown = "" if key in ("base", "rope") else f" ({header.get(key)} instead of {value})"
            raise StateError(f"the state {path} {_WHAT[key]}{shown}", _NOT_USED)


def _checksum(tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(tensors[name]).data)
    return digest.hexdigest()
