"""Reads torch's zip files (`adapter_model.bin`) without pickle: a machine of few opcodes that can only build tensors.

`torch.save` writes an uncompressed zip: NAME/data.pkl, a pickle that names storages, and NAME/data/KEY, their bytes
(torch/serialization.py). Nothing of the pickle is imported or called: three names are known, and stand for what this
module does itself.
"""

from __future__ import annotations

import io
import pickletools
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from icarus_convert.safetensors_file import check_size
from icarus_local.errors import ModelFileError

_MAX_PICKLE = 1 << 26
_MAX_DIMENSIONS = 8
_SAVE_AGAIN = "Where you trust it, load it with PEFT and save it again with safe_serialization=True"

_REBUILD, _DICT = "torch._utils _rebuild_tensor_v2", "collections OrderedDict"
# torch's storage class -> numpy's type; bfloat16 is the upper half of a float32.
_STORAGES = {"torch FloatStorage": "<f4", "torch HalfStorage": "<f2", "torch BFloat16Storage": "<u2"}
_MARK = object()


@dataclass(frozen=True)
class _Global:
    name: str


@dataclass(frozen=True)
class _Storage:
    kind: str
    key: str
    n: int


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _BadPickleError(Exception):
    """What the pickle does beyond building tensors, in words."""


def read_torch_zip(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """All tensors of a state dict as float32, by name; F32, F16 and BF16 can be read.

    Raises:
        ModelFileError: not torch's zip format, damaged, or anything in it but a flat dict of tensors.
    """
    check_size(path)
    try:
        with path.open("rb") as file:
            if file.read(4) != b"PK\3\4":
                raise ModelFileError(
                    f"{path} is no zip file as torch has written since 1.6, and anything older is a bare pickle, which "
                    "is not read here since it can run code",
                    _SAVE_AGAIN,
                )
            with zipfile.ZipFile(file) as archive:
                return _read(path, archive)
    except _BadPickleError as error:
        raise ModelFileError(f"{path}: its pickle {error}, so it is refused", _SAVE_AGAIN) from error
    # zipfile raises these for damage of every kind, RuntimeError and NotImplementedError for what it cannot open.
    except (zipfile.BadZipFile, EOFError, ValueError, struct.error, RuntimeError, OverflowError) as error:
        raise ModelFileError(f"{path} is damaged: {error}", "Fetch or save it again") from error
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error


def _read(path: Path, archive: zipfile.ZipFile) -> dict[str, npt.NDArray[np.float32]]:
    entries = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise ModelFileError(f"{path} holds {len(pickles)} files data.pkl, not one: it is not torch's", _SAVE_AGAIN)
    prefix = pickles[0].removesuffix("data.pkl")
    size = path.stat().st_size
    order = entries.get(f"{prefix}byteorder")
    if order is not None and _bytes(path, archive, order, 16) != b"little":
        raise ModelFileError(f"{path} was written on a big-endian machine", _SAVE_AGAIN)
    tensors = _state_dict(_Machine(_bytes(path, archive, entries[pickles[0]], _MAX_PICKLE)).run())
    # Views of one storage could make a small file a large amount of memory.
    total = sum(4 * int(np.prod(tensor.shape, dtype=object)) for tensor in tensors.values())
    if total > 2 * size:
        raise ModelFileError(f"{path} claims {total} bytes of tensors in a file of {size}", "Fetch it again")
    read = {}
    for name, tensor in tensors.items():
        info = entries.get(f"{prefix}data/{tensor.storage.key}")
        if info is None:
            raise ModelFileError(f"{path} lacks the data of the tensor {name}", "Fetch or save it again")
        read[name] = _values(path, name, tensor, _bytes(path, archive, info, size))
    return read


def _bytes(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> bytes:
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise ModelFileError(f"{path}: {info.filename} is compressed, as torch never does", _SAVE_AGAIN)
    if info.file_size > limit:
        raise ModelFileError(f"{path}: {info.filename} claims {info.file_size} bytes, too many", "Fetch it again")
    return archive.read(info)


def _state_dict(value: Any) -> dict[str, _Tensor]:
    if not isinstance(value, dict):
        raise _BadPickleError("holds no dict of tensors")
    for name, tensor in value.items():
        if not isinstance(name, str) or not isinstance(tensor, _Tensor):
            raise _BadPickleError(f"holds {str(name)[:80]!r} beside tensors")
    return value


def _values(path: Path, name: str, tensor: _Tensor, data: bytes) -> npt.NDArray[np.float32]:
    dtype = np.dtype(_STORAGES[tensor.storage.kind])
    if len(data) != tensor.storage.n * dtype.itemsize:
        raise ModelFileError(
            f"{path}: the data of {name} has {len(data)} bytes, not {tensor.storage.n} values of {dtype.itemsize}",
            "Fetch or save it again",
        )
    flat = np.frombuffer(data, dtype)
    last = tensor.offset + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True))
    if 0 in tensor.shape:
        return np.zeros(tensor.shape, np.float32)
    if last >= len(flat):
        raise ModelFileError(f"{path}: tensor {name} reaches beyond its data", "Fetch or save it again")
    steps = [step * dtype.itemsize for step in tensor.strides]
    view = np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, steps, writeable=False)
    if tensor.storage.kind == "torch BFloat16Storage":
        return (view.astype(np.uint32) << 16).view(np.float32)
    return view.astype(np.float32)


