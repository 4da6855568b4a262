"""Builds, keeps and computes graphs: on one device by cached graphs, on several by ggml's scheduler."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from contextlib import ExitStack, closing
from typing import Protocol

from icarus_local.engine.bank import AdapterBank
from icarus_local.engine.base import BaseWeights
from icarus_local.engine.devices import Device, check_memory
from icarus_local.engine.graph import Graph, GraphSpec
from icarus_local.engine.kv import KvCache
from icarus_local.errors import IcarusError
from icarus_local.ggml.library import load, strlen_address

# Kept: many shapes of prompts, and of each speaker a first token and a dual step, on both sides of a growth of n_kv.
_GRAPHS, _GRAPHS_PER_ADAPTER = 64, 4
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
        handles: addresses of the ggml backends.
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
        self._remote = base.placement.layers[-1].is_remote

    @property
    def n_graphs(self) -> int:
        """Graphs that are built and kept."""
        return len(self._graphs)

    def _known(self, spec: GraphSpec) -> Graph | None:
        if self._generation != self._bank.generation:
            # The bank's tensors have moved: graphs over the old ones must go.
            self.clear()
            self._generation = self._bank.generation
        graph = self._graphs.get(spec)
        if graph is not None:
            self._graphs.move_to_end(spec)
        return graph

    def _wait(self) -> None:
        """Waits for a remote device, which says at once that it computed: else `cancel` would find all steps sent."""
        if self._remote:
            value = ctypes.c_uint32()
            k = self._kv.k(self._base.hp.n_layer - 1)
            self._ggml.ggml_backend_tensor_get(k, ctypes.byref(value), 0, ctypes.sizeof(value))

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
            IcarusError: there is not enough memory, or the device lacks an operation.
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
            IcarusError: there is not enough memory, or the device lacks an operation.
        """
        graph = self._known(spec)
        if graph is not None:
            return graph
        graph, before = self._build(spec), self.n_bytes
        if not self._ggml.ggml_gallocr_alloc_graph(self._allocator, graph.graph):
            # The buffer is gone, and with it what the other graphs point at; the allocator would use it all the same.
            graph.close()
            self.close()
            self._allocator = self._ggml.ggml_gallocr_new(self._device.buffer_type)
            raise _out_of_memory()
        if self.n_bytes != before:
            # All graphs share the allocator's one buffer: when it moves, the others point at freed memory.
            self.clear()
        while len(self._graphs) >= _GRAPHS + _GRAPHS_PER_ADAPTER * self._bank.n_added:
            self._graphs.popitem(last=False)[1].close()
        self._graphs[spec] = graph
        return graph

    def _build(self, spec: GraphSpec) -> Graph:
        graph = Graph(spec, self._base, self._kv, self._bank)
        lacking = None if self._device.is_cpu else unsupported(graph, self._device)
        if lacking is not None:
            # ggml would abort, or compute nonsense.
            graph.close()
            raise IcarusError(f"{self._device.name} does not compute {lacking}", "Give --device cpu")
        return graph

    def compute(self, graph: Graph) -> int:
        """Computes a graph; gives the ggml status."""
        status = int(self._ggml.ggml_backend_graph_compute(self._backend, graph.graph))
        self._wait()
        return status

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

    def __init__(self, base: BaseWeights, kv: KvCache, bank: AdapterBank, backends: list[int]) -> None:
        super().__init__(base, kv, bank)
        self._backends = (ctypes.c_void_p * len(backends))(*backends)
        self._scheduler: int | None = None
        self._capacity = 0

    def reserve(self, specs: list[GraphSpec]) -> None:
        """Sizes the compute buffers for the largest steps.

        Raises:
            IcarusError: there is not enough memory.
        """
        placement = self._base.placement
        sizes = (ctypes.c_size_t * len(self._backends))()
        for spec in specs:
            # The scheduler changes a graph as it splits it: one to measure, one to reserve for.
            with closing(self._build(spec)) as graph:
                self._ggml.ggml_backend_sched_reserve_size(self._scheduler_for(graph), graph.graph, sizes)
            for device, size in zip((placement.device, placement.host), sizes, strict=True):
                check_memory(device.buffer_type, size, f"computing a step on {device.name}", _HINT)
            with closing(self._build(spec)) as graph:
                if not self._ggml.ggml_backend_sched_reserve(self._scheduler_for(graph), graph.graph):
                    raise _out_of_memory()

    def _scheduler_for(self, graph: Graph) -> int:
        """A scheduler whose tables hold the graph: ggml aborts where they do not. It holds no other graph."""
        needed = 2 * graph.n_nodes  # nodes and leafs
        if self._scheduler is None or needed > self._capacity:
            self._free_scheduler()
            self._capacity = needed
            self._scheduler = int(
                self._ggml.ggml_backend_sched_new(self._backends, None, len(self._backends), needed, False, True)
            )
        self._ggml.ggml_backend_sched_reset(self._scheduler)
        return self._scheduler

    @property
    def n_bytes(self) -> int:
        """Bytes of the compute buffers of all devices."""
        if self._scheduler is None:
            return 0
        return sum(
            int(self._ggml.ggml_backend_sched_get_buffer_size(self._scheduler, backend)) for backend in self._backends
        )

    def get(self, spec: GraphSpec) -> Graph:
        """The allocated graph of a shape.

        Raises:
            IcarusError: there is not enough memory.
        """
        graph = self._known(spec)
        if graph is not None:
            return graph
        self.clear()
        graph = self._build(spec)
        if not self._ggml.ggml_backend_sched_alloc_graph(self._scheduler_for(graph), graph.graph):
            graph.close()
            self._free_scheduler()
            raise _out_of_memory()
        self._graphs[spec] = graph
        return graph

    def _build(self, spec: GraphSpec) -> Graph:
        return Graph(spec, self._base, self._kv, self._bank, split=True)

    def compute(self, graph: Graph) -> int:
        """Computes a graph; gives the ggml status."""
        status = int(self._ggml.ggml_backend_sched_graph_compute(self._scheduler, graph.graph))
        self._wait()
        return status

    def _free_scheduler(self) -> None:
        if self._scheduler is not None:
            self._ggml.ggml_backend_sched_free(self._scheduler)
            self._scheduler = None

    def close(self) -> None:
        """Frees graph and scheduler; may be called twice."""
        self.clear()
        self._free_scheduler()


