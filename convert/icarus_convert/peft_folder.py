"""Reads a PEFT folder: matrices, scales, and how it was trained; refuses what a GGUF LoRA cannot hold."""

from __future__ import annotations

import re
from pathlib import Path

from icarus_convert.lora_config import CONFIG_FILE, LoraConfig, read_config
from icarus_convert.run_file import read_training
from icarus_convert.source import ONLY_PLAIN, Matrix, Module, Source, check_matrices, in_order, refuse_keys_and_values
from icarus_convert.weights import read_weights
from icarus_local.errors import AdapterError

# PEFT's own, with the adapter's name where a whole state dict was saved, and what wrappers of the model put before it.
_TENSOR = re.compile(
    r"(?:(?:base_model\.model|module|_orig_mod)\.)*(?P<module>.+?)"
    r"\.lora_(?P<part>A|B|down|up)(?:\.(?P<adapter>(?!weight$|bias$)[\w-]+))?(?:\.weight)?"
)
_PARTS = {"A": "A", "B": "B", "down": "A", "up": "B"}


def read_peft_folder(path: Path, *, keep_kv: bool = False) -> Source:
    """Reads `adapter_config.json`, the weights and, where present, `icarus_run.json`.

    Args:
        path: the folder of one adapter.
        keep_kv: leave modules of K and V in instead of refusing them.

    Raises:
        AdapterError, ModelFileError: damaged, or with anything that a GGUF LoRA over a shared cache cannot express
            exactly.
    """
    config = read_config(path / CONFIG_FILE)
    tensors, files = read_weights(path)
    modules = _collect(files[0], config, tensors, keep_kv)
    return Source(path, "PEFT", config.base_model, modules, read_training(path, files))


def _collect(path: Path, config: LoraConfig, tensors: dict[str, Matrix], keep_kv: bool) -> list[Module]:
    parts: dict[str, dict[str, str]] = {}
    adapters = set()
    for name in tensors:
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise AdapterError(f"{path} holds the tensor {name}: {_why_no_place(name)}", ONLY_PLAIN)
        found, part = parts.setdefault(match["module"], {}), _PARTS[match["part"]]
        adapters.add(match["adapter"])
        if len(adapters) > 1:
            names = ", ".join(sorted(str(adapter or "the unnamed one") for adapter in adapters))
            raise AdapterError(f"{path} holds several adapters: {names}", "Save each into a folder of its own")
        if part in found:
            raise AdapterError(f"{path} holds lora_{part} of {match['module']} twice", "Save or fetch it again")
        found[part] = name
    if not parts:
        raise AdapterError(f"{path} holds no LoRA: it would change nothing", ONLY_PLAIN)
    if not keep_kv:
        refuse_keys_and_values(path, parts)
    return [_module(path, config, name, parts[name], tensors) for name in in_order(parts)]


def _why_no_place(name: str) -> str:
    for mark, reason in (
        ("lora_magnitude_vector", "it is DoRA, which scales every row by a magnitude that no LoRA file holds"),
        (
            "lora_embedding_",
            "embeddings were adapted; every agent reads the base's, so the shared cache would be wrong",
        ),
        ("lora_B.bias", "a bias of lora_B has no place in a GGUF LoRA"),
        (".bias", "trained biases have no place in a GGUF LoRA"),
        (".lora_a", "it is named as MLX does, whose folders say fine_tune_type in their adapter_config.json"),
        (".lora_b", "it is named as MLX does, whose folders say fine_tune_type in their adapter_config.json"),
        ("lora_", "no LoRA tensor of PEFT's Linear is named so"),
    ):
        if mark in name:
            return reason
    return "a whole weight was trained (modules_to_save), and norms or embeddings would change the shared cache"


def _module(path: Path, config: LoraConfig, name: str, found: dict[str, str], tensors: dict[str, Matrix]) -> Module:
    for part in ("A", "B"):
        if part not in found:
            raise AdapterError(f"{path}: {name} has no lora_{part}", "The file is damaged: save or fetch it again")
    a, b, rank = tensors[found["A"]], tensors[found["B"]], config.rank(name)
    check_matrices(path, name, {"lora_A": a, "lora_B": b})
    if a.shape[0] != rank or b.shape[1] != rank:
        raise AdapterError(
            f"{path}: {name} has matrices of rank {a.shape[0]} and {b.shape[1]}, and {CONFIG_FILE} says {rank}: the "
            "scale would be wrong",
            "Weights and configuration are of two adapters: fetch or save both again",
        )
    return Module(name, a, b, config.scale(name), (found["A"], found["B"]))
