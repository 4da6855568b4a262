"""Owned groups of ggml tensors, each in the memory of the device that uses it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icarus_local.engine.devices import check_memory
from icarus_local.errors import IcarusError
from icarus_local.ggml.context import Context
from icarus_local.ggml.library import load


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor to be: ggml type, shape in ggml's order, and the address of the buffer type that it lies in."""

    kind: int
    shape: tuple[int, ...]
    buffer_type: int

    @property
    def n_bytes(self) -> int:
        """Bytes of its data."""
        return int(load().ggml_row_size(self.kind, self.shape[0])) * math.prod(self.shape[1:])


def bytes_by_buffer_type(specs: Iterable[TensorSpec]) -> dict[int, int]:
    """Bytes that tensors take in each kind of memory."""
    total: dict[int, int] = {}
    for spec in specs:
        total[spec.buffer_type] = total.get(spec.buffer_type, 0) + spec.n_bytes
    return total


class TensorGroup:
    """Tensors that are allocated, zeroed and freed together; one buffer for each kind of memory.

    Attributes:
        n_bytes: size of the buffers.
    """

    def __init__(self, specs: Mapping[str, TensorSpec], what: str, hint: str) -> None:
        """Allocates.

        Args:
            specs: by name.
            what: for the error message, such as "the KV cache".
            hint: what to do when the memory cannot be had.

        Raises:
            IcarusError: the memory cannot be had.
        """
        self._ggml = load()
        self._specs = dict(specs)
        self._tensors: dict[str, int] = {}
        self._contexts: list[Context] = []
        self._buffers: list[int] = []
        self.n_bytes = 0
        for buffer_type, n_bytes in bytes_by_buffer_type(specs.values()).items():
            check_memory(buffer_type, n_bytes, what, hint)
        try:
            for buffer_type in dict.fromkeys(spec.buffer_type for spec in specs.values()):
                self._allocate(buffer_type, what, hint)
        except IcarusError:
            self.close()
            raise

    def _allocate(self, buffer_type: int, what: str, hint: str) -> None:
        ggml, specs = self._ggml, {n: s for n, s in self._specs.items() if s.buffer_type == buffer_type}
        context = Context(len(specs) + 1)
        self._contexts.append(context)
        for name, spec in specs.items():
            self._tensors[name] = context.tensor(spec.kind, *spec.shape)
        buffer = ggml.ggml_backend_alloc_ctx_tensors_from_buft(context.handle, buffer_type)
        if not buffer:
            raise IcarusError(f"the device has not enough memory for {what}", hint)
        self._buffers.append(buffer)
        self.n_bytes += int(ggml.ggml_backend_buffer_get_size(buffer))
        ggml.ggml_backend_buffer_clear(buffer, 0)

    def __getitem__(self, name: str) -> int:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def set_usage(self, usage: int) -> None:
        """Tells the backends what the buffers are for (enum ggml_backend_buffer_usage)."""
        for buffer in self._buffers:
            self._ggml.ggml_backend_buffer_set_usage(buffer, usage)

    def write(self, name: str, data: npt.NDArray[np.generic], offset: int = 0) -> None:
        """Copies contiguous `data` into a tensor from byte `offset` on."""
        assert data.flags.c_contiguous
        assert offset + data.nbytes <= self._specs[name].n_bytes
        self._ggml.ggml_backend_tensor_set(self._tensors[name], data.ctypes.data, offset, data.nbytes)

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor."""
        data = np.empty(self._specs[name].n_bytes, np.uint8)
        self._ggml.ggml_backend_tensor_get(self._tensors[name], data.ctypes.data, 0, data.nbytes)
        return data

    def close(self) -> None:
        """Frees buffers and tensors; may be called twice."""
        for buffer in self._buffers:
            self._ggml.ggml_backend_buffer_free(buffer)
        for context in self._contexts:
            context.close()
        self._buffers, self._contexts, self._tensors = [], [], {}
