"""Reads safetensors into float32 arrays, bfloat16 included, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize

from icarus_local.errors import ModelFileError

# An adapter is far smaller, and a sparse file of any size costs nothing to send.
_MAX_BYTES = 1 << 34


def _bfloat16(data: bytes | bytearray) -> npt.NDArray[np.float32]:
    # bfloat16 is the upper half of a float32.
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


def check_size(path: Path) -> None:
    """Refuses a file too large to be an adapter, before it is read.

    Raises:
        ModelFileError: it is, or cannot be looked at.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}", "Check its name and rights") from error
    if size > _MAX_BYTES:
        raise ModelFileError(f"{path} has {size} bytes, more than any adapter", "Give the adapter's own file")


def read_safetensors(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """All tensors of a file as float32, by name; F32, F16 and BF16 can be read.

    Raises:
        ModelFileError: the file cannot be read, is damaged, or holds another type.
    """
    check_size(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}", "Check its rights") from error
    except MemoryError as error:
        raise ModelFileError(f"{path} does not fit into memory", "Convert it on a larger machine") from error
    entries: list[tuple[str, dict[str, Any]]]
    try:
        # The library checks header, lengths and offsets; it copies, and adapters are small.
        entries = deserialize(data)  # type: ignore[no-untyped-call]
    except (SafetensorError, ValueError) as error:
        raise ModelFileError(f"{path} is no whole safetensors file: {error}", "Save or fetch it again") from error
    return {name: _decode(path, name, entry["dtype"], entry["shape"], entry["data"]) for name, entry in entries}


def _decode(path: Path, name: str, dtype: str, shape: list[int], data: bytes) -> npt.NDArray[np.float32]:
    if dtype == "F32":
        values = np.frombuffer(data, "<f4").astype(np.float32, copy=False)
    elif dtype == "F16":
        values = np.frombuffer(data, "<f2").astype(np.float32)
    elif dtype == "BF16":
        values = _bfloat16(data)
    else:
        raise ModelFileError(
            f"{path}: tensor {name} is of the type {dtype}; F32, F16 and BF16 can be converted",
            "Save the adapter in one of these",
        )
    return values.reshape(shape)
