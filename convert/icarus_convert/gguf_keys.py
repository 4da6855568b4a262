"""Adds keys to a GGUF file and leaves every other byte of keys, tensor table and data as it is."""

from __future__ import annotations

import mmap
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile

KeyValue = str | bool | int | list[str]

_HEADER = 24
# enum gguf_type -> bytes of a value; strings (8) and arrays (9) say their own.
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY, _BOOL, _UINT32 = 8, 9, 7, 4
_DEFAULT_ALIGNMENT = 32


def add_keys(source: Path, target: Path, values: Mapping[str, KeyValue]) -> None:
    """Writes `target`: `source` with these keys, in place of its own of those names.

    Raises:
        ModelFileError: no GGUF file, or damaged. OSError: `target` cannot be written.
    """
    with GgufFile(source) as file:  # ggml's reader has checked lengths and types then
        alignment = file.value("general.alignment") or _DEFAULT_ALIGNMENT
    with source.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            kept, n_kept, position = _kept_keys(data, values)
            table_end = _table_end(data, position)
        except (struct.error, KeyError, UnicodeDecodeError) as error:
            raise ModelFileError(f"{source} is damaged: its keys end early", "Fetch it again") from error
        magic, version, n_tensors, _ = struct.unpack_from("<4sIQQ", data, 0)
        head = [struct.pack("<4sIQQ", magic, version, n_tensors, n_kept + len(values)), *kept]
        head += [_string(key) + _encoded(value) for key, value in values.items()]
        head.append(data[position:table_end])
        with target.open("wb") as out:
            out.write(b"".join(head))
            out.write(b"\0" * (-out.tell() % alignment))
            handle.seek(table_end + -table_end % alignment)
            shutil.copyfileobj(handle, out)


def _kept_keys(data: mmap.mmap, replaced: Mapping[str, KeyValue]) -> tuple[list[bytes], int, int]:
    """The bytes of the keys that stay, their number, and where the tensor table begins."""
    (n_keys,) = struct.unpack_from("<Q", data, 16)
    position, kept = _HEADER, []
    for _ in range(n_keys):
        start = position
        position = _after_string(data, position)
        key = data[start + 8 : position].decode("utf-8")
        (kind,) = struct.unpack_from("<I", data, position)
        position = _after_value(data, position + 4, kind)
        if key not in replaced:
            kept.append(data[start:position])
    return kept, len(kept), position


def _after_string(data: mmap.mmap, position: int) -> int:
    (length,) = struct.unpack_from("<Q", data, position)
    if position + 8 + length > len(data):
        raise struct.error("a text is longer than the file")
    return int(position + 8 + length)


def _after_value(data: mmap.mmap, position: int, kind: int) -> int:
    if kind == _STRING:
        return _after_string(data, position)
    if kind != _ARRAY:
        return position + _WIDTHS[kind]
    inner, n = struct.unpack_from("<IQ", data, position)
    position += 12
    if inner != _STRING:
        return int(position + n * _WIDTHS[inner])
    for _ in range(n):
        position = _after_string(data, position)
    return position


def _table_end(data: mmap.mmap, position: int) -> int:
    (n_tensors,) = struct.unpack_from("<Q", data, 8)
    for _ in range(n_tensors):
        position = _after_string(data, position)
        (n_dimensions,) = struct.unpack_from("<I", data, position)
        position += 4 + 8 * n_dimensions + 4 + 8
    return position


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _encoded(value: KeyValue) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))
