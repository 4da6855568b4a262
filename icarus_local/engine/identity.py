"""Which model a GGUF file is: the family id of a model in any quantisation, the content id of one file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile, TensorInfo
from icarus_local.ggml.library import TYPE_F16, TYPE_F32
from icarus_local.ggml.vocabulary import vocabulary_sha256
from icarus_local.paths import cache_dir

TYPE_BF16 = 30

# What changes the function of a model and is not in its shapes; absent keys count as null.
_OPTIONAL_KEYS = (
    "attention.sliding_window",
    "attention.scale",
    "attention.clamp_kqv",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "expert_count",
    "expert_used_count",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
)
_CHUNK_BYTES = 1 << 22


def family_id(file: GgufFile) -> str:
    """SHA-256 (hex) of what all quantisations of one model have in common (design section 7).

    Over: architecture, hyperparameters and tensor shapes, rope parameters, token strings and types, and every 1-D norm
    tensor (and rope's factors) as F32 in order of name. A LoRA merged into a base with frozen norms is what it cannot
    see.

    Raises:
        ModelFileError: the file is an adapter, or lacks what every model has.
    """
    if file.value("general.type") == "adapter":
        raise ModelFileError(f"{file.path} is a LoRA adapter, not a base model", "Give the base's file")
    arch = file.require("general.architecture", str)
    facts = {
        "format": 1,
        "architecture": arch,
        "hyperparameters": _hyperparameters(file, arch),
        "shapes": {name: file.tensors[name].shape for name in sorted(file.tensors)},
        "vocabulary": vocabulary_sha256(file),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(file.tensors):
        info = file.tensors[name]
        if len(info.shape) == 1 and ("norm" in name or name == "rope_freqs.weight"):
            digest.update(name.encode() + b"\0" + _as_f32(file, info).astype("<f4").tobytes())
    return digest.hexdigest()


def _hyperparameters(file: GgufFile, arch: str) -> dict[str, Any]:
    """Named values with the defaults that llama.cpp gives, so that converters which leave them out agree."""

    def value(key: str, default: Any = None) -> Any:
        found = file.value(f"{arch}.{key}")
        if found is None:
            return default
        return found.tolist() if isinstance(found, np.ndarray) else found

    n_embd, n_head = file.require(f"{arch}.embedding_length", int), value("attention.head_count")
    if n_head is None:
        raise ModelFileError(f"{file.path} lacks the key {arch}.attention.head_count", "Convert the model again")
    width = n_embd // n_head if isinstance(n_head, int) and n_head > 0 else None
    scaling: Any = value("rope.scaling.type", "none")
    if scaling != "none":
        names = [key.removeprefix(f"{arch}.") for key in file.keys()]  # noqa: SIM118 - a file is no mapping
        scaling = {name: value(name) for name in names if name.startswith("rope.scaling.")}
    return {
        "block_count": file.require(f"{arch}.block_count", int),
        "embedding_length": n_embd,
        "feed_forward_length": value("feed_forward_length"),
        "head_count": n_head,
        "head_count_kv": value("attention.head_count_kv", n_head),
        "key_length": value("attention.key_length", width),
        "value_length": value("attention.value_length", width),
        "norm_eps": [value("attention.layer_norm_rms_epsilon"), value("attention.layer_norm_epsilon")],
        "rope_dims": value("rope.dimension_count", value("attention.key_length", width)),
        "rope_freq_base": value("rope.freq_base", 10000.0),
        "rope_scaling": scaling,
        "others": {key: value(key) for key in _OPTIONAL_KEYS},
    }


def _as_f32(file: GgufFile, info: TensorInfo) -> npt.NDArray[np.float32]:
    values = to_f32(file.read_tensor(info.name), info.type)
    if values is None or values.size != np.prod(info.shape):
        raise ModelFileError(
            f"{file.path}: tensor {info.name} is of type {info.type}, where norms are F32", "Convert the model again"
        )
    return values


def to_f32(raw: npt.NDArray[np.uint8], kind: int) -> npt.NDArray[np.float32] | None:
    """Flat F32 values of the bytes of a F32, F16 or BF16 tensor; None for every other type."""
    if kind == TYPE_F32:
        return raw.view("<f4").astype(np.float32, copy=False)
    if kind == TYPE_F16:
        return raw.view("<f2").astype(np.float32)
    if kind == TYPE_BF16:
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return None


def content_id(path: Path) -> str:
    """SHA-256 (hex) over a file's tensor table (names, types, shapes) and tensor data, which a KV state is bound to.

    It is remembered by path, size and modification time in `content_ids.json` of the cache directory.

    Raises:
        ModelFileError: the file cannot be read, or changed while it was read.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
    key, stamp = str(path.resolve()), [stat.st_size, stat.st_mtime_ns]
    store = cache_dir() / "content_ids.json"
    known = _read_store(store)
    entry = known.get(key)
    if isinstance(entry, dict) and entry.get("stamp") == stamp and isinstance(entry.get("id"), str):
        return str(entry["id"])
    found = _hash_tensors(path)
    _write_store(store, {**known, key: {"stamp": stamp, "id": found}})
    return found


def _hash_tensors(path: Path) -> str:
    digest = hashlib.sha256()
    with GgufFile(path) as file, path.open("rb") as handle:
        for name in sorted(file.tensors):
            info = file.tensors[name]
            digest.update(json.dumps([name, info.type, info.shape]).encode())
            handle.seek(info.offset)
            left = info.n_bytes
            while left:
                chunk = handle.read(min(left, _CHUNK_BYTES))
                if not chunk:
                    raise ModelFileError(f"{path} became shorter while it was read")
                digest.update(chunk)
                left -= len(chunk)
    return digest.hexdigest()


def _read_store(store: Path) -> dict[str, Any]:
    try:
        known = json.loads(store.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}  # a lost or damaged cache costs one more hashing
    return known if isinstance(known, dict) else {}


def _write_store(store: Path, known: dict[str, Any]) -> None:
    beside = store.with_name(f"{store.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        store.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(known, indent=1))
        beside.replace(store)
