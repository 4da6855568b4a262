"""Saved KV states: token ids, K and V of one sequence in a safetensors file, restored without computing anything."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from icarus_local.engine.content import content_id
from icarus_local.engine.devices import host_memory
from icarus_local.engine.engine import Engine
from icarus_local.engine.kv import KV_TYPES
from icarus_local.errors import ContextFullError, RequestError, StateError
from icarus_local.ggml.library import load

FORMAT_VERSION = 1
_SMALLER_VERSION = 2  # K and V in a smaller type than the cache's: what reads version 1 only must refuse these
SMALLER_TYPES = {"f32": ("f16", "q8_0"), "f16": ("q8_0",)}
_BLOCK = 32  # values that share a scale in q8_0
_FLOATS = {"f32": np.float32, "f16": np.float16}
_LARGEST = 65504.0  # of f16, which the scales of q8_0 are too
_TOKENS = "tokens"
_NOT_USED = "The conversation can be encoded again from its text"

Rows = Mapping[str, npt.NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class State:
    """A copy of a sequence, to be written by any thread whatever the engine does meanwhile.

    Attributes:
        tokens: [length] int32. rows: "k.LAYER" and "v.LAYER" -> [length, bytes of a row] uint8.
        base: its file. facts: what else must be the same for K and V to mean the same.
    """

    tokens: npt.NDArray[np.int32]
    rows: Rows
    base: Path
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Restored:
    """A sequence that was restored, and the smaller type that its K and V were saved in; None where no bit was lost."""

    sequence: int
    saved_as: str | None


def check_saved_as(engine: Engine, saved_as: str) -> None:
    """Raises RequestError where this engine's K and V cannot be saved in the smaller type `saved_as`."""
    _check_smaller(engine.kv_type, engine.base.hp.n_embd_kv, saved_as)


def take_state(engine: Engine, sequence: int) -> State:
    """Copies a sequence; in the engine's thread.

    Raises:
        StateError: no memory for the copy.
    """
    tokens = np.array(engine.cells.tokens(sequence), np.int32)
    needed, free = len(tokens) * engine.kv_bytes_per_token, host_memory()
    if needed > free:
        raise StateError(f"a copy of the KV state takes {needed >> 20} MiB and {free >> 20} MiB are free")
    return State(tokens, engine.kv_rows(sequence), engine.base.path, _facts(engine))


def write_state(state: State, path: Path, kv_type: str | None = None) -> int:
    """Writes a state and gives the file's size in bytes; in any thread.

    It is written beside its place and renamed, readable by its owner only: a reader sees the old file or the new one.

    Args:
        kv_type: one of SMALLER_TYPES of the cache's type to save K and V in, which loses bits; None keeps all.

    Raises:
        StateError: the file cannot be written; what was there before stays. RequestError: no such smaller type.
    """
    header = {**state.facts, "base": content_id(state.base)}
    rows = state.rows
    if kv_type is not None:
        own = str(state.facts["kv_type"])
        _check_smaller(own, int(state.facts["n_embd_kv"]), kv_type)
        rows = {name: _converted(values, own, kv_type) for name, values in rows.items()}
        header |= {"format": _SMALLER_VERSION, "saved_as": kv_type}
    tensors: dict[str, npt.NDArray[Any]] = {_TOKENS: state.tokens, **rows}
    metadata = {"icarus": json.dumps({**header, "sha256": _checksum(tensors)})}
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.touch(mode=0o600)
        save_file(tensors, beside, metadata=metadata)
        beside.chmod(0o600)
        with beside.open("rb") as handle:
            os.fsync(handle.fileno())
        beside.replace(path)
    except (OSError, SafetensorError) as error:
        raise StateError(f"the state {path} cannot be written: {error}") from error
    finally:
        beside.unlink(missing_ok=True)
    return path.stat().st_size


def save_state(engine: Engine, sequence: int, path: Path, kv_type: str | None = None) -> int:
    """`take_state` and `write_state`; in the engine's thread."""
    return write_state(take_state(engine, sequence), path, kv_type)


