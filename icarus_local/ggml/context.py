"""A ggml context: tensors that have a type and a shape, and memory only where someone gives it to them."""

from __future__ import annotations

import ctypes

from icarus_local.ggml.library import load
from icarus_local.ggml.prototypes import InitParams


class Context:
    """Owns tensors without data.

    Attributes:
        handle: address of the ggml_context.
    """

    def __init__(self, n_tensors: int, n_nodes: int = 0) -> None:
        """Makes room for `n_tensors`, and for graphs of `n_nodes` where that is not 0."""
        self._ggml = ggml = load()
        size = ggml.ggml_tensor_overhead() * n_tensors
        if n_nodes:
            size += ggml.ggml_graph_overhead_custom(n_nodes, False)
        self.handle = ggml.ggml_init(InitParams(mem_size=size, mem_buffer=None, no_alloc=True))

    def tensor(self, kind: int, *shape: int) -> int:
        """Address of a new tensor of a ggml type, its shape in ggml's order."""
        dims = (ctypes.c_int64 * len(shape))(*shape)
        return int(self._ggml.ggml_new_tensor(self.handle, kind, len(shape), dims))

    def close(self) -> None:
        """Frees the tensors; may be called twice."""
        if self.handle:
            self._ggml.ggml_free(self.handle)
            self.handle = None

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
