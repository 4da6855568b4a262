"""Reads an adapter of MLX (mlx-lm): matrices transposed, and one scale for all of them.

mlx-lm computes x @ lora_a @ lora_b * scale, with lora_a [n_in, r] and lora_b [r, n_out] (mlx_lm/tuner/lora.py).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from icarus_convert.run_file import read_training
from icarus_convert.safetensors_file import read_safetensors
from icarus_convert.source import ONLY_PLAIN, Matrix, Module, Source, check_matrices, in_order, refuse_keys_and_values
from icarus_local.errors import AdapterError

WEIGHTS_FILE = "adapters.safetensors"
_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<part>[ab])")


def is_mlx(config: dict[str, Any]) -> bool:
    """Whether an `adapter_config.json` is MLX's."""
    return "peft_type" not in config and ("fine_tune_type" in config or "lora_parameters" in config)


def read_mlx_folder(path: Path, config_path: Path, config: dict[str, Any], *, keep_kv: bool = False) -> Source:
    """Reads `adapters.safetensors` by its `adapter_config.json`.

    Args:
        path: the folder. config_path, config: its configuration's file and content.
        keep_kv: leave modules of K and V in instead of refusing them.

    Raises:
        AdapterError, ModelFileError: damaged, or with anything that a GGUF LoRA over a shared cache cannot express.
    """
    scaling = _checked(config_path, config)
    weights = path / WEIGHTS_FILE
    if not weights.is_file():
        raise AdapterError(f"{path} is an adapter of MLX without {WEIGHTS_FILE}", "Fetch it again, or fuse and save it")
    tensors = read_safetensors(weights)
    parts: dict[str, dict[str, str]] = {}
    for name in tensors:
        match = _TENSOR.fullmatch(name)
        if match is None:
            why = "DoRA's magnitude" if name.endswith(".m") else "no matrix of a LoRA, so a whole weight was trained"
            raise AdapterError(f"{weights} holds the tensor {name}, which is {why}", ONLY_PLAIN)
        parts.setdefault(match["module"], {})[match["part"]] = name
    if not parts:
        raise AdapterError(f"{weights} holds no LoRA: it would change nothing", ONLY_PLAIN)
    if not keep_kv:
        refuse_keys_and_values(weights, parts)
    modules = [_module(weights, name, parts[name], tensors, scaling) for name in in_order(parts)]
    base_model = config.get("model")
    return Source(
        path, "MLX", base_model if isinstance(base_model, str) else "", modules, read_training(path, [weights])
    )


def _checked(path: Path, config: dict[str, Any]) -> tuple[float, int | None]:
    """The scale, and the rank where the configuration names it."""
    kind = config.get("fine_tune_type", "lora")
    if kind != "lora" or config.get("use_dora"):
        raise AdapterError(
            f"{path}: fine_tune_type is {'dora' if config.get('use_dora') else kind!r}; only lora can be converted",
            ONLY_PLAIN,
        )
    parameters = config.get("lora_parameters")
    if not isinstance(parameters, dict):
        raise AdapterError(f"{path}: lora_parameters is no object, so the scale is unknown", ONLY_PLAIN)
    if "alpha" in parameters:
        raise AdapterError(
            f"{path}: lora_parameters has alpha, which versions of mlx-lm multiplied by the scale or did not",
            "Write the scale that was trained with as lora_parameters.scale and take alpha out",
        )
    scale, rank = parameters.get("scale"), parameters.get("rank")
    # The comparison also fails for NaN.
    if not isinstance(scale, (int, float)) or isinstance(scale, bool) or not 0 < scale < 1e9:
        raise AdapterError(f"{path}: lora_parameters.scale is {scale!r}, not a number above 0", ONLY_PLAIN)
    if rank is not None and (not isinstance(rank, int) or isinstance(rank, bool)):
        raise AdapterError(f"{path}: lora_parameters.rank is {rank!r}, not a whole number", ONLY_PLAIN)
    return float(scale), rank


def _module(
    path: Path, name: str, found: dict[str, str], tensors: dict[str, Matrix], scaling: tuple[float, int | None]
) -> Module:
    scale, rank = scaling
    for part in ("a", "b"):
        if part not in found:
            raise AdapterError(f"{path}: {name} has no lora_{part}", "The file is damaged: save or fetch it again")
    a, b = tensors[found["a"]], tensors[found["b"]]
    check_matrices(path, name, {"lora_a": a, "lora_b": b})
    if a.shape[1] != b.shape[0] or (rank is not None and a.shape[1] != rank):
        raise AdapterError(
            f"{path}: {name} has matrices of rank {a.shape[1]} and {b.shape[0]}, and the configuration says {rank}",
            "Weights and configuration are of two adapters: fetch or save both again",
        )
    # MLX names modules as transformers does.
    return Module(name, np.ascontiguousarray(a.T), np.ascontiguousarray(b.T), scale, (found["a"], found["b"]))
