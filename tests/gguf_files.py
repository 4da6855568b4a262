"""GGUF files made from others: requantised, or rewritten with other keys and tensors."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from icarus_local.ggml.library import load, load_llama

FTYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7}  # enum llama_ftype

_INTEGERS = {getattr(gguf.GGUFValueType, f"{sign}INT{width}") for sign in ("U", "") for width in (8, 16, 32, 64)}
_FLOATS = {gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.FLOAT64}


def quantised(source: Path, target: Path, kind: str) -> Path:
    """`source` in another type; what is quantised already goes by way of F32."""
    llama = load_llama()
    params = llama.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = FTYPES[kind], 2, True
    assert llama.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params)) == 0
    return target


def in_types(source: Path, target: Path, type_of: Callable[[str], int]) -> Path:
    """A copy of a F32 file with each matrix in the ggml type that `type_of` gives for its name."""
    reader = gguf.GGUFReader(source)
    tensors = {t.name: np.array(t.data) for t in reader.tensors if len(t.shape) > 1}
    return rewritten(source, target, tensors={n: (type_of(n), values) for n, values in tensors.items()})


def in_type(values: npt.NDArray[np.float32], kind: int) -> npt.NDArray[np.uint8]:
    """Bytes of `values` in a ggml type, every value of equal importance."""
    ggml = load()
    chunk = ctypes.CDLL(None).ggml_quantize_chunk  # libggml is loaded globally
    chunk.restype, width = ctypes.c_size_t, values.shape[-1]
    chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    values = np.ascontiguousarray(values, np.float32).reshape(-1, width)
    importance = np.ones(width, np.float32)
    data = np.zeros(len(values) * ggml.ggml_row_size(kind, width), np.uint8)
    if kind == gguf.GGMLQuantizationType.F32:
        return values.view(np.uint8).reshape(-1)
    arguments = (values.ctypes.data, data.ctypes.data, 0, len(values), width, importance.ctypes.data)
    assert chunk(kind, *arguments) == data.nbytes
    return data


def rewritten(
    source: Path, target: Path, keys: Mapping[str, Any] | None = None, tensors: Mapping[str, Any] | None = None
) -> Path:
    """A copy with keys and tensors changed or added; None drops one.

    A key keeps its type where the new value is of it. A tensor is an array in numpy's order, or (ggml type, F32 array).
    """
    reader = gguf.GGUFReader(source)
    fields = {field.name: field for field in reader.fields.values() if not field.name.startswith("GGUF.")}
    values = {name: field.contents() for name, field in fields.items()} | dict(keys or {})
    writer = gguf.GGUFWriter(target, values.pop("general.architecture"))
    for name, value in values.items():
        if value is not None:
            types = _types(value, fields[name].types if name in fields else [])
            writer.add_key_value(name, value, types[0], types[-1] if len(types) > 1 else None)
    data = []
    old = {tensor.name: tensor for tensor in reader.tensors}
    for name, tensor in (old | dict(tensors or {})).items():
        if isinstance(tensor, gguf.ReaderTensor):
            shape, kind, array = tensor.shape[::-1].tolist(), tensor.tensor_type, np.array(tensor.data)
        elif isinstance(tensor, tuple):
            shape, kind, array = list(tensor[1].shape), tensor[0], in_type(tensor[1], tensor[0])
        elif tensor is not None:
            shape, kind, array = list(tensor.shape), None, tensor
        else:
            continue
        # Bytes of an unknown number of values would be counted by the writer, which does not know every type.
        dtype = np.dtype(np.float32) if array.dtype == np.uint8 else array.dtype
        writer.add_tensor_info(name, shape, dtype, array.nbytes, kind)
        data.append(array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for array in data:
        writer.write_tensor_data(array)
    writer.close()
    return target


def _types(value: Any, old: list[gguf.GGUFValueType]) -> list[gguf.GGUFValueType]:
    """Type of a key's value, and of its elements where it is a list: the old ones where they can hold it."""
    if isinstance(value, list):
        inner = old[1:] if old[:1] == [gguf.GGUFValueType.ARRAY] else []
        return [gguf.GGUFValueType.ARRAY, *_types(value[0], inner)]
    kind = old[0] if len(old) == 1 else None
    if isinstance(value, bool):
        return [gguf.GGUFValueType.BOOL]
    if isinstance(value, int) and value < 0:
        return [gguf.GGUFValueType.INT32]
    if isinstance(value, int):
        return [kind if kind in _INTEGERS | _FLOATS else gguf.GGUFValueType.INT32]  # type: ignore[list-item]
    if isinstance(value, float):
        return [kind if kind in _FLOATS else gguf.GGUFValueType.FLOAT32]  # type: ignore[list-item]
    return [gguf.GGUFValueType.STRING]
