"""Reads GGUF files through ggml's C reader, after bounds checks that keep a hostile file from reaching it."""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from icarus_local.errors import ModelFileError
from icarus_local.ggml.library import load
from icarus_local.ggml.prototypes import GgufInitParams

# enum gguf_type -> numpy dtype; strings (8) and arrays (9) are read apart.
_DTYPES: dict[int, str] = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9
_MIN_KV_BYTES = 8 + 1 + 4 + 1  # key length, one character, type, one byte of value
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8  # name length, one character, dimensions, type, offset


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: `shape` in ggml's order (fastest first), `offset` in bytes from the file's start."""

    name: str
    type: int
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


def check_header(path: Path) -> None:
    """Refuses what is not a readable GGUF file by its first 24 bytes and its size.

    Raises:
        ModelFileError: no such file, not GGUF, another version, or counts that the file is too small to hold.
    """
    if not path.is_file():
        raise ModelFileError(f"{path} is not a file", "Give the path of a .gguf file")
    try:
        with path.open("rb") as file:
            header = file.read(24)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
    if header[:4] != b"GGUF":
        raise ModelFileError(f"{path} is not a GGUF file (it begins with {header[:4]!r})")
    if len(header) < 24:
        raise ModelFileError(f"{path} is cut off after {len(header)} bytes", "Fetch or convert it again")
    version, n_tensors, n_kv = struct.unpack("<IQQ", header[4:])
    if version not in (2, 3):
        raise ModelFileError(f"{path} is GGUF version {version}; versions 2 and 3 little-endian can be read")
    if n_kv * _MIN_KV_BYTES + n_tensors * _MIN_TENSOR_BYTES > size:
        raise ModelFileError(
            f"{path} claims {n_kv} keys and {n_tensors} tensors, more than its {size} bytes can hold",
            "The file is damaged: fetch or convert it again",
        )


class GgufFile:
    """An open GGUF file: keys, tensor table, and a ggml context that holds its tensors without data.

    Attributes:
        path: the file.
        ctx: address of the `ggml_context` whose tensors carry names, types and shapes; owned by this object.
        tensors: table by name.
    """

    def __init__(self, path: Path) -> None:
        check_header(path)
        self.path = path
        self._ggml = load()
        context = ctypes.c_void_p()
        self._gguf = self._ggml.gguf_init_from_file(
            os.fsencode(path), GgufInitParams(no_alloc=True, ctx=ctypes.pointer(context))
        )
        if not self._gguf:
            raise ModelFileError(
                f"{path} is damaged: ggml's reader refuses its keys or tensor table",
                "Fetch or convert it again (--debug shows the reader's own words)",
            )
        self.ctx = context.value
        try:
            self.tensors = self._read_tensor_table()
        except ModelFileError:
            self.close()
            raise

    def _read_tensor_table(self) -> dict[str, TensorInfo]:
        ggml, size = self._ggml, self.path.stat().st_size
        start = ggml.gguf_get_data_offset(self._gguf)
        tensors = {}
        for i in range(ggml.gguf_get_n_tensors(self._gguf)):
            name = ggml.gguf_get_tensor_name(self._gguf, i).decode("utf-8", "replace")
            shape = (ctypes.c_int64 * 4).from_address(ggml.gguf_get_tensor_ne(self._gguf, i))
            dims = tuple(shape)
            while len(dims) > 1 and dims[-1] == 1:
                dims = dims[:-1]
            info = TensorInfo(
                name=name,
                type=ggml.gguf_get_tensor_type(self._gguf, i),
                shape=dims,
                offset=start + ggml.gguf_get_tensor_offset(self._gguf, i),
                n_bytes=ggml.gguf_get_tensor_size(self._gguf, i),
            )
            if info.offset + info.n_bytes > size:
                raise ModelFileError(
                    f"{self.path} is cut off at byte {size}: tensor {name} ends at {info.offset + info.n_bytes}",
                    "Fetch or convert it again",
                )
            tensors[name] = info
        return tensors

    def __contains__(self, key: str) -> bool:
        return bool(self._find(key) >= 0)

    def _find(self, key: str) -> int:
        return int(self._ggml.gguf_find_key(self._gguf, key.encode()))

    def keys(self) -> list[str]:
        """All keys, in the file's order."""
        n = self._ggml.gguf_get_n_kv(self._gguf)
        return [self._ggml.gguf_get_key(self._gguf, i).decode("utf-8", "replace") for i in range(n)]

    def value(self, key: str) -> Any:
        """The value of `key` as str, bool, int, float, list[str] or a numpy array; None where the key is missing."""
        ggml, key_id = self._ggml, self._find(key)
        if key_id < 0:
            return None
        kind = ggml.gguf_get_kv_type(self._gguf, key_id)
        if kind == _STRING:
            return ggml.gguf_get_val_str(self._gguf, key_id).decode("utf-8", "replace")
        if kind == _ARRAY:
            return self._array(key_id)
        dtype = np.dtype(_DTYPES[kind])
        raw = ctypes.string_at(ggml.gguf_get_val_data(self._gguf, key_id), dtype.itemsize)
        return np.frombuffer(raw, dtype)[0].item()

    def _array(self, key_id: int) -> list[str] | npt.NDArray[Any]:
        raw = self.array_bytes(key_id)
        if isinstance(raw, list):
            return [text.decode("utf-8", "replace") for text in raw]
        return np.frombuffer(raw, np.dtype(_DTYPES[self._ggml.gguf_get_arr_type(self._gguf, key_id)]))

    def array_length(self, key: str) -> int:
        """Number of elements of an array; 0 where the key is missing or no array."""
        key_id = self._find(key)
        if key_id < 0 or self._ggml.gguf_get_kv_type(self._gguf, key_id) != _ARRAY:
            return 0
        return int(self._ggml.gguf_get_arr_n(self._gguf, key_id))

    def array_bytes(self, key: int | str) -> bytes | list[bytes]:
        """An array's raw bytes; for strings a list of each one's bytes."""
        ggml = self._ggml
        key_id = self._find(key) if isinstance(key, str) else key
        if key_id < 0 or ggml.gguf_get_kv_type(self._gguf, key_id) != _ARRAY:
            raise ModelFileError(f"{self.path} has no array {key}")
        n, kind = ggml.gguf_get_arr_n(self._gguf, key_id), ggml.gguf_get_arr_type(self._gguf, key_id)
        if kind == _STRING:
            get, gguf = ggml.gguf_get_arr_str, self._gguf
            return [get(gguf, key_id, i) for i in range(n)]
        size = n * np.dtype(_DTYPES[kind]).itemsize
        return ctypes.string_at(ggml.gguf_get_arr_data(self._gguf, key_id), size) if n else b""

    def require(self, key: str, kind: type) -> Any:
        """The value of `key`, which must be of Python type `kind` (int for every integer type).

        Raises:
            ModelFileError: missing, or of another type.
        """
        value = self.value(key)
        if value is None:
            raise ModelFileError(f"{self.path} lacks the key {key}", "Convert the model again with a current converter")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelFileError(f"{self.path}: key {key} holds {type(value).__name__}, not {kind.__name__}")
        return value

    def read_tensor(self, name: str) -> npt.NDArray[np.uint8]:
        """The raw bytes of one tensor, from the file."""
        info = self.tensors[name]
        return np.fromfile(self.path, np.uint8, count=info.n_bytes, offset=info.offset)

    def close(self) -> None:
        """Frees the native objects; may be called twice."""
        if self._gguf:
            self._ggml.gguf_free(self._gguf)
            self._gguf = None
        if self.ctx:
            self._ggml.ggml_free(self.ctx)
            self.ctx = None

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
