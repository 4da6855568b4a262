"""Builds, keeps and computes graphs: on one device by cached graphs, on several by ggml's scheduler."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from contextlib import ExitStack
from typing import Protocol

from icarus_local.engine.bank import AdapterBank
from icarus_local.engine.base import BaseWeights
from icarus_local.engine.devices import Device, check_memory
from icarus_local.engine.graph import Graph, GraphSpec
from icarus_local.engine.kv import KvCache
from icarus_local.errors import IcarusError
from icarus_local.ggml.library import load, strlen_address

_MAX_GRAPHS = 48
_HINT = "Give a smaller --n-ctx, or fewer --gpu-layers"


class Executor(Protocol):
    """Gives the allocated graph of a shape, and computes it."""

    @property
    def n_bytes(self) -> int:
        """Bytes of compute buffers."""

    @property
    def n_graphs(self) -> int:
        """Graphs that are built and kept."""

    def get(self, spec: GraphSpec) -> Graph:
        """The allocated graph of a shape. Raises IcarusError where memory does not suffice."""

    def compute(self, graph: Graph) -> int:
        """Computes a graph whose inputs are set; gives the ggml status."""

    def close(self) -> None:
        """Frees everything; may be called twice."""


class Backends:
    """The opened devices of a placement; the CPU is always the last.

    Attributes:
        handles: addresses of the ggml backends. stops_inside: whether a step can be stopped before its end.
    """

    def __init__(self, devices: list[Device], host: Device, n_threads: int, flag: int) -> None:
        """Opens them.

        Args:
            devices: those that compute. host: the CPU. n_threads: of the CPU.
            flag: address of a C string; the CPU stops as soon as it is not empty.

        Raises:
            IcarusError: a device does not open.
        """
        self._ggml = ggml = load()
        self.handles: list[int] = []
        with ExitStack() as stack:
            others = [device for device in devices if not device.is_cpu]
            for device in [*others, host]:
                backend = ggml.ggml_backend_dev_init(device.handle, None)
                if not backend:
                    raise IcarusError(f"the device {device.name} cannot be used", "Give another --device")
                stack.callback(ggml.ggml_backend_free, backend)
                self.handles.append(backend)
            ggml.ggml_backend_cpu_set_n_threads(self.handles[-1], n_threads)
            # strlen of the flag is 0 or more: asked before every node, it must not enter Python.
            ggml.ggml_backend_cpu_set_abort_callback(self.handles[-1], strlen_address(), flag)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Closes them; may be called twice."""
        self._stack.close()


