"""What a run takes in memory, measured on graphs over tensors that lie nowhere, before anything is allocated."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack, closing

from icarus_local.engine.architecture import Hyperparameters
from icarus_local.engine.bank import AdapterBank
from icarus_local.engine.base import BaseFile, BaseWeights
from icarus_local.engine.devices import cpu
from icarus_local.engine.graph import Graph, GraphSpec
from icarus_local.engine.kv import KV_TYPES, KvCache, kv_bytes_per_token
from icarus_local.engine.placement import Needs, Placement
from icarus_local.engine.weights import lora_places
from icarus_local.ggml.context import Context
from icarus_local.ggml.library import STATUS_SUCCESS, load

_EXPECTED_RANK = 16
_EXPECTED_SLOTS = 4  # the zeros and up to three adapters
_NOWHERE, _NOWHERE_BYTES = 1 << 20, 1 << 46  # addresses that are never read


def measured_needs(
    file: BaseFile, n_ctx: int, kv_type: str, largest: list[GraphSpec], max_adapters: int | None = None
) -> Needs:
    """What a run of these largest steps takes beside the weights; three adapters of rank 16 are expected."""
    slots = _EXPECTED_SLOTS if max_adapters is None else min(_EXPECTED_SLOTS, max_adapters + 1)
    return Needs(
        n_ctx=n_ctx,
        cache=n_ctx * kv_bytes_per_token(file.hp, kv_type),
        compute=_compute_bytes(file, n_ctx, kv_type, largest),
        adapters=slots * adapter_bytes(file.hp, _EXPECTED_RANK),
    )


def adapter_bytes(hp: Hyperparameters, rank: int) -> int:
    """Bytes of an F32 adapter of a rank on every module that takes one."""
    places = lora_places(hp).values()
    return 4 * rank * sum(place.n_in + part.stop - part.start for place in places for part in place.parts)


def _compute_bytes(file: BaseFile, n_ctx: int, kv_type: str, specs: list[GraphSpec]) -> int:
    """Bytes of the buffer that ggml's allocator would compute these steps in, as for the CPU."""
    ggml, host = load(), cpu()
    with ExitStack() as stack:
        buffer = ggml.ggml_backend_dev_buffer_from_host_ptr(host.handle, _NOWHERE, _NOWHERE_BYTES, 0)
        stack.callback(ggml.ggml_backend_buffer_free, buffer)
        context = stack.enter_context(Context(len(file.weights) + 2 * file.hp.n_layer))

        def tensor(kind: int, *shape: int) -> int:
            made = context.tensor(kind, *shape)
            status = ggml.ggml_backend_tensor_alloc(buffer, made, _NOWHERE)
            assert status == STATUS_SUCCESS
            return made

        types = {weight.name: file.file.tensors[weight.source].type for weight in file.weights.values()}
        base = _Weights(file, {w.name: tensor(types[w.name], *w.shape) for w in file.weights.values()})
        kind = KV_TYPES[kv_type]
        pairs = [tuple(tensor(kind, file.hp.n_embd_kv, n_ctx) for _ in "kv") for _ in range(file.hp.n_layer)]
        cache = _Cache(n_ctx, kind, [(k, v) for k, v in pairs])
        allocator = ggml.ggml_gallocr_new(host.buffer_type)
        stack.callback(ggml.ggml_gallocr_free, allocator)
        largest = 0
        for spec in specs:
            with closing(Graph(spec, base, cache, AdapterBank(base))) as graph:
                found = ctypes.c_size_t()
                ggml.ggml_gallocr_reserve_n_size(allocator, graph.graph, None, None, ctypes.byref(found))
                largest = max(largest, found.value)
        return largest


class _Weights(BaseWeights):
    """The weights' shapes, without their data."""

    def __init__(self, file: BaseFile, tensors: dict[str, int]) -> None:
        host = cpu()
        self.hp, self.family_id, self.places = file.hp, file.family_id, lora_places(file.hp)
        layers = (host,) * file.hp.n_layer
        self.placement = Placement(host, host, 0, layers, host, host, frozenset(), 0, "nowhere")
        self._tensors = tensors

    def rope_factors(self, layer: int, n_ctx: int) -> int | None:
        """Address of the rope's factors for a layer and a context, or None."""
        name = self.hp.rope_of(layer).factors_for(n_ctx)
        return None if name is None else self._tensors[name]


class _Cache(KvCache):
    """The cache's shapes, without its data. What rotates quantised K and V takes next to nothing, and is left out."""

    k_rotation = v_rotation = 0

    def __init__(self, n_cells: int, kind: int, layers: list[tuple[int, int]]) -> None:
        self.n_cells, self.kind, self._layers = n_cells, kind, layers

    def k(self, layer: int) -> int:
        """Address of K, [n_embd_kv, n_cells]."""
        return self._layers[layer][0]

    def v(self, layer: int) -> int:
        """Address of V, [n_embd_kv, n_cells]."""
        return self._layers[layer][1]
