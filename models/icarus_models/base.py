"""A GGUF base as a Hugging Face model in fp32: what an agent is trained on is exactly what the runtime will run."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from icarus_local.errors import IcarusError, ModelFileError
from icarus_local.paths import cache_dir

_FORMAT = 1  # of the cached folders; raise it when what is written below changes


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def default_cache() -> Path:
    """Where dequantised bases are kept. Nothing is made here."""
    return cache_dir() / "torch"


def load_base(source: Path, cache: Path | None = None) -> PreTrainedModel:
    """The causal LM of `source`, a GGUF file or a Hugging Face folder, in fp32 and eval mode, every weight frozen.

    A GGUF is dequantised once and kept as safetensors under `cache`, by the hash of the file's content.
    Raises `ModelFileError` where `source` is neither.
    """
    if source.is_dir():
        if not (source / "config.json").is_file():
            raise ModelFileError(f"{source}: a folder without config.json is not a Hugging Face model")
        folder = source
    elif source.is_file():
        folder = dequantised(source, cache or default_cache())
    else:
        raise ModelFileError(f"{source}: no such file or folder")
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval().requires_grad_(False)


def dequantised(gguf: Path, cache: Path) -> Path:
    """The folder under `cache` that holds `gguf` as fp32 safetensors; written beside and renamed if it is missing."""
    digest = file_sha256(gguf)
    folder = cache / f"{digest[:24]}-v{_FORMAT}"
    if (folder / "config.json").is_file():
        return folder
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            gguf.parent.resolve(), gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
        )
    except (ValueError, OSError, KeyError, NotImplementedError) as error:
        raise ModelFileError(f"{gguf}: transformers cannot read this GGUF: {error}") from error
    # The weights are plain fp32 from here on; these two would have transformers look for the GGUF again.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    cache.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix="writing-", dir=cache))
    try:
        model.save_pretrained(beside, safe_serialization=True)
        (beside / "source.json").write_text(json.dumps({"file": gguf.name, "sha256": digest}), encoding="utf-8")
        beside.rename(folder)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        if not folder.is_dir():  # else another process was first, and its folder holds the same
            raise IcarusError(f"{cache}: cannot keep the dequantised base: {error}") from error
    return folder
