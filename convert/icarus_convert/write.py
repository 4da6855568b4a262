"""Writes the adapter file: beside its place, read back and checked whole, then renamed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from icarus_convert.base import Base, read_base
from icarus_convert.mapping import map_modules
from icarus_convert.peft_folder import Training, read_peft_folder
from icarus_local.engine import adapter_file as keys
from icarus_local.engine.adapter_file import Adapter, LoraPair, check_fits, read_adapter
from icarus_local.errors import AdapterError, IcarusError

OUTTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16}


def convert_adapter(
    folder: Path,
    base: Path,
    out: Path,
    *,
    name: str | None = None,
    outtype: str = "f32",
    assume_icarus: bool = False,
    force: bool = False,
) -> Adapter:
    """Converts a PEFT folder for a base and returns what was written, as the engine reads it.

    Args:
        folder: PEFT's `adapter_config.json` and `adapter_model.safetensors`, our `icarus_run.json` where there is one.
        base: GGUF of the base, in any quantisation.
        out: the file to write.
        name: the adapter's name; the file's stem otherwise.
        outtype: "f32" or "f16".
        assume_icarus: take an adapter that no run file calls trained on the frozen cache; the file says so.
        force: overwrite `out`.

    Raises:
        IcarusError: with what is wrong; nothing was written then.
    """
    _check_out(out, base, force)
    peft = read_peft_folder(folder)
    target = read_base(base)
    training = peft.training
    _check_training(folder, training, target, assume_icarus)
    pairs = map_modules(peft, target)
    assumed = assume_icarus and training.trained != keys.TRAINED_ICARUS
    beside = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        write_adapter(beside, pairs, target, training, name=name or out.stem, outtype=outtype, assumed=assumed)
        written = read_adapter(beside)
        check_fits(written, target.family_id, target.places)
        beside.replace(out)
    except OSError as error:
        raise IcarusError(f"{out} cannot be written: {error.strerror}") from error
    finally:
        beside.unlink(missing_ok=True)
    return replace(written, path=out)


def _check_out(out: Path, base: Path, force: bool) -> None:
    if not out.parent.is_dir():
        raise IcarusError(f"there is no folder {out.parent} to write {out.name} into")
    if out.is_dir():
        raise IcarusError(f"{out} is a folder", "Give the name of a .gguf file with -o")
    if out.exists():
        if base.exists() and out.samefile(base):
            raise IcarusError(f"{out} is the base itself", "Give another name with -o")
        if not force:
            raise IcarusError(f"{out} exists already", "Give --force to overwrite it")


def _check_training(folder: Path, training: Training, base: Base, assume_icarus: bool) -> None:
    if training.tokenizer_sha256 and training.tokenizer_sha256 != base.tokenizer_sha256:
        raise AdapterError(
            f"{folder} was trained with another vocabulary than {base.path} has", "Give the base that it was trained on"
        )
    if training.base_family_id and training.base_family_id != base.family_id:
        raise AdapterError(
            f"{folder} was trained on another base (family {training.base_family_id[:12]}) than {base.path} "
            f"(family {base.family_id[:12]})",
            "Give the base that it was trained on, in any quantisation",
        )
    if training.trained == keys.TRAINED_ICARUS or assume_icarus:
        return
    if training.trained == keys.TRAINED_ORDINARY:
        how = "was trained the ordinary way, as its icarus_run.json says"
    else:
        how = "was trained nobody knows how: no icarus_run.json says that it read the frozen base's cache"
    raise AdapterError(
        f"{folder} {how}; its answers over a shared cache would be silently wrong",
        "Train it with icarus-train; or give --assume-icarus if you know that it was, and file and chat will say so",
    )


def write_adapter(
    path: Path,
    pairs: Mapping[str, LoraPair],
    base: Base,
    training: Training,
    *,
    name: str,
    outtype: str = "f32",
    assumed: bool = False,
) -> None:
    """Writes `pairs` (scale folded in) as a GGUF LoRA with llama.cpp's keys and ours.

    Raises:
        AdapterError: a value is too large for f16.
        OSError: the file cannot be written.
    """
    dtype = OUTTYPES[outtype]
    tensors = {}
    for tensor, pair in pairs.items():
        for part, values in (("lora_a", pair.a), ("lora_b", pair.b)):
            with np.errstate(over="ignore"):
                stored = np.ascontiguousarray(values, dtype)
            if not np.isfinite(stored).all():
                raise AdapterError(f"{tensor}.{part} holds values too large for {outtype}", "Give --outtype f32")
            tensors[f"{tensor}.{part}"] = stored
    writer = gguf.GGUFWriter(path, base.hp.name)
    try:
        _add_keys(writer, base, training, name, assumed)
        writer.add_array(keys.KEY_MODULES, sorted({tensor.split(".")[2] for tensor in pairs}))
        for tensor, stored in tensors.items():
            writer.add_tensor(tensor, stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _add_keys(writer: gguf.GGUFWriter, base: Base, training: Training, name: str, assumed: bool) -> None:
    writer.add_string(keys.KEY_TYPE, "adapter")
    writer.add_string(keys.KEY_ADAPTER_TYPE, "lora")
    # One alpha cannot hold scales that differ by module: they are in lora_b, and 0 means 1 to llama.cpp.
    writer.add_float32(keys.KEY_ALPHA, 0.0)
    writer.add_string(keys.KEY_NAME, name)
    writer.add_uint32(keys.KEY_VERSION, keys.FORMAT_VERSION)
    writer.add_string(keys.KEY_FAMILY, base.family_id)
    writer.add_string(keys.KEY_BASE_NAME, base.name)
    writer.add_string(keys.KEY_TRAINED, training.trained)
    writer.add_bool(keys.KEY_ASSUMED, assumed)
    # The writer leaves empty strings out: what is not known has no key.
    writer.add_string(keys.KEY_TEMPLATE, training.template_sha256)
    writer.add_string(keys.KEY_TOKENIZER, training.tokenizer_sha256)
