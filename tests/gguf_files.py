"""GGUF files made from others: requantised by libllama, or rewritten with other keys and tensors."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from icarus_local.ggml.library import load_llama

FTYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7}  # enum llama_ftype


def quantised(source: Path, target: Path, kind: str) -> Path:
    """`source` in another type; what is quantised already goes by way of F32."""
    llama = load_llama()
    params = llama.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = FTYPES[kind], 2, True
    assert llama.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params)) == 0
    return target


def rewritten(
    source: Path, target: Path, keys: Mapping[str, Any] | None = None, tensors: Mapping[str, Any] | None = None
) -> Path:
    """A copy with keys and tensors changed or added; None drops one. A new key is a string or a float32."""
    reader = gguf.GGUFReader(source)
    fields = {field.name: field for field in reader.fields.values() if not field.name.startswith("GGUF.")}
    values = {name: field.contents() for name, field in fields.items()} | dict(keys or {})
    data = {tensor.name: np.array(tensor.data) for tensor in reader.tensors} | dict(tensors or {})
    writer = gguf.GGUFWriter(target, values.pop("general.architecture"))
    for name, value in values.items():
        if value is None:
            continue
        if name not in fields:
            kind = gguf.GGUFValueType.STRING if isinstance(value, str) else gguf.GGUFValueType.FLOAT32
            writer.add_key_value(name, value, kind)
            continue
        types = fields[name].types
        writer.add_key_value(name, value, types[0], types[-1] if types[0] == gguf.GGUFValueType.ARRAY else None)
    for name, array in data.items():
        if array is not None:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
