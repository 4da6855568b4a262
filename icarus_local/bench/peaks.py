"""What the CPU gives at most: memory bandwidth by numpy, arithmetic by ggml's own matrix product."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from icarus_local.bench.machine import largest_cache_bytes
from icarus_local.engine.devices import cpu
from icarus_local.ggml.context import Context
from icarus_local.ggml.library import TYPE_F32, load

SIDE, COLUMNS = 4096, 512  # of the product; the side is a multiple of every type's block
_ROUNDS = 5
_LEAST_BUFFER, _MOST_BUFFER = 256 << 20, 2 << 30  # bytes, over all threads


@dataclass(frozen=True, slots=True)
class Peaks:
    """Rates that were measured with as many threads as the engine has.

    Attributes:
        copy_bytes_s: a copy, bytes read and bytes written. read_bytes_s: a sum of squares of floats, bytes read. Both
            go through buffers that are several times as large as the largest cache.
        ops_s: multiplications and additions of a product of a SIDE x SIDE matrix with COLUMNS columns.
        weight_type: ggml's name of the type that the matrix is in.
        repacked: whether it lies in the CPU's repacked memory, which has kernels of its own.
    """

    copy_bytes_s: float
    read_bytes_s: float
    ops_s: float
    weight_type: str
    repacked: bool = False

    @property
    def bytes_s(self) -> float:
        """The faster of both ways through memory."""
        return max(self.copy_bytes_s, self.read_bytes_s)


def measure_peaks(kind: int, n_threads: int, buffer_type: int | None = None) -> Peaks:
    """Measures, in some seconds.

    Args:
        kind: ggml type of the weights. buffer_type: address of the type of memory that they lie in; None for the CPU's
            own.
    """
    copy, read = _bandwidth(n_threads)
    memory = cpu().buffer_type if buffer_type is None else buffer_type
    name = str(load().ggml_type_name(kind).decode())
    return Peaks(copy, read, _ops_s(kind, n_threads, memory), name, repacked=memory != cpu().buffer_type)


def _bandwidth(n_threads: int) -> tuple[float, float]:
    """Bytes per second of a copy, and of reading alone."""
    size = min(max(4 * largest_cache_bytes(), _LEAST_BUFFER), _MOST_BUFFER)
    n = size // n_threads // 4
    # numpy lets other threads run while it copies and multiplies.
    sources = [np.ones(n, np.float32) for _ in range(n_threads)]
    targets = [np.empty(n, np.float32) for _ in range(n_threads)]

    def copy(i: int) -> None:
        np.copyto(targets[i], sources[i])

    def read(i: int) -> None:
        np.dot(sources[i], sources[i])

    with ThreadPoolExecutor(n_threads) as pool:
        copied = _fastest(lambda: list(pool.map(copy, range(n_threads))))
        was_read = _fastest(lambda: list(pool.map(read, range(n_threads))))
    return 8 * n * n_threads / copied, 4 * n * n_threads / was_read


def _fastest(work: Callable[[], Sequence[None]]) -> float:
    """Seconds of the fastest of some rounds, after one that touches all memory."""
    seconds = []
    for _ in range(_ROUNDS + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def _ops_s(kind: int, n_threads: int, buffer_type: int) -> float:
    ggml, device = load(), cpu()
    with ExitStack() as stack:
        # The buffer that the matrix lies in decides with which kernel it is multiplied.
        weights = stack.enter_context(Context(1))
        matrix = weights.tensor(kind, SIDE, SIDE)
        _allocate(weights, buffer_type, stack)
        context = stack.enter_context(Context(4, 4))
        x = context.tensor(TYPE_F32, SIDE, COLUMNS)
        graph = ggml.ggml_new_graph_custom(context.handle, 4, False)
        ggml.ggml_build_forward_expand(graph, ggml.ggml_mul_mat(context.handle, matrix, x))
        _allocate(context, device.buffer_type, stack)
        backend = ggml.ggml_backend_dev_init(device.handle, None)
        stack.callback(ggml.ggml_backend_free, backend)
        ggml.ggml_backend_cpu_set_n_threads(backend, n_threads)

        def product() -> Sequence[None]:
            ggml.ggml_backend_graph_compute(backend, graph)
            return ()

        return 2 * SIDE * SIDE * COLUMNS / _fastest(product)


def _allocate(context: Context, buffer_type: int, stack: ExitStack) -> None:
    """Gives a context's tensors memory, which `stack` frees."""
    ggml = load()
    buffer = ggml.ggml_backend_alloc_ctx_tensors_from_buft(context.handle, buffer_type)
    stack.callback(ggml.ggml_backend_buffer_free, buffer)
    # Zeros are valid in every type and order, and no kernel looks at what it multiplies.
    ggml.ggml_backend_buffer_clear(buffer, 0)
