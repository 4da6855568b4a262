"""How many rows ggml multiplies by the same kernel as two: what makes a verified token the bits of a single step."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from icarus_local.engine.base import BaseWeights
from icarus_local.engine.devices import cpu
from icarus_local.engine.weights import EXPERTS, Weight
from icarus_local.ggml.context import Context
from icarus_local.ggml.library import TYPE_F32, TYPE_I32, load

# What a dual step multiplies two rows with; K, V and the head have one row there, and in `verify` one-row products.
_MODULES = (
    *("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
    *("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
)


def rows_of_one_kernel(base: BaseWeights, backend: int, candidates: Sequence[int]) -> int:
    """The largest of `candidates` (rising) for which a row of a product with the base's weights is that of two; else 2.

    Tried on the weights themselves, one of each type and shape: which kernel ggml takes is the CPU's and the build's.
    `backend` is the CPU's ggml backend.
    """
    samples, largest = base.samples(*_MODULES), 2
    for rows in candidates:
        if not all(_agrees(backend, tensor, weight, rows) for tensor, weight in samples):
            break
        largest = rows
    return largest


def _agrees(backend: int, tensor: int, weight: Weight, rows: int) -> bool:
    inputs = np.random.default_rng(0).standard_normal((rows, weight.shape[0])).astype(np.float32)
    two, many = (_product(backend, tensor, weight, inputs[:n]) for n in (2, rows))
    return np.array_equal(two, many[:2])


def _product(backend: int, tensor: int, weight: Weight, inputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rows of `inputs` [rows, n_in] times a weight (of experts, the first), [rows, n_out]."""
    ggml, (rows, n_in) = load(), inputs.shape
    with ExitStack() as stack:
        context = stack.enter_context(Context(4, 4))
        ids = None
        if weight.use == EXPERTS:
            x, ids = context.tensor(TYPE_F32, n_in, 1, rows), context.tensor(TYPE_I32, 1, rows)
            product = ggml.ggml_mul_mat_id(context.handle, tensor, x, ids)
        else:
            x = context.tensor(TYPE_F32, n_in, rows)
            product = ggml.ggml_mul_mat(context.handle, tensor, x)
        graph = ggml.ggml_new_graph_custom(context.handle, 4, False)
        ggml.ggml_build_forward_expand(graph, product)
        buffer = ggml.ggml_backend_alloc_ctx_tensors_from_buft(context.handle, cpu().buffer_type)
        stack.callback(ggml.ggml_backend_buffer_free, buffer)
        ggml.ggml_backend_tensor_set(x, inputs.ctypes.data, 0, inputs.nbytes)
        if ids is not None:
            first = np.zeros(rows, np.int32)
            ggml.ggml_backend_tensor_set(ids, first.ctypes.data, 0, first.nbytes)
        ggml.ggml_backend_graph_compute(backend, graph)
        out = np.empty((rows, int(ggml.ggml_nelements(product)) // rows), np.float32)
        ggml.ggml_backend_tensor_get(product, out.ctypes.data, 0, out.nbytes)
        return out
