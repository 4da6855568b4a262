"""Which model a GGUF file is, whatever its quantisation: the family id that adapters are bound to."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from icarus_local.engine.architecture import ARCHITECTURES, NEUTRAL, read_hyperparameters
from icarus_local.engine.rope import Rope
from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile, TensorInfo
from icarus_local.ggml.library import TYPE_F16, TYPE_F32
from icarus_local.ggml.vocabulary import vocabulary_sha256

TYPE_BF16 = 30

# Architectures whose ids are taken from the file's keys, as they were before there were others; so are unknown ones.
_BY_KEYS = ("llama", "qwen2", "qwen3")
# What changes the function of a model and is not in its shapes; keys that are absent or neutral count as null.
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


def family_id(file: GgufFile) -> str:
    """SHA-256 (hex) of what all quantisations of one model have in common (design section 7).

    Over: architecture, hyperparameters (with llama.cpp's defaults, so that converters which leave them out agree) and
    tensor shapes, rope parameters, token strings and types, and every 1-D norm tensor (and rope's factors) as F32 in
    order of name. A LoRA merged into a base with frozen norms is what it cannot see.

    Raises:
        ModelFileError: the file is an adapter, or lacks what every model has.
    """
    if file.value("general.type") == "adapter":
        raise ModelFileError(f"{file.path} is a LoRA adapter, not a base model", "Give the base's file")
    arch = file.require("general.architecture", str)
    facts = {
        "format": 1,
        "architecture": arch,
        "hyperparameters": _computed(file, arch) if arch in {*ARCHITECTURES} - {*_BY_KEYS} else _named(file, arch),
        "shapes": {name: file.tensors[name].shape for name in sorted(file.tensors)},
        "vocabulary": vocabulary_sha256(file),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(file.tensors):
        info = file.tensors[name]
        if len(info.shape) == 1 and ("norm" in name or name.startswith("rope_f")):
            digest.update(name.encode() + b"\0" + _as_f32(file, info).astype("<f4").tobytes())
    return digest.hexdigest()


def _computed(file: GgufFile, arch: str) -> dict[str, Any]:
    """What the graph computes with, defaults included; no logarithm, whose last bit not all C libraries agree on."""
    hp = read_hyperparameters(file)
    attn_factor = file.value(f"{arch}.rope.scaling.attn_factor")

    return {
        "block_count": hp.n_layer,
        "embedding_length": hp.n_embd,
        "feed_forward_length": hp.n_ff,
        "head_count": hp.n_head,
        "head_count_kv": hp.n_head_kv,
        "key_length": hp.n_embd_head,
        "norm_eps": hp.norm_eps,
        "rope": _rope_facts(hp.rope),
        "rope_attn_factor": 1.0 if attn_factor is None else attn_factor,
        "attention_scale": hp.attention_scale,
        "softcaps": [hp.attn_softcap, hp.logit_softcap],
        "scales": [hp.logit_scale, hp.residual_scale, hp.embedding_scale],
        "window": [hp.window, hp.windowed, _rope_facts(hp.rope_windowed)] if any(hp.windowed) else None,
        "experts": [hp.n_expert, hp.n_expert_used],
    }


def _rope_facts(rope: Rope) -> list[Any]:
    original = [rope.n_ctx_orig] if rope.ext_factor or len(rope.factors) > 1 else []
    return [rope.dims, rope.freq_base, rope.freq_scale, rope.ext_factor, *original]


def _named(file: GgufFile, arch: str) -> dict[str, Any]:
    """The file's keys, with the defaults of those that converters often leave out."""

    def value(key: str, default: Any = None) -> Any:
        found = file.value(f"{arch}.{key}")
        if found is None:
            return default
        return found.tolist() if isinstance(found, np.ndarray) else found

    n_embd, n_head = file.require(f"{arch}.embedding_length", int), value("attention.head_count")
    if n_head is None:
        raise ModelFileError(f"{file.path} lacks the key {arch}.attention.head_count", "Convert the model again")
    width = n_embd // n_head if isinstance(n_head, int) and n_head > 0 else None
    names = [key.removeprefix(f"{arch}.") for key in file.keys()]  # noqa: SIM118 - a file is no mapping
    scaling: Any = {name: value(name) for name in names if name.startswith(("rope.scaling.", "rope.scale_"))}
    if not scaling or value("rope.scaling.type") == "none":
        scaling = "none"
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
        "others": {key: None if value(key) in NEUTRAL.get(key, ()) else value(key) for key in _OPTIONAL_KEYS},
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
