"""The adapter bank: LoRA matrices of the resident agents, stacked so that every row of a step picks its own."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from icarus_local.engine.adapter_file import Adapter, LoraPair, check_fits, read_adapter
from icarus_local.engine.base import BaseWeights
from icarus_local.engine.tensors import TensorGroup, TensorSpec
from icarus_local.errors import AdapterError, RequestError
from icarus_local.ggml.library import TYPE_F32

ZERO_SLOT = 0  # slot 0 of every stack holds zeros: rows without an adapter in it
_RANK_STEP = 16
_FIRST_CAPACITY = 2  # the zeros, and one adapter

# Modules that read the same states: their A matrices are one product.
INPUT_GROUPS = (("attn_q",), ("attn_output",), ("ffn_gate", "ffn_up"), ("ffn_down",))


@dataclass(frozen=True, slots=True)
class LoraUse:
    """How a step uses the stack of one rank.

    Attributes:
        rank: of the stack.
        runs: (slot, first decoder row, rows) of decoder rows that follow each other and share an adapter.
    """

    rank: int
    runs: tuple[tuple[int, int, int], ...]

    def slots(self, n_rows: int) -> npt.NDArray[np.int32]:
        """The slot of each decoder row in this stack, [n_rows] int32."""
        slots = np.full(n_rows, ZERO_SLOT, np.int32)
        for slot, row, n in self.runs:
            slots[row : row + n] = slot
        return slots


@dataclass(slots=True)
class Stack:
    """Adapters of one padded rank, in F32. For each layer and input group of m modules, in ggml's order: `a` is
    [n_in, m * rank, slots]; `b` is [rank, n_out, m, slots], or on the CPU, which sums columns far faster than it takes
    dot products of length `rank`, [n_out, rank, m, slots].

    An adapter's rank is padded with zeros to the stack's. The padding depends on its own rank alone, never on what else
    is resident, so no adapter changes another's rounding.
    """

    rank: int
    tensors: TensorGroup
    capacity: int
    used: set[int] = field(default_factory=set)

    def a(self, layer: int, group: tuple[str, ...]) -> int:
        """Address of the A matrices."""
        return self.tensors[f"a.{layer}.{group[0]}"]

    def b(self, layer: int, group: tuple[str, ...]) -> int:
        """Address of the B matrices."""
        return self.tensors[f"b.{layer}.{group[0]}"]


@dataclass(slots=True)
class _Entry:
    """An adapter that was added; `slot` is None while it is not resident."""

    path: Path
    sha256: str
    rank: int
    slot: int | None = None
    last_use: int = 0


class AdapterBank:
    """Added adapters by id (never used twice), of which at most `max_resident` are in memory at a time.

    Attributes:
        generation: changes whenever tensors moved, so that graphs over the old ones must go.
    """

    def __init__(self, base: BaseWeights, max_resident: int | None = None) -> None:
        if max_resident is not None and max_resident < 1:
            raise RequestError(f"at most {max_resident} resident adapters: at least one must be possible")
        self._base, self._max = base, max_resident
        self._sizes = {
            part.name: (place.n_in, part.stop - part.start) for place in base.places.values() for part in place.parts
        }
        self._stacks: dict[int, Stack] = {}
        self._entries: dict[int, _Entry] = {}
        self._ids, self._clock = itertools.count(), itertools.count(1)
        self.generation = 0

    def groups(self, layer: int) -> list[tuple[str, ...]]:
        """The input groups that a LoRA may stand on in a layer: experts are frozen."""
        return [group for group in INPUT_GROUPS if f"blk.{layer}.{group[0]}.weight" in self._sizes]

    def sizes(self, layer: int, group: tuple[str, ...]) -> tuple[int, int]:
        """(n_in, n_out) of each module of an input group."""
        return self._sizes[f"blk.{layer}.{group[0]}.weight"]

    def add(self, adapter: Adapter) -> int:
        """Makes an adapter resident and returns its id.

        Raises:
            AdapterError: it is for another base, or one of its tensors has no place. IcarusError: no memory for it.
        """
        check_fits(adapter, self._base.family_id, self._base.places)
        entry = _Entry(adapter.path, adapter.sha256, _padded(adapter.rank))
        self._make_resident(entry, adapter, keep=())
        adapter_id = next(self._ids)
        self._entries[adapter_id] = entry
        return adapter_id

    def reserve(self, ranks: Sequence[int]) -> None:
        """Makes room beside what is resident, so that adding adapters of these ranks moves and copies nothing.

        There is never more room than for as many as may be resident; ranks that `add` refuses get none.

        Raises:
            IcarusError: no memory for them.
        """
        most = max(min(sizes) for sizes in self._sizes.values())
        for rank, n in Counter(_padded(rank) for rank in ranks[: self._max] if rank <= most).items():
            stack = self._stacks.get(rank)
            if stack is None:
                self._stacks[rank] = Stack(rank, self._allocate(rank, n + 1), n + 1)
            else:
                self._enlarge(stack, len(stack.used) + n + 1)

    def use(self, adapter_ids: Sequence[int | None]) -> tuple[LoraUse, ...]:
        """Makes the adapters of a step resident and says which stacks it reads.

        Raises:
            AdapterError: an adapter that must be read again has changed on disk. IcarusError: no memory for it.
        """
        entries = {i: self._entries[i] for i in adapter_ids if i is not None}
        for entry in entries.values():
            if entry.slot is None:
                self._make_resident(entry, _read_again(entry), keep=entries.values())
            entry.last_use = next(self._clock)
        runs: dict[int, list[tuple[int, int, int]]] = {}
        row = 0
        for adapter_id, rows in itertools.groupby(adapter_ids):
            n = len(list(rows))
            if adapter_id is not None:
                entry = entries[adapter_id]
                assert entry.slot is not None
                runs.setdefault(entry.rank, []).append((entry.slot, row, n))
            row += n
        return tuple(LoraUse(rank, tuple(runs[rank])) for rank in sorted(runs))

    def _make_resident(self, entry: _Entry, adapter: Adapter, keep: Collection[_Entry]) -> None:
        resident = [found for found in self._entries.values() if found.slot is not None]
        if self._max is not None and len(resident) >= self._max:
            # `check` saw to it that a step never needs more than there may be.
            self._evict(
                min((found for found in resident if found not in keep), key=lambda found: found.last_use), entry.rank
            )
        stack = self._stack_with_room(entry.rank)
        slot = min(set(range(1, stack.capacity)) - stack.used)
        self._write(stack, slot, adapter)
        stack.used.add(slot)
        entry.slot, entry.last_use = slot, next(self._clock)

    def _evict(self, entry: _Entry, next_rank: int = 0) -> None:
        """Frees an adapter's place, and its stack where no other is in it and none of `next_rank` is about to be."""
        assert entry.slot is not None
        stack = self._stacks[entry.rank]
        stack.used.discard(entry.slot)
        entry.slot = None
        if not stack.used and entry.rank != next_rank:
            self._stacks.pop(entry.rank).tensors.close()
            self.generation += 1

    def _stack_with_room(self, rank: int) -> Stack:
        stack = self._stacks.get(rank)
        if stack is None:
            stack = Stack(rank, self._allocate(rank, _FIRST_CAPACITY), _FIRST_CAPACITY)
            self._stacks[rank] = stack
        elif len(stack.used) + 1 == stack.capacity:
            # By half, and by one at least: an adapter is tens of megabytes.
            self._enlarge(stack, max(stack.capacity + 1, 3 * stack.capacity // 2))
        return stack

    @property
    def has_columns(self) -> bool:
        """Whether any layer's B matrices lie as columns."""
        return any(self.sums_columns(layer) for layer in range(self._base.hp.n_layer))

    def sums_columns(self, layer: int) -> bool:
        """Whether a layer's B matrices lie as columns (see `Stack`)."""
        return self._base.placement.layers[layer].is_cpu

    def _allocate(self, rank: int, capacity: int) -> TensorGroup:
        specs = {}
        for layer, device in enumerate(self._base.placement.layers):
            for group in self.groups(layer):
                n_in, n_out = self.sizes(layer, group)
                m, memory = len(group), device.buffer_type
                b = (n_out, rank) if self.sums_columns(layer) else (rank, n_out)
                specs[f"a.{layer}.{group[0]}"] = TensorSpec(TYPE_F32, (n_in, m * rank, capacity), memory)
                specs[f"b.{layer}.{group[0]}"] = TensorSpec(TYPE_F32, (*b, m, capacity), memory)
        what = f"room for {capacity - 1} {'adapter' if capacity == _FIRST_CAPACITY else 'adapters'} of rank {rank}"
        return TensorGroup(specs, what, "Load fewer agents, or adapters of a smaller rank")

    def _enlarge(self, stack: Stack, capacity: int) -> None:
        """Moves a stack to where it has this capacity, or as much as may be resident; the old one lives meanwhile."""
        if self._max is not None:
            capacity = min(capacity, self._max + 1)
        if capacity <= stack.capacity:
            return
        larger = self._allocate(stack.rank, capacity)
        for name in stack.tensors:
            larger.write(name, stack.tensors.read(name))
        stack.tensors.close()
        stack.tensors, stack.capacity = larger, capacity
        self.generation += 1

    def _write(self, stack: Stack, slot: int, adapter: Adapter) -> None:
        pairs, rank = self._pairs_by_weight(adapter), stack.rank
        for layer in range(self._base.hp.n_layer):
            for group in self.groups(layer):
                n_in, n_out = self.sizes(layer, group)
                a = np.zeros((len(group), rank, n_in), np.float32)
                b = np.zeros((len(group), n_out, rank), np.float32)
                for i, module in enumerate(group):
                    pair = pairs.get(f"blk.{layer}.{module}.weight")
                    if pair is not None:
                        a[i, : pair.rank] = pair.a
                        b[i, :, : pair.rank] = pair.b
                if self.sums_columns(layer):
                    b = np.ascontiguousarray(b.swapaxes(1, 2))
                stack.tensors.write(f"a.{layer}.{group[0]}", a, slot * a.nbytes)
                stack.tensors.write(f"b.{layer}.{group[0]}", b, slot * b.nbytes)

    def _pairs_by_weight(self, adapter: Adapter) -> dict[str, LoraPair]:
        """The pairs by the graph's weights: of a fused tensor, each weight has its rows of B and the whole A."""
        return {
            part.name: LoraPair(pair.a, pair.b[part.start : part.stop])
            for tensor, pair in adapter.pairs.items()
            for part in self._base.places[tensor].parts
        }

    def remove(self, adapter_id: int) -> None:
        """Forgets an adapter and frees its place."""
        self.check([adapter_id])
        entry = self._entries.pop(adapter_id)
        if entry.slot is not None:
            self._evict(entry)

    def check(self, adapter_ids: Iterable[int | None]) -> None:
        """Raises RequestError unless all adapters were added and can be resident together."""
        wanted = {i for i in adapter_ids if i is not None}
        for i in wanted:
            if i not in self._entries:
                raise RequestError(f"there is no adapter {i} (it was never added, or was removed)")
        if self._max is not None and len(wanted) > self._max:
            raise RequestError(
                f"{len(wanted)} agents in one step, and at most {self._max} adapters may be in memory",
                "Ask fewer agents at once, or give a larger --max-adapters",
            )

    def stack(self, rank: int) -> Stack:
        """The stack of a rank."""
        return self._stacks[rank]

    def is_resident(self, adapter_id: int) -> bool:
        """Whether an adapter is in memory; RequestError where it was never added."""
        self.check([adapter_id])
        return self._entries[adapter_id].slot is not None

    def bytes_of(self, adapter_id: int) -> int:
        """Bytes that an adapter takes in memory while it is resident; RequestError where it was never added."""
        self.check([adapter_id])
        rank = self._entries[adapter_id].rank
        groups = [(layer, group) for layer in range(self._base.hp.n_layer) for group in self.groups(layer)]
        values = sum(len(group) * rank * sum(self.sizes(layer, group)) for layer, group in groups)
        return 4 * values  # F32

    @property
    def n_added(self) -> int:
        """Adapters that were added and not removed, in memory or not."""
        return len(self._entries)

    @property
    def n_resident(self) -> int:
        """Adapters in memory."""
        return sum(entry.slot is not None for entry in self._entries.values())

    @property
    def n_bytes(self) -> int:
        """Bytes that all stacks take."""
        return sum(stack.tensors.n_bytes for stack in self._stacks.values())

    def close(self) -> None:
        """Frees all; may be called twice."""
        for stack in self._stacks.values():
            stack.tensors.close()
        self._stacks.clear()
        self._entries.clear()


def _padded(rank: int) -> int:
    return -(-rank // _RANK_STEP) * _RANK_STEP


def _read_again(entry: _Entry) -> Adapter:
    """An evicted adapter from its file, which must be what it was."""
    adapter = read_adapter(entry.path)
    if adapter.sha256 != entry.sha256:
        raise AdapterError(
            f"{entry.path} has changed since it was loaded", "Load it again as a new agent, or put the old file back"
        )
    return adapter
