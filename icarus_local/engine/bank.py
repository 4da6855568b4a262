"""The adapter bank: LoRA matrices of the resident agents, stacked so that every row of a step picks its own."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from icarus_local.engine.adapter_file import Adapter, LoraPair, check_fits, read_adapter
from icarus_local.engine.base import BaseWeights
from icarus_local.engine.tensors import TensorGroup, TensorSpec
from icarus_local.errors import AdapterError, RequestError
from icarus_local.ggml.library import TYPE_F16, TYPE_F32

ZERO_SLOT = 0  # slot 0 of every stack holds zeros: rows without an adapter there
_RANK_STEP = 16
_FIRST_CAPACITY = 2  # the zeros, and one adapter

# Modules that read the same states: their A matrices are one product.
INPUT_GROUPS = (("attn_q",), ("attn_output",), ("ffn_gate", "ffn_up"), ("ffn_down",))


@dataclass(frozen=True, slots=True, order=True)
class StackKey:
    """What adapters must have in common to share a stack: padded rank, and the type that holds their values exactly."""

    rank: int
    kind: int


@dataclass(frozen=True, slots=True, order=True)
class LoraUse:
    """A stack that a step reads: one slot of it for all decoder rows, or (None) the slot of each row as an input."""

    key: StackKey
    slot: int | None


@dataclass(slots=True)
class Stack:
    """Adapters of one key. For each layer and input group of m modules, in ggml's order: `a` is [n_in, m * rank, slots]
    and `b` [rank, n_out, m, slots].

    An adapter's rank is padded with zeros to the stack's. The padding depends on its own rank alone, never on what else
    is resident, so no adapter changes another's rounding.
    """

    key: StackKey
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
    key: StackKey
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
        self._stacks: dict[StackKey, Stack] = {}
        self._entries: dict[int, _Entry] = {}
        self._ids, self._clock = itertools.count(), itertools.count(1)
        self.generation = 0

    def has(self, layer: int, group: tuple[str, ...]) -> bool:
        """Whether a LoRA may stand on these modules of a layer: experts are frozen."""
        return f"blk.{layer}.{group[0]}.weight" in self._sizes

    def sizes(self, layer: int, group: tuple[str, ...]) -> tuple[int, int]:
        """(n_in, n_out) of each module of an input group."""
        return self._sizes[f"blk.{layer}.{group[0]}.weight"]

    def add(self, adapter: Adapter) -> int:
        """Makes an adapter resident and returns its id.

        Raises:
            AdapterError: it is for another base, or one of its tensors has no place. IcarusError: no memory for it.
        """
        check_fits(adapter, self._base.family_id, self._base.places)
        rank = -(-adapter.rank // _RANK_STEP) * _RANK_STEP
        entry = _Entry(adapter.path, adapter.sha256, StackKey(rank, _kind(adapter)))
        self._make_resident(entry, adapter, keep=())
        adapter_id = next(self._ids)
        self._entries[adapter_id] = entry
        return adapter_id

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
        if len(entries) == 1 and None not in adapter_ids:
            (entry,) = entries.values()
            return (LoraUse(entry.key, entry.slot),)
        return tuple(LoraUse(key, None) for key in sorted({entry.key for entry in entries.values()}))

    def _make_resident(self, entry: _Entry, adapter: Adapter, keep: Collection[_Entry]) -> None:
        resident = [found for found in self._entries.values() if found.slot is not None]
        if self._max is not None and len(resident) >= self._max:
            # `check` saw to it that a step never needs more than there may be.
            self._evict(min((found for found in resident if found not in keep), key=lambda found: found.last_use))
        stack = self._stack_with_room(entry.key)
        slot = min(set(range(1, stack.capacity)) - stack.used)
        self._write(stack, slot, adapter)
        stack.used.add(slot)
        entry.slot, entry.last_use = slot, next(self._clock)

    def _evict(self, entry: _Entry) -> None:
        assert entry.slot is not None
        stack = self._stacks[entry.key]
        stack.used.discard(entry.slot)
        entry.slot = None
        if not stack.used and self._max is None:
            self._stacks.pop(entry.key).tensors.close()
            self.generation += 1

    def _stack_with_room(self, key: StackKey) -> Stack:
        stack = self._stacks.get(key)
        if stack is None:
            stack = Stack(key, self._allocate(key, _FIRST_CAPACITY), _FIRST_CAPACITY)
            self._stacks[key] = stack
        elif len(stack.used) + 1 == stack.capacity:
            self._grow(stack)
        return stack

    def _allocate(self, key: StackKey, capacity: int) -> TensorGroup:
        specs = {}
        for layer, device in enumerate(self._base.placement.layers):
            for group in INPUT_GROUPS:
                if self.has(layer, group):
                    n_in, n_out = self.sizes(layer, group)
                    m, memory = len(group), device.buffer_type
                    specs[f"a.{layer}.{group[0]}"] = TensorSpec(key.kind, (n_in, m * key.rank, capacity), memory)
                    specs[f"b.{layer}.{group[0]}"] = TensorSpec(key.kind, (key.rank, n_out, m, capacity), memory)
        what = f"room for {capacity - 1} {'adapter' if capacity == _FIRST_CAPACITY else 'adapters'} of rank {key.rank}"
        return TensorGroup(specs, what, "Load fewer agents, or adapters of a smaller rank")

    def _grow(self, stack: Stack) -> None:
        capacity = 2 * stack.capacity if self._max is None else min(2 * stack.capacity, self._max + 1)
        larger = self._allocate(stack.key, capacity)
        for name in stack.tensors:
            larger.write(name, stack.tensors.read(name))
        stack.tensors.close()
        stack.tensors, stack.capacity = larger, capacity
        self.generation += 1

    def _write(self, stack: Stack, slot: int, adapter: Adapter) -> None:
        pairs = self._pairs_by_weight(adapter)
        rank, dtype = stack.key.rank, np.float16 if stack.key.kind == TYPE_F16 else np.float32
        for layer in range(self._base.hp.n_layer):
            for group in INPUT_GROUPS:
                if not self.has(layer, group):
                    continue
                n_in, n_out = self.sizes(layer, group)
                a = np.zeros((len(group), rank, n_in), dtype)
                b = np.zeros((len(group), n_out, rank), dtype)
                for i, module in enumerate(group):
                    pair = pairs.get(f"blk.{layer}.{module}.weight")
                    if pair is not None:
                        a[i, : pair.rank] = pair.a
                        b[i, :, : pair.rank] = pair.b
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

    def slots_of(self, adapter_ids: Sequence[int | None], key: StackKey) -> npt.NDArray[np.int32]:
        """For each row its slot in a stack, or the slot of zeros; [rows] int32."""
        slots = np.full(len(adapter_ids), ZERO_SLOT, np.int32)
        for row, adapter_id in enumerate(adapter_ids):
            entry = None if adapter_id is None else self._entries[adapter_id]
            if entry is not None and entry.key == key and entry.slot is not None:
                slots[row] = entry.slot
        return slots

    def stack(self, key: StackKey) -> Stack:
        """The stack of a key."""
        return self._stacks[key]

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


def _kind(adapter: Adapter) -> int:
    """F16 where that holds every value exactly, as for a file in F16 whose scale is a power of two; else F32."""
    for pair in adapter.pairs.values():
        for values in (pair.a, pair.b):
            with np.errstate(over="ignore"):
                half = values.astype(np.float16)
            if not np.array_equal(half, values):
                return TYPE_F32
    return TYPE_F16


def _read_again(entry: _Entry) -> Adapter:
    """An evicted adapter from its file, which must be what it was."""
    adapter = read_adapter(entry.path)
    if adapter.sha256 != entry.sha256:
        raise AdapterError(
            f"{entry.path} has changed since it was loaded", "Load it again as a new agent, or put the old file back"
        )
    return adapter
