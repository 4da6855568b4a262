"""Built graphs, kept by shape over one shared compute buffer."""

from __future__ import annotations

from collections import OrderedDict

from icarus_local.engine.bank import AdapterBank
from icarus_local.engine.base import BaseWeights
from icarus_local.engine.graph import Graph, GraphSpec
from icarus_local.engine.tensors import TensorGroup
from icarus_local.errors import IcarusError
from icarus_local.ggml.library import load

_MAX_GRAPHS = 24


class GraphPool:
    """Gives the graph of a shape, building it the first time; the least recently used one goes when there are many."""

    def __init__(self, base: BaseWeights, kv: TensorGroup, bank: AdapterBank, buffer_type: int) -> None:
        self._base, self._kv, self._bank = base, kv, bank
        self._ggml = load()
        self._graphs: OrderedDict[GraphSpec, Graph] = OrderedDict()
        self._allocator = self._ggml.ggml_gallocr_new(buffer_type)
        self._generation = bank.generation

    def __len__(self) -> int:
        return len(self._graphs)

    def _build(self, spec: GraphSpec) -> Graph:
        return Graph(spec, self._base, self._kv, self._bank)

    def reserve(self, specs: list[GraphSpec]) -> None:
        """Sizes the compute buffer for the largest steps, so that it does not move later.

        Raises:
            IcarusError: there is not enough memory.
        """
        for spec in specs:
            graph = self._build(spec)
            try:
                if not self._ggml.ggml_gallocr_reserve(self._allocator, graph.graph):
                    raise _out_of_memory()
            finally:
                graph.close()

    def get(self, spec: GraphSpec) -> Graph:
        """The allocated graph of a shape.

        Raises:
            IcarusError: there is not enough memory.
        """
        if self._generation != self._bank.generation:
            # The bank's tensors have moved: graphs over the old ones must go.
            self.clear()
            self._generation = self._bank.generation
        graph = self._graphs.get(spec)
        if graph is not None:
            self._graphs.move_to_end(spec)
            return graph
        graph = self._build(spec)
        before = self._buffer_size()
        if not self._ggml.ggml_gallocr_alloc_graph(self._allocator, graph.graph):
            # The buffer may be gone, and with it what the other graphs point at.
            graph.close()
            self.clear()
            raise _out_of_memory()
        if self._buffer_size() != before:
            # All graphs share the allocator's one buffer: when it moves, the others point at freed memory.
            self.clear()
        while len(self._graphs) >= _MAX_GRAPHS:
            self._graphs.popitem(last=False)[1].close()
        self._graphs[spec] = graph
        return graph

    def _buffer_size(self) -> int:
        return int(self._ggml.ggml_gallocr_get_buffer_size(self._allocator, 0))

    def clear(self) -> None:
        """Forgets all graphs."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()

    def close(self) -> None:
        """Frees graphs and compute buffer; may be called twice."""
        self.clear()
        if self._allocator:
            self._ggml.ggml_gallocr_free(self._allocator)
            self._allocator = None


def _out_of_memory() -> IcarusError:
    return IcarusError("there is not enough memory for a step", "Give a smaller --n-ctx")