class _Graphs:
    """What both executors share: building graphs, and noticing that the bank's tensors moved."""

    def __init__(self, base: BaseWeights, kv: KvCache, bank: AdapterBank) -> None:
        self._base, self._kv, self._bank = base, kv, bank
        self._ggml = load()
        self._graphs: OrderedDict[GraphSpec, Graph] = OrderedDict()
        self._generation = bank.generation

    @property
    def n_graphs(self) -> int:
        """Graphs that are built and kept."""
        return len(self._graphs)

    def _build(self, spec: GraphSpec) -> Graph:
        return Graph(spec, self._base, self._kv, self._bank)

    def _known(self, spec: GraphSpec) -> Graph | None:
        if self._generation != self._bank.generation:
            # The bank's tensors have moved: graphs over the old ones must go.
            self.clear()
            self._generation = self._bank.generation
        graph = self._graphs.get(spec)
        if graph is not None:
            self._graphs.move_to_end(spec)
        return graph

    def clear(self) -> None:
        """Forgets all graphs."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()


class CachedGraphs(_Graphs):
    """One device: graphs are kept by shape over one compute buffer; the least recently used goes when there are many.

    Attributes:
        n_bytes: of the compute buffer.
    """

    def __init__(self, base: BaseWeights, kv: KvCache, bank: AdapterBank, backend: int, device: Device) -> None:
        super().__init__(base, kv, bank)
        self._backend, self._device = backend, device
        self._allocator = self._ggml.ggml_gallocr_new(device.buffer_type)

    def reserve(self, specs: list[GraphSpec]) -> None:
        """Sizes the compute buffer for the largest steps, so that it does not move later.

        Raises:
            IcarusError: there is not enough memory.
        """
        for spec in specs:
            graph, size = self._build(spec), ctypes.c_size_t()
            try:
                self._ggml.ggml_gallocr_reserve_n_size(self._allocator, graph.graph, None, None, ctypes.byref(size))
                check_memory(self._device.buffer_type, size.value, "computing a step", _HINT)
                if not self._ggml.ggml_gallocr_reserve(self._allocator, graph.graph):
                    raise _out_of_memory()
            finally:
                graph.close()

    @property
    def n_bytes(self) -> int:
        """Bytes of the compute buffer."""
        return int(self._ggml.ggml_gallocr_get_buffer_size(self._allocator, 0))

    def get(self, spec: GraphSpec) -> Graph:
        """The allocated graph of a shape.

        Raises:
            IcarusError: there is not enough memory.
        """
        graph = self._known(spec)
        if graph is not None:
            return graph
        graph, before = self._build(spec), self.n_bytes
        if not self._ggml.ggml_gallocr_alloc_graph(self._allocator, graph.graph):
            # The buffer may be gone, and with it what the other graphs point at.
            graph.close()
            self.clear()
            raise _out_of_memory()
        if self.n_bytes != before:
            # All graphs share the allocator's one buffer: when it moves, the others point at freed memory.
            self.clear()
        while len(self._graphs) >= _MAX_GRAPHS:
            self._graphs.popitem(last=False)[1].close()
        self._graphs[spec] = graph
        return graph

    def compute(self, graph: Graph) -> int:
        """Computes a graph; gives the ggml status."""
        return int(self._ggml.ggml_backend_graph_compute(self._backend, graph.graph))

    def close(self) -> None:
        """Frees graphs and compute buffer; may be called twice."""
        self.clear()
        if self._allocator:
            self._ggml.ggml_gallocr_free(self._allocator)
            self._allocator = None


class ScheduledGraphs(_Graphs):
    """Several devices: ggml's scheduler splits a graph and copies what crosses.

    It holds one graph at a time, so the last one is kept, and another shape is built and split anew.
    """

    def __init__(
        self, base: BaseWeights, kv: KvCache, bank: AdapterBank, backends: list[int], largest: GraphSpec
    ) -> None:
        super().__init__(base, kv, bank)
        n = len(backends)
        self._backends = (ctypes.c_void_p * n)(*backends)
        graph = self._build(largest)
        try:
            self._sched = self._ggml.ggml_backend_sched_new(self._backends, None, n, 2 * graph.n_nodes, False, True)
            if not self._ggml.ggml_backend_sched_reserve(self._sched, graph.graph):
                self.close()
                raise _out_of_memory()
        finally:
            graph.close()

    @property
    def n_bytes(self) -> int:
        """Bytes of the compute buffers of all devices."""
        sizes = (self._ggml.ggml_backend_sched_get_buffer_size(self._sched, backend) for backend in self._backends)
        return int(sum(sizes))

    def get(self, spec: GraphSpec) -> Graph:
        """The allocated graph of a shape.

        Raises:
            IcarusError: there is not enough memory.
        """
        graph = self._known(spec)
        if graph is not None:
            return graph
        self.clear()
        self._ggml.ggml_backend_sched_reset(self._sched)
        graph = self._build(spec)
        if not self._ggml.ggml_backend_sched_alloc_graph(self._sched, graph.graph):
            graph.close()
            raise _out_of_memory()
        self._graphs[spec] = graph
        return graph

    def compute(self, graph: Graph) -> int:
        """Computes a graph; gives the ggml status."""
        return int(self._ggml.ggml_backend_sched_graph_compute(self._sched, graph.graph))

    def close(self) -> None:
        """Frees graph and scheduler; may be called twice."""
        self.clear()
        if self._sched:
            self._ggml.ggml_backend_sched_free(self._sched)
            self._sched = None


def _out_of_memory() -> IcarusError:
    return IcarusError("there is not enough memory for a step", _HINT)