def open_executor(
    base: BaseWeights, kv: KvCache, bank: AdapterBank, backends: Backends, largest: list[GraphSpec]
) -> Executor:
    """The executor of a placement, its compute buffers sized for the `largest` steps.

    Raises:
        IcarusError: there is not enough memory.
    """
    placement = base.placement
    graphs: CachedGraphs | ScheduledGraphs
    if placement.mixed or not _computes(placement.head, base, kv, bank, largest):
        graphs = ScheduledGraphs(base, kv, bank, backends.handles)
    else:
        graphs = CachedGraphs(base, kv, bank, backends.handles[0], placement.head)
    try:
        graphs.reserve(largest)
    except IcarusError:
        graphs.close()
        raise
    return graphs


def _computes(device: Device, base: BaseWeights, kv: KvCache, bank: AdapterBank, specs: list[GraphSpec]) -> bool:
    """Whether a device has every operation of these steps; what it lacks, the scheduler gives to the CPU."""
    if device.is_cpu:
        return True
    for spec in specs:
        with closing(Graph(spec, base, kv, bank)) as graph:
            if unsupported(graph, device) is not None:
                return False
    return True


def unsupported(graph: Graph, device: Device) -> str | None:
    """The first operation of a graph that a device does not compute, as ggml describes it, or None."""
    ggml = load()
    for i in range(ggml.ggml_graph_n_nodes(graph.graph)):
        node = ggml.ggml_graph_node(graph.graph, i)
        if not device.supports(node):
            return str(ggml.ggml_op_desc(node).decode())
    return None


def _out_of_memory() -> IcarusError:
    return IcarusError("there is not enough memory for a step", _HINT)
