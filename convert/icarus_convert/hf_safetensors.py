"""Headers of safetensors files, checked before a byte of a tensor is used, and tensors read one at a time."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from icarus_local.errors import ModelFileError

# The safetensors library's own limit.
_MAX_HEADER = 100_000_000
_MAX_DIMENSIONS = 8
# How a tensor of a type is read; bfloat16 as its bits, which are the upper half of a float32's.
STORAGE = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_SIZES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
}
_AGAIN = "Save or fetch it again"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file: `dtype` as safetensors names it, `shape` in numpy's order, `offset` from the file's start."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def read(self) -> npt.NDArray[Any]:
        """The values, in the dtype of `STORAGE`.

        Raises:
            ModelFileError: the file changed meanwhile, or cannot be read.
        """
        count = math.prod(self.shape)
        try:
            values = np.fromfile(self.path, STORAGE[self.dtype], count=count, offset=self.offset)
        except OSError as error:
            raise ModelFileError(f"{self.path} cannot be read: {error.strerror}") from error
        if values.size != count:
            raise ModelFileError(f"{self.path} was cut while it was read")
        return values.reshape(self.shape)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file, by name; nothing of their values is read.

    Raises:
        ModelFileError: not a whole safetensors file: types, shapes and offsets must describe its bytes without a gap.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(size - 8, _MAX_HEADER):
                raise ModelFileError(f"{path} is no whole safetensors file: its header claims {length} bytes", _AGAIN)
            raw = file.read(length)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
    try:
        header = json.loads(raw, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is no whole safetensors file: its header is no JSON ({error})", _AGAIN) from error
    if not isinstance(header, dict):
        raise ModelFileError(f"{path} is no whole safetensors file: its header is no object", _AGAIN)
    header.pop("__metadata__", None)
    start, found = 8 + length, []
    for name, entry in header.items():
        dtype, shape, begin, end = _entry(path, name, entry)
        found.append((begin, end, StoredTensor(path, name, dtype, shape, start + begin)))
    found.sort(key=lambda item: item[:2])
    position = 0
    for begin, end, tensor in found:
        if begin != position:
            raise ModelFileError(f"{path}: tensor {tensor.name} lies over another one, or behind a gap", _AGAIN)
        position = end
    if start + position != size:
        raise ModelFileError(f"{path} has {size} bytes and its tensors end at {start + position}", _AGAIN)
    return {tensor.name: tensor for _, _, tensor in found}


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name stands there twice")
    return values


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    def wrong(what: str) -> ModelFileError:
        return ModelFileError(f"{path}: tensor {name} {what}", _AGAIN)

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise wrong("has no type, shape and offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _SIZES:
        raise wrong(f"is of the unknown type {dtype!r}")
    if not _whole_numbers(shape) or len(shape) > _MAX_DIMENSIONS:
        raise wrong(f"has the impossible shape {shape!r}")
    if not _whole_numbers(offsets) or len(offsets) != 2:
        raise wrong(f"has the impossible offsets {offsets!r}")
    n_bytes = math.prod(shape) * _SIZES[dtype]
    if offsets[1] - offsets[0] != n_bytes:
        raise wrong(f"of the shape {shape} takes {n_bytes} bytes, not {offsets[1] - offsets[0]}")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _whole_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 48 for value in values)
