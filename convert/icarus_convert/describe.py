"""What a base, an adapter or a folder of one is, as plain values for a table or JSON."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from icarus_convert.find_source import adapters_in, choose, read_source
from icarus_convert.source import is_key_or_value
from icarus_local.engine import adapter_file as keys
from icarus_local.engine.adapter_file import read_adapter, refusal
from icarus_local.engine.architecture import read_hyperparameters
from icarus_local.engine.content import content_id
from icarus_local.engine.identity import family_id, to_f32
from icarus_local.engine.weights import check_tensors
from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile, TensorInfo
from icarus_local.ggml.library import load
from icarus_local.ggml.vocabulary import vocabulary_sha256

_MAX_REASONS = 6
_FUSED_NOTE = "the K and V rows of its fused QKV are compared with zero where the base is known (verify, chat)"


def describe(path: Path) -> dict[str, Any]:
    """What a file or folder is.

    Raises:
        ModelFileError: it is neither a GGUF nor a folder of an adapter, or damaged.
    """
    if path.is_dir():
        return _folder(path)
    with GgufFile(path) as file:
        common = {
            "path": str(path),
            "kind": "adapter" if file.value(keys.KEY_TYPE) == "adapter" else "base",
            "name": _text(file, "general.name"),
            "architecture": _text(file, "general.architecture"),
            "bytes": path.stat().st_size,
            "tensors": len(file.tensors),
            "types": _types(file),
        }
        return common | (_adapter(file) if common["kind"] == "adapter" else _base(file))


def _text(file: GgufFile, key: str) -> str:
    value = file.value(key)
    return value if isinstance(value, str) else ""


def _types(file: GgufFile) -> dict[str, dict[str, int]]:
    """Tensors and bytes by type."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: {"tensors": 0, "bytes": 0})
    for info in file.tensors.values():
        entry = found[_type_name(info.type)]
        entry["tensors"] += 1
        entry["bytes"] += info.n_bytes
    return dict(found)


def _type_name(kind: int) -> str:
    name = load().ggml_type_name(kind)
    return name.decode() if name else str(kind)


def _base(file: GgufFile) -> dict[str, Any]:
    template = file.value("tokenizer.chat_template")
    facts: dict[str, Any] = {
        "template": isinstance(template, str) and bool(template),
        "tokenizer": _text(file, "tokenizer.ggml.model"),
        "pre_tokenizer": _text(file, "tokenizer.ggml.pre"),
        "content_id": content_id(file.path),
    }
    try:
        hp = read_hyperparameters(file)
        facts |= {
            "sizes": {
                "layers": hp.n_layer,
                "embedding": hp.n_embd,
                "feed_forward": hp.n_ff,
                "heads": hp.n_head,
                "kv_heads": hp.n_head_kv,
                "head": hp.n_embd_head,
                "vocabulary": hp.n_vocab,
                "context": hp.n_ctx_train,
                "parameters": sum(int(np.prod(info.shape)) for info in file.tensors.values()),
            },
            "tied_head": "output.weight" not in file.tensors,
            "family_id": family_id(file),
            "tokenizer_sha256": vocabulary_sha256(file),
        }
        check_tensors(file, hp)
    except ModelFileError as error:
        # A model of another kind can be looked at, too.
        return facts | {"runs": False, "why_not": str(error)}
    return facts | {"runs": True}


def _adapter(file: GgufFile) -> dict[str, Any]:
    pairs: dict[str, dict[str, TensorInfo]] = defaultdict(dict)
    strange = []
    for name, info in file.tensors.items():
        tensor, _, part = name.rpartition(".")
        if part in ("lora_a", "lora_b"):
            pairs[tensor][part] = info
        else:
            strange.append(name)
    alpha = file.value(keys.KEY_ALPHA)
    safe, why = _kv_safety(list(pairs), strange)
    with file.path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    dropped = file.value(keys.KEY_DROPPED_KV)
    facts = {
        "adapter_type": _text(file, keys.KEY_ADAPTER_TYPE),
        "format_version": file.value(keys.KEY_VERSION) if isinstance(file.value(keys.KEY_VERSION), int) else None,
        "content_id": digest,
        "base": {"name": _text(file, keys.KEY_BASE_NAME), "family_id": _text(file, keys.KEY_FAMILY)},
        "modules": _modules({tensor: _rank(found) for tensor, found in pairs.items()}),
        "scale": f"alpha {alpha:g}, divided by each rank" if isinstance(alpha, float) and alpha else "in lora_b",
        "training": {
            "trained": _text(file, keys.KEY_TRAINED) or keys.TRAINED_UNKNOWN,
            "assumed": file.value(keys.KEY_ASSUMED) is True,
            "dropped_kv": dropped if isinstance(dropped, list) else [],
        },
        "kv_safe": safe,
        "kv_reasons": why,
        "template_sha256": _text(file, keys.KEY_TEMPLATE),
        "tokenizer_sha256": _text(file, keys.KEY_TOKENIZER),
        "largest": _largest(file),
    }
    try:
        read_adapter(file.path)
    except ModelFileError as error:
        return facts | {"runs": False, "why_not": str(error)}
    return facts | {"runs": True}


