"""A GGUF base as a Hugging Face model: what an agent is trained on is what the runtime will run."""

from __future__ import annotations

import copy
import importlib.util
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from icarus_convert.base import read_base
from icarus_local.errors import AdapterError, IcarusError, ModelFileError
from icarus_local.paths import cache_dir
from icarus_models.run_files import file_sha256

_FORMAT = 1  # of the cached folders; raise it when what is written below changes


def default_cache() -> Path:
    """Where dequantised bases are kept. Nothing is made here."""
    return cache_dir() / "torch"


def load_base(
    source: Path, cache: Path | None = None, *, dtype: torch.dtype = torch.float32, four_bit: bool = False
) -> PreTrainedModel:
    """The causal LM of `source`, a GGUF file or a Hugging Face folder, in eval mode, every weight frozen.

    A GGUF is dequantised once and kept as fp32 safetensors under `cache`, by the hash of the file's content. `four_bit`
    quantises the linear layers to NF4 as they are loaded, onto a CUDA device.
    Raises `ModelFileError` where `source` is neither, `IcarusError` where 4 bits cannot be had.
    """
    disable_progress_bar()  # what is said is for the caller to say
    if source.is_dir():
        if not (source / "config.json").is_file():
            raise ModelFileError(f"{source}: a folder without config.json is not a Hugging Face model")
        folder = source
    elif source.is_file():
        folder = dequantised(source, cache or default_cache())
    else:
        raise ModelFileError(f"{source}: no such file or folder")
    options: dict[str, Any] = _in_four_bits(dtype) if four_bit else {}
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, **options)
    return model.eval().requires_grad_(False)


def check_same_model(folder: Path, gguf: Path) -> None:
    """Refuses a Hugging Face folder that is not the model of `gguf`, for whose family its adapter will be.

    Raises:
        IcarusError: another architecture, shapes, vocabulary or norms; or one of the two is no base.
    """
    ours, theirs = read_base(folder), read_base(gguf)
    if ours.family_id == theirs.family_id:
        return
    if ours.places != theirs.places:
        what = "shapes"
    elif ours.tokenizer_sha256 != theirs.tokenizer_sha256:
        what = "vocabularies"
    else:
        what = "norms or hyperparameters"
    raise IcarusError(
        f"{folder} and {gguf} are two models: their {what} differ, so the adapter would be wrong on the GGUF",
        f"Give that model's own GGUF; icarus-convert base {folder} -o BASE.gguf makes one",
    )


def sharing(model: PreTrainedModel) -> PreTrainedModel:
    """Another model over the very weights of `model`: PEFT changes the modules that it is given; these are copies."""
    return copy.deepcopy(model, memo={id(parameter): parameter for parameter in model.parameters()})


def with_adapter(base: PreTrainedModel, folder: Path) -> PeftModel:
    """A model of its own over the very weights of `base`, with the adapter of a PEFT folder; frozen, in eval mode.

    Raises:
        AdapterError: PEFT cannot load it over this base.
    """
    try:
        model = PeftModel.from_pretrained(sharing(base), str(folder))
    except (ValueError, OSError, RuntimeError, KeyError, TypeError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise AdapterError(f"{folder}: PEFT cannot load it over this base: {said}") from error
    model.requires_grad_(False)
    return model.eval()


def _in_four_bits(dtype: torch.dtype) -> dict[str, Any]:
    if importlib.util.find_spec("bitsandbytes") is None or not torch.cuda.is_available():
        raise IcarusError("a base in 4 bits needs bitsandbytes and a CUDA device", "Leave --four-bit out")
    how = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": how, "device_map": {"": 0}}


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
