"""Writes the adapter file: beside its place, read back and checked whole, then renamed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from icarus_convert.base import Base
from icarus_convert.gguf_lora import mark
from icarus_convert.prepare import Prepared, prepare
from icarus_convert.source import Matrix, Training
from icarus_local.engine import adapter_file as keys
from icarus_local.engine.adapter_file import Adapter, LoraPair, check_fits, read_adapter
from icarus_local.errors import AdapterError, IcarusError, ModelFileError

OUTTYPES = ("f32", "f16", "q8_0")
_Q8_0_BLOCK = 32
_F16_MAX = 65504.0


def convert_adapter(
    folder: Path,
    base: Path,
    out: Path,
    *,
    name: str | None = None,
    outtype: str | None = None,
    assume_icarus: bool = False,
    drop_kv: bool = False,
    adapter: str | None = None,
    force: bool = False,
) -> Adapter:
    """Converts an adapter for a base and returns what was written, as the engine reads it.

    Args:
        folder, base, adapter, assume_icarus, drop_kv: as in `prepare`.
        out, name, outtype, force: as in `write`.

    Raises:
        IcarusError: with what is wrong; nothing was written then.
    """
    check_out(out, (base, folder), force)
    prepared = prepare(folder, base, adapter=adapter, assume_icarus=assume_icarus, drop_kv=drop_kv)
    return write(prepared, out, name=name, outtype=outtype, force=force)


def write(
    prepared: Prepared, out: Path, *, name: str | None = None, outtype: str | None = None, force: bool = False
) -> Adapter:
    """Writes what was prepared and returns it as the engine reads it.

    Args:
        prepared: what to write.
        out: the file.
        name: the adapter's name; the file's stem otherwise.
        outtype: one of OUTTYPES, f32 where None; a GGUF LoRA keeps its own.
        force: overwrite `out`.

    Raises:
        IcarusError: with what is wrong; nothing was written then.
    """
    target, training = prepared.base, prepared.training
    check_out(out, (target.path, prepared.path), force)
    if outtype and prepared.mapped is None:
        raise IcarusError(f"{prepared.path} keeps its tensors as they are", "Leave --outtype out")
    beside = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        if prepared.mapped is None:
            mark(prepared.path, beside, target, training=training, modules=prepared.modules, name=name)
        else:
            write_adapter(
                beside,
                prepared.mapped.pairs,
                target,
                training,
                name=name or out.stem,
                outtype=outtype or "f32",
                assumed=prepared.assumed,
                dropped=prepared.mapped.dropped,
            )
        written = read_adapter(beside)
        check_fits(written, target.family_id, target.places)
        beside.replace(out)
    except OSError as error:
        raise IcarusError(f"{out} cannot be written: {error.strerror}", "Give another place with -o") from error
    except ModelFileError as error:
        # What is wrong with what was read back is wrong with its source.
        raise AdapterError(error.what.replace(str(beside), str(prepared.path)), error.hint) from error
    finally:
        beside.unlink(missing_ok=True)
    return replace(written, path=out)


def check_out(out: Path, sources: tuple[Path, ...], force: bool) -> None:
    """Checks that a file may be written; of `sources`, what it is made of, the first is the base.

    Raises:
        IcarusError: no folder for it, or something is there that may not be overwritten.
    """
    if not out.parent.is_dir():
        raise IcarusError(f"there is no folder {out.parent} to write {out.name} into", "Make it, or give another -o")
    if out.is_dir():
        raise IcarusError(f"{out} is a folder", "Give the name of a .gguf file with -o")
    if out.exists():
        if sources and sources[0].exists() and out.samefile(sources[0]):
            raise IcarusError(f"{out} is the base itself", "Give another name with -o")
        if any(source.exists() and out.samefile(source) for source in sources):
            raise IcarusError(f"{out} is what is to be converted", "Give another name with -o")
        if not force:
            raise IcarusError(f"{out} exists already", "Give --force to overwrite it")


def write_adapter(
    path: Path,
    pairs: Mapping[str, LoraPair],
    base: Base,
    training: Training,
    *,
    name: str,
    outtype: str = "f32",
    assumed: bool = False,
    dropped: tuple[str, ...] = (),
) -> None:
    """Writes `pairs` (scale folded in) as a GGUF LoRA with llama.cpp's keys and ours.

    Raises:
        AdapterError: a value is too large for the type.
        OSError: the file cannot be written.
    """
    tensors = {
        f"{tensor}.{part}": _stored(f"{tensor}.{part}", values, outtype)
        for tensor, pair in pairs.items()
        for part, values in (("lora_a", pair.a), ("lora_b", pair.b))
    }
    writer = gguf.GGUFWriter(path, base.hp.name)
    try:
        _add_keys(writer, base, training, name, assumed)
        writer.add_array(keys.KEY_MODULES, sorted({tensor.split(".")[2] for tensor in pairs}))
        if dropped:
            writer.add_array(keys.KEY_DROPPED_KV, list(dropped))
        for tensor, (stored, kind) in tensors.items():
            writer.add_tensor(tensor, stored, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _stored(tensor: str, values: Matrix, outtype: str) -> tuple[Any, Any]:
    """A matrix as it is written, and its ggml type where numpy has none."""
    if outtype == "f32":
        return np.ascontiguousarray(values, np.float32), None
    # A row of Q8_0 is blocks of 32 values: a lora_b of another rank stays F16.
    blocks = outtype == "q8_0" and values.shape[1] % _Q8_0_BLOCK == 0
    # A block's scale is its largest value over 127, as F16.
    if float(np.abs(values).max()) > _F16_MAX * (127 if blocks else 1):
        raise AdapterError(f"{tensor} holds values too large for {outtype}", "Give --outtype f32")
    if blocks:
        kind = gguf.GGMLQuantizationType.Q8_0
        return gguf.quants.quantize(np.ascontiguousarray(values, np.float32), kind), kind
    return np.ascontiguousarray(values, np.float16), None


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