def load_state(engine: Engine, path: Path) -> Restored:
    """Restores a state as a new sequence; nothing is encoded.

    Everything is checked before a byte of the cache changes.

    Raises:
        StateError: the file is missing, damaged, or of another base, type or version: which. ContextFullError: no room.
    """
    try:
        with safe_open(path, "numpy") as file:
            header = json.loads((file.metadata() or {}).get("icarus", "null"))
            _check_facts(path, header, {**_facts(engine), "base": content_id(engine.base.path)})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - a file is no mapping
    except FileNotFoundError as error:
        raise StateError(f"there is no state {path}") from error
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        raise StateError(f"the state {path} is damaged: {error}", _NOT_USED) from error
    saved_as = header.get("saved_as")
    if not _is_whole(engine, tensors, saved_as or engine.kv_type):
        raise StateError(f"the state {path} is damaged: it does not hold what its header says", _NOT_USED)
    if _checksum(tensors) != header.get("sha256"):
        raise StateError(f"the state {path} is damaged: its checksum differs", _NOT_USED)
    tokens = tensors.pop(_TOKENS)
    if len(tokens) > engine.cells.n_free:
        raise ContextFullError(
            f"the state {path} holds {len(tokens)} tokens and {engine.cells.n_free} are free",
            "Give a larger --n-ctx, or close other conversations",
        )
    if saved_as is not None:
        tensors = {name: _converted(rows, saved_as, engine.kv_type) for name, rows in tensors.items()}
    try:
        return Restored(engine.restore(tokens, tensors), saved_as)
    except RequestError as error:
        raise StateError(f"the state {path} is damaged: {error.what}", _NOT_USED) from error


def _facts(engine: Engine) -> dict[str, Any]:
    """What must be the same for K and V to mean the same, but the base's content id, which may take seconds."""
    hp = engine.base.hp
    return {
        "format": FORMAT_VERSION,
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
    if "saved_as" in header:
        facts = {**facts, "format": _SMALLER_VERSION}
    for key, value in facts.items():
        if header.get(key) != value:
            shown = "" if key in ("base", "rope") else f" ({header.get(key)} instead of {value})"
            raise StateError(f"the state {path} {_WHAT[key]}{shown}", _NOT_USED)
    if "saved_as" in header and header["saved_as"] not in SMALLER_TYPES.get(facts["kv_type"], ()):
        raise StateError(f"the state {path} is damaged: it was saved as {header['saved_as']!r}", _NOT_USED)


def _is_whole(engine: Engine, tensors: Mapping[str, npt.NDArray[Any]], kv_type: str) -> bool:
    """Whether these are token ids, and rows of `kv_type` for each of them in every layer."""
    hp = engine.base.hp
    names = {f"{part}.{layer}" for layer in range(hp.n_layer) for part in "kv"}
    tokens = tensors.get(_TOKENS)
    if set(tensors) != {_TOKENS, *names} or tokens is None or tokens.dtype != np.int32 or tokens.ndim != 1:
        return False
    shape = (len(tokens), int(load().ggml_row_size(KV_TYPES[kv_type], hp.n_embd_kv)))
    return all(tensors[name].dtype == np.uint8 and tensors[name].shape == shape for name in names)


def _checksum(tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(tensors[name]).data)
    return digest.hexdigest()


# -- smaller types -----------------------------------------------------------------------------------------------------


def _check_smaller(kv_type: str, n_embd_kv: int, saved_as: str) -> None:
    possible = SMALLER_TYPES.get(kv_type, ())
    if saved_as not in possible:
        raise RequestError(
            f"K and V of type {kv_type} cannot be saved as {saved_as}",
            f"Smaller types of it are {', '.join(possible)}" if possible else "They are saved as they are",
        )
    if saved_as == "q8_0" and n_embd_kv % _BLOCK:
        raise RequestError(
            f"K and V are saved as q8_0 in rows of a multiple of {_BLOCK} values; this base's have {n_embd_kv}",
            "They are saved as they are where no type is given",
        )


def _converted(rows: npt.NDArray[np.uint8], kind: str, target: str) -> npt.NDArray[np.uint8]:
    """Rows [n, bytes] of f32, f16 or q8_0 in another of these types, rounded as ggml does; no such cache is rotated."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    if kind == "q8_0":
        values = dequantize(rows, GGMLQuantizationType.Q8_0)
    else:
        values = rows.view(_FLOATS[kind]).astype(np.float32)
    # False where one of them is no number, too.
    if values.size and not float(np.abs(values).max()) <= _LARGEST:
        raise StateError(f"a value of K or V is too large for {target}", "Save them as they are")
    rounded = quantize(values, GGMLQuantizationType.Q8_0) if target == "q8_0" else values.astype(_FLOATS[target])
    return np.ascontiguousarray(rounded).view(np.uint8)
