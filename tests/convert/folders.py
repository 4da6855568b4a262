"""PEFT folders made with numpy alone, and random adapters for a base."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from icarus_convert.base import Base
from icarus_local.engine.weights import weight_table

HF_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "somebody/tiny",
    "bias": "none",
    "r": 4,
    "lora_alpha": 6,
    "lora_dropout": 0.0,
    "init_lora_weights": True,
    "target_modules": ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "use_rslora": False,
    "use_dora": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "peft_version": "0.21.2",
}


def lora_tensors(
    base: Base, modules: tuple[str, ...], rank: int = 4, n_layer: int | None = None, seed: int = 0
) -> dict[str, npt.NDArray[np.float32]]:
    """Random PEFT tensors on `modules` (GGUF names) of every layer of `base`."""
    random, shapes = np.random.default_rng(seed), weight_table(base.hp)
    tensors = {}
    for layer in range(base.hp.n_layer if n_layer is None else n_layer):
        for module in modules:
            n_in, n_out = shapes[f"blk.{min(layer, base.hp.n_layer - 1)}.{module}.weight"].shape
            prefix = f"base_model.model.model.layers.{layer}.{HF_NAMES[module]}"
            tensors[f"{prefix}.lora_A.weight"] = random.normal(0, 0.1, (rank, n_in)).astype(np.float32)
            tensors[f"{prefix}.lora_B.weight"] = random.normal(0, 0.1, (n_out, rank)).astype(np.float32)
    return tensors


def write_folder(
    path: Path,
    tensors: Mapping[str, npt.NDArray[Any]],
    config: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a PEFT folder; `run` None leaves `icarus_run.json` out."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    save_file(dict(tensors), path / "adapter_model.safetensors")
    if run is not None:
        write_run(path, run)
    return path


def write_run(path: Path, run: Mapping[str, Any]) -> None:
    """Writes `icarus_run.json` as icarus-train does."""
    weights = path / "adapter_model.safetensors"
    facts = {
        "format": 1,
        "method": "icarus",
        "base_family_id": None,
        "template_sha256": "ab" * 32,
        "adapter_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }
    (path / "icarus_run.json").write_text(json.dumps({**facts, **run}))