def _rank(found: dict[str, TensorInfo]) -> int:
    """ggml's shape of a lora_a is [n_in, rank]; a rank of 1 comes as one dimension."""
    shape = found["lora_a"].shape if "lora_a" in found else ()
    return shape[1] if len(shape) > 1 else 1


def _modules(ranks: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Weights and ranks by module."""
    counted: dict[str, Counter[int]] = defaultdict(Counter)
    for tensor, rank in ranks.items():
        parts = tensor.split(".")
        counted[parts[2] if len(parts) > 2 else tensor][rank] += 1
    return {
        module: {"weights": sum(ranks.values()), "ranks": {str(rank): n for rank, n in sorted(ranks.items())}}
        for module, ranks in sorted(counted.items())
    }


def _kv_safety(tensors: list[str], strange: list[str]) -> tuple[bool, list[str]]:
    """Whether nothing in the file changes what all agents share, and why not, or what is still to be seen."""
    reasons = [f"{tensor}: {refusal(tensor)}" for tensor in sorted(tensors) if refusal(tensor)]
    reasons += [f"{name}: {refusal(name) or 'it is neither a lora_a nor a lora_b'}" for name in sorted(strange)]
    if reasons:
        more = [f"and {len(reasons) - _MAX_REASONS} more"] if len(reasons) > _MAX_REASONS else []
        return False, [*reasons[:_MAX_REASONS], *more]
    return True, [_FUSED_NOTE] if any(".attn_qkv." in tensor for tensor in tensors) else []


def _largest(file: GgufFile) -> dict[str, dict[str, Any]]:
    """The largest value of all lora_a, and of all lora_b; None where one is not finite or its type is not read."""
    found: dict[str, dict[str, Any]] = {}
    for name, info in file.tensors.items():
        part = name.rpartition(".")[2]
        raw = file.read_tensor(name)
        values = keys.from_q8_0(raw) if info.type == keys.TYPE_Q8_0 else to_f32(raw, info.type)
        if part not in ("lora_a", "lora_b") or values is None or not values.size:
            continue
        largest = float(np.abs(values).max())
        if not np.isfinite(largest):
            found[part] = {"value": None, "tensor": name}
        elif part not in found or (found[part]["value"] is not None and largest > found[part]["value"]):
            found[part] = {"value": largest, "tensor": name}
    return found


def _folder(path: Path) -> dict[str, Any]:
    several = adapters_in(path)
    if len(several) > 1:
        return {
            "path": str(path),
            "kind": "folder",
            "adapters": {name: _or_why_not(folder) for name, folder in several.items()},
        }
    return _one_folder(choose(path, None))


def _or_why_not(path: Path) -> dict[str, Any]:
    try:
        return _one_folder(path)
    except ModelFileError as error:
        return {"path": str(path), "why_not": str(error)}


def _one_folder(path: Path) -> dict[str, Any]:
    source = read_source(path, keep_kv=True)
    wrong = [module.name for module in source.modules if is_key_or_value(module.name)]
    counted: dict[str, Counter[int]] = defaultdict(Counter)
    for module in source.modules:
        counted[module.name.rpartition(".")[2]][module.a.shape[0]] += 1
    return {
        "path": str(path),
        "kind": "folder",
        "layout": source.layout,
        "base": {"name": source.base_model, "family_id": source.training.base_family_id},
        "modules": {
            name: {"weights": sum(ranks.values()), "ranks": {str(rank): n for rank, n in sorted(ranks.items())}}
            for name, ranks in sorted(counted.items())
        },
        "scales": sorted({module.scale for module in source.modules}),
        "training": {"trained": source.training.trained},
        "kv_safe": not wrong,
        "kv_reasons": [f"{name}: it changes K or V" for name in wrong[:_MAX_REASONS]],
        "template_sha256": source.training.template_sha256,
        "tokenizer_sha256": source.training.tokenizer_sha256,
    }


def lines(found: dict[str, Any], indent: str = "") -> Iterator[str]:
    """A table of what `describe` gave, one fact a line."""
    width = max(len(key) for key in found)
    for key, value in found.items():
        label = f"{indent}{key.replace('_', ' '):<{width}}  "
        if isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values()):
            yield label.rstrip()
            inner_width = max(len(name) for name in value)
            for name, inner in value.items():
                yield f"{indent}  {name:<{inner_width}}  {_words(inner)}"
        elif isinstance(value, list) and len(value) > 1:
            yield label.rstrip()
            yield from (f"{indent}  {_words(item)}" for item in value)
        else:
            yield label + _words(value)


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_words(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_words, value)) or "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    # Names come from files: a line stays a line, and a terminal's controls stay text.
    text = "unknown" if value in ("", None) else str(value)
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
