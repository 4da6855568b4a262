"""Reads a PEFT folder: matrices, scales, and how it was trained; refuses what cannot stand on a shared cache."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from icarus_convert.lora_config import CONFIG_FILE, LoraConfig, read_config, read_json_object
from icarus_convert.safetensors_file import read_safetensors
from icarus_local.engine.adapter_file import TRAINED_ICARUS, TRAINED_ORDINARY, TRAINED_UNKNOWN
from icarus_local.errors import AdapterError

WEIGHTS_FILE = "adapter_model.safetensors"
RUN_FILE = "icarus_run.json"
RUN_FORMAT = 1

_METHODS = {"icarus": TRAINED_ICARUS, "lora": TRAINED_ORDINARY}
_TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<part>[AB])(?:\.default)?\.weight")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEY_OR_VALUE = re.compile(r"(^|\.)(k_proj|v_proj|key|value|k|v|wk|wv)$")
# A fused qkv_proj is let through here: `map_modules`, which knows the base, looks at its K and V rows.
_FUSED = re.compile(r"(^|\.)(c_attn|query_key_value|Wqkv|kv_proj|in_proj)$")
_MAX_LISTED = 6
_PLAIN = "Train a LoRA on Q, O and the MLP only (icarus-train does)"


@dataclass(frozen=True, eq=False)
class PeftModule:
    """One adapted linear layer: update `scale * b @ a`; `a` float32 [rank, n_in], `b` float32 [n_out, rank]."""

    name: str
    a: npt.NDArray[np.float32]
    b: npt.NDArray[np.float32]
    scale: float


@dataclass(frozen=True)
class Training:
    """How the adapter was trained, from `icarus_run.json`; empty strings where the file says nothing."""

    trained: str = TRAINED_UNKNOWN
    base_family_id: str = ""
    template_sha256: str = ""
    tokenizer_sha256: str = ""


@dataclass(frozen=True, eq=False)
class PeftFolder:
    """A PEFT folder that passed every check which needs no base."""

    path: Path
    config: LoraConfig
    modules: list[PeftModule]
    training: Training


def read_peft_folder(path: Path) -> PeftFolder:
    """Reads `adapter_config.json`, `adapter_model.safetensors` and, where present, `icarus_run.json`.

    Raises:
        AdapterError, ModelFileError: no PEFT folder, damaged, or with anything that a GGUF LoRA over a shared cache
            cannot express exactly.
    """
    _check_is_folder(path)
    config = read_config(path / CONFIG_FILE)
    weights = path / WEIGHTS_FILE
    if not weights.is_file():
        hint = (
            "Save it again with safe_serialization=True" if (path / "adapter_model.bin").exists() else "Fetch it again"
        )
        raise AdapterError(f"{path} holds no {WEIGHTS_FILE}", hint)
    tensors = read_safetensors(weights)
    modules = _collect(weights, config, tensors)
    return PeftFolder(path, config, modules, _read_training(path, weights))


def _check_is_folder(path: Path) -> None:
    if path.is_file():
        with path.open("rb") as file:
            is_gguf = file.read(4) == b"GGUF"
        if is_gguf:
            raise AdapterError(
                f"{path} is a GGUF file, not a PEFT folder",
                "Perhaps the two arguments are swapped: icarus-convert adapter PEFT_DIR --base BASE.gguf -o OUT.gguf",
            )
        raise AdapterError(f"{path} is a file, not a PEFT folder", f"Give the folder that holds {CONFIG_FILE}")
    if not path.is_dir():
        raise AdapterError(f"there is no folder {path}")
    if not (path / CONFIG_FILE).is_file():
        if (path / "config.json").is_file():
            raise AdapterError(f"{path} holds a whole model, not an adapter", f"Give the folder with {CONFIG_FILE}")
        raise AdapterError(f"{path} holds no {CONFIG_FILE}: it is no PEFT folder")


def _collect(path: Path, config: LoraConfig, tensors: dict[str, npt.NDArray[np.float32]]) -> list[PeftModule]:
    parts: dict[str, dict[str, npt.NDArray[np.float32]]] = {}
    for name, values in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise AdapterError(f"{path} holds the tensor {name}: {_why_no_place(name)}", _PLAIN)
        found = parts.setdefault(match["module"], {})
        if match["part"] in found:
            raise AdapterError(f"{path} holds lora_{match['part']} of {match['module']} twice")
        found[match["part"]] = values
    if not parts:
        raise AdapterError(f"{path} holds no LoRA: it would change nothing", _PLAIN)
    _refuse_keys_and_values(path, list(parts))
    return [_module(path, config, name, found) for name, found in parts.items()]


def _why_no_place(name: str) -> str:
    for mark, reason in (
        ("lora_magnitude_vector", "it is DoRA, which scales every row by a magnitude that no LoRA file holds"),
        (
            "lora_embedding_",
            "embeddings were adapted; every agent reads the base's, so the shared cache would be wrong",
        ),
        ("lora_B.bias", "a bias of lora_B has no place in a GGUF LoRA"),
        (".bias", "trained biases have no place in a GGUF LoRA"),
        (".lora_a", "it is named as MLX does, whose matrices are transposed: write it in PEFT's layout first"),
        (".lora_b", "it is named as MLX does, whose matrices are transposed: write it in PEFT's layout first"),
        ("lora_", "no LoRA tensor of PEFT's Linear is named so"),
    ):
        if mark in name:
            return reason
    return "a whole weight was trained (modules_to_save), and norms or embeddings would change the shared cache"


def _refuse_keys_and_values(path: Path, modules: list[str]) -> None:
    wrong = [name for name in modules if _KEY_OR_VALUE.search(name) or _FUSED.search(name)]
    if wrong:
        more = f" and {len(wrong) - _MAX_LISTED} more" if len(wrong) > _MAX_LISTED else ""
        raise AdapterError(
            f"{path} adapts keys or values in {len(wrong)} modules: {', '.join(wrong[:_MAX_LISTED])}{more}. Every "
            "agent reads the K and V that the frozen base writes: over a shared cache this adapter is silently wrong",
            "Train an ICaRus adapter on the same data with icarus-train, or train a LoRA without K and V on the frozen "
            "base's cache (target_modules q_proj, o_proj, gate_proj, up_proj, down_proj)",
        )


def _module(path: Path, config: LoraConfig, name: str, found: dict[str, npt.NDArray[np.float32]]) -> PeftModule:
    for part in ("A", "B"):
        if part not in found:
            raise AdapterError(f"{path}: {name} has no lora_{part}", "The file is damaged: save or fetch it again")
        if found[part].ndim != 2 or 0 in found[part].shape:
            raise AdapterError(f"{path}: lora_{part} of {name} has the shape {found[part].shape}, which is no matrix")
        if not np.isfinite(found[part]).all():
            raise AdapterError(f"{path}: lora_{part} of {name} holds values that are not finite", "Train it again")
    a, b, rank = found["A"], found["B"], config.rank(name)
    if a.shape[0] != rank or b.shape[1] != rank:
        raise AdapterError(
            f"{path}: {name} has matrices of rank {a.shape[0]} and {b.shape[1]}, and {CONFIG_FILE} says {rank}: the "
            "scale would be wrong",
            "Weights and configuration are of two adapters: fetch or save both again",
        )
    return PeftModule(name, a, b, config.scale(name))


def _read_training(folder: Path, weights: Path) -> Training:
    path = folder / RUN_FILE
    if not path.is_file():
        return Training()
    run = read_json_object(path)
    if run.get("format") != RUN_FORMAT:
        raise AdapterError(f"{path} is of format {run.get('format')!r}; this program reads {RUN_FORMAT}", "Update it")
    method = run.get("method")
    if not isinstance(method, str) or method not in _METHODS:
        raise AdapterError(f"{path}: method is {method!r}, not one of {', '.join(_METHODS)}")
    trained_on = _sha256(path, run, "adapter_sha256")
    if method == "icarus" and not trained_on:
        raise AdapterError(f"{path} does not say which weights it is for (adapter_sha256)", "Fetch or train both again")
    if trained_on and trained_on != hashlib.sha256(weights.read_bytes()).hexdigest():
        raise AdapterError(f"{weights} is not the file that {path.name} was written for", "Fetch or train both again")
    return Training(
        trained=_METHODS[method],
        base_family_id=_sha256(path, run, "base_family_id"),
        template_sha256=_sha256(path, run, "template_sha256"),
        tokenizer_sha256=_sha256(path, run, "tokenizer_sha256"),
    )


def _sha256(path: Path, run: dict[str, Any], key: str) -> str:
    value = run.get(key)
    if value is None:
        return ""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise AdapterError(f"{path}: {key} is {value!r}, not a SHA-256 in hexadecimal")
    return value
