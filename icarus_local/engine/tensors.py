"""Owned groups of ggml tensors in one backend buffer."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from icarus_local.errors import IcarusError
from icarus_local.ggml.library import load
from icarus_local.ggml.prototypes import InitParams


class TensorGroup:
    """Tensors that are allocated, zeroed and freed together.

    Attributes:
        n_bytes: size of their buffer.
    """

    def __init__(self, specs: Mapping[str, tuple[int, tuple[int, ...]]], buffer_type: int) -> None:
        """Allocates.

        Args:
            specs: name -> (ggml type, shape in ggml's order).
            buffer_type: address of the ggml buffer type.

        Raises:
            IcarusError: the memory cannot be had.
        """
        self._ggml = ggml = load()
        self._context = ggml.ggml_init(
            InitParams(mem_size=ggml.ggml_tensor_overhead() * (len(specs) + 1), mem_buffer=None, no_alloc=True)
        )
        self._tensors: dict[str, int] = {}
        self._types = {name: kind for name, (kind, _) in specs.items()}
        for name, (kind, shape) in specs.items():
            dims = (ctypes.c_int64 * len(shape))(*shape)
            self._tensors[name] = ggml.ggml_new_tensor(self._context, kind, len(shape), dims)
        self._buffer = ggml.ggml_backend_alloc_ctx_tensors_from_buft(self._context, buffer_type)
        if not self._buffer:
            self.close()
            raise IcarusError(
                "the device has not enough memory for the cache or the adapters", "Give a smaller --n-ctx"
            )
        self.n_bytes = int(ggml.ggml_backend_buffer_get_size(self._buffer))
        ggml.ggml_backend_buffer_clear(self._buffer, 0)

    def __getitem__(self, name: str) -> int:
        return self._tensors[name]

    def type_of(self, name: str) -> int:
        """A tensor's ggml type."""
        return self._types[name]

    def write(self, name: str, data: npt.NDArray[np.generic], offset: int) -> None:
        """Copies contiguous `data` into a tensor from byte `offset` on."""
        assert data.flags.c_contiguous
        assert offset + data.nbytes <= self._ggml.ggml_nbytes(self._tensors[name])
        self._ggml.ggml_backend_tensor_set(self._tensors[name], data.ctypes.data, offset, data.nbytes)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> npt.NDArray[np.uint8]:
        """Copies `size` bytes (default: all from `offset` on) out of a tensor."""
        total = self._ggml.ggml_nbytes(self._tensors[name])
        data = np.empty(total - offset if size is None else size, np.uint8)
        assert offset + data.nbytes <= total
        self._ggml.ggml_backend_tensor_get(self._tensors[name], data.ctypes.data, offset, data.nbytes)
        return data

    def close(self) -> None:
        """Frees buffer and tensors; may be called twice."""
        if getattr(self, "_buffer", None):
            self._ggml.ggml_backend_buffer_free(self._buffer)
            self._buffer = None
        if self._context:
            self._ggml.ggml_free(self._context)
            self._context = None