@dataclass
class _Machine:
    """Runs the opcodes that a state dict is made of (pickletools' names); every other one is refused by name."""

    code: bytes
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def run(self) -> Any:
        try:
            for opcode, argument, _ in self._opcodes():
                if opcode.name == "STOP":
                    return self._pop()
                action = _ACTIONS.get(opcode.name)
                if action is None:
                    raise _BadPickleError(f"uses {opcode.name}")
                action(self, argument)
        except (ValueError, IndexError, KeyError, TypeError, UnicodeError, OverflowError, MemoryError) as error:
            raise _BadPickleError(f"is damaged ({type(error).__name__})") from error
        raise _BadPickleError("has no end")

    def _opcodes(self) -> Iterator[tuple[Any, Any, Any]]:
        return pickletools.genops(io.BytesIO(self.code))

    def _pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise _BadPickleError("is damaged (mark)")
        return value

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self, _argument: Any) -> None:
        self.stack.append(_MARK)

    def to_mark(self) -> list[Any]:
        items: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            items.append(value)
        return items[::-1]

    def tuple_of(self, n: int) -> None:
        self.push(tuple([self._pop() for _ in range(n)][::-1]))

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def global_name(self, name: str) -> None:
        if name not in (_REBUILD, _DICT, *_STORAGES):
            shown = name.replace(" ", ".")[:80]
            raise _BadPickleError(f"names {shown!r}, which is no part of a tensor of F32, F16 or BF16")
        self.push(_Global(name))

    def stack_global(self, _argument: Any) -> None:
        name, module = self._pop(), self._pop()
        self.global_name(f"{module} {name}" if isinstance(module, str) and isinstance(name, str) else "?")

    def persistent(self, _argument: Any) -> None:
        what, kind, key, _device, n = self._pop()
        if what != "storage" or not isinstance(kind, _Global) or kind.name not in _STORAGES:
            raise _BadPickleError("refers to something other than a storage")
        if not isinstance(key, str) or not _is_count(n):
            raise _BadPickleError("names a storage that cannot be")
        self.push(_Storage(kind.name, key, n))

    def reduce(self, _argument: Any) -> None:
        arguments, function = self._pop(), self._pop()
        if not isinstance(function, _Global) or not isinstance(arguments, tuple):
            raise _BadPickleError("calls something that is no function of torch")
        if function.name == _DICT and not arguments:
            self.push({})
        elif function.name == _REBUILD and len(arguments) >= 4:
            self.push(_tensor(*arguments[:4]))
        else:
            raise _BadPickleError(f"calls {function.name.replace(' ', '.')} with what it does not take")

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise _BadPickleError("fills something that is no dict")
        for name, value in zip(items[::2], items[1::2], strict=True):
            # Only texts: a hash of nested tuples could take for ever.
            if not isinstance(name, str):
                raise _BadPickleError("has a key that is no text")
            if name in target:
                raise _BadPickleError(f"holds {name[:80]!r} twice")
            target[name] = value

    def set_item(self, _argument: Any) -> None:
        value, name = self._pop(), self._pop()
        self.set_items([name, value])

    def build(self, _argument: Any) -> None:
        # A module's state dict carries _metadata, which says nothing about its tensors.
        state, target = self._pop(), self.stack[-1]
        if not isinstance(state, dict) or not isinstance(target, dict):
            raise _BadPickleError("sets the state of something that is no dict")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> _Tensor:
    if not isinstance(storage, _Storage) or not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise _BadPickleError("builds a tensor of something else than a storage")
    if not len(shape) == len(strides) <= _MAX_DIMENSIONS or not all(map(_is_count, (offset, *shape, *strides))):
        raise _BadPickleError("builds a tensor of a shape that cannot be")
    return _Tensor(storage, offset, shape, strides)


_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "MARK": _Machine.mark,
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1"), _Machine.push),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), _Machine.push),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Machine.put),
    "MEMOIZE": lambda machine, _: machine.put(len(machine.memo)),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda machine, index: machine.push(machine.memo[index])),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.to_mark())),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "GLOBAL": _Machine.global_name,
    "STACK_GLOBAL": _Machine.stack_global,
    "BINPERSID": _Machine.persistent,
    "REDUCE": _Machine.reduce,
    "SETITEM": _Machine.set_item,
    "SETITEMS": lambda machine, _: machine.set_items(machine.to_mark()),
    "BUILD": _Machine.build,
}
