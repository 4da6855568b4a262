"""The adapter bank: LoRA matrices of all resident agents, stacked so that every row of a step picks its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from icarus_local.engine.adapter_file import Adapter, LoraPair, check_fits
from icarus_local.engine.base import host_memory
from icarus_local.engine.tensors import TensorGroup
from icarus_local.errors import IcarusError, RequestError
from icarus_local.ggml.library import TYPE_F32

ZERO_SLOT = 0  # slot 0 of every stack holds zeros: rows without an adapter there
_RANK_STEP = 16
_FIRST_CAPACITY = 2  # the zeros, and one adapter


@dataclass(slots=True)
class Stack:
    """Adapters of like rank: per weight, A is [n_in, rank, slots] and B is [rank, n_out, slots] in ggml's order.

    An adapter's rank is padded with zeros to the stack's. The padding depends on its own rank alone, never on what else
    is resident, so no adapter changes another's rounding.
    """

    rank: int
    group: TensorGroup
    capacity: int
    used: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Resident:
    rank: int
    slot: int


class AdapterBank:
    """Resident adapters by id. Ids are never used twice.

    Attributes:
        generation: changes whenever tensors moved, so that graphs over the old ones must go.
    """

    def __init__(self, base_family_id: str, shapes: Mapping[str, tuple[int, int]], buffer_type: int) -> None:
        self._family_id, self._shapes, self._buffer_type = base_family_id, shapes, buffer_type
        self._stacks: dict[int, Stack] = {}
        self._residents: dict[int, _Resident] = {}
        self._next_id = 0
        self.generation = 0

    def add(self, adapter: Adapter) -> int:
        """Makes an adapter resident and returns its id.

        Raises:
            AdapterError: it is for another base, or one of its tensors has no place. IcarusError: no memory for it.
        """
        check_fits(adapter, self._family_id, self._shapes)
        rank = -(-adapter.rank // _RANK_STEP) * _RANK_STEP
        stack = self._stack_with_room(rank)
        slot = min(set(range(1, stack.capacity)) - stack.used)
        for name in self._shapes:
            self._write(stack, slot, name, adapter.pairs.get(name))
        stack.used.add(slot)
        self._residents[self._next_id] = _Resident(rank, slot)
        self._next_id += 1
        return self._next_id - 1

    def _stack_with_room(self, rank: int) -> Stack:
        stack = self._stacks.get(rank)
        if stack is None:
            stack = Stack(rank, self._allocate(rank, _FIRST_CAPACITY), _FIRST_CAPACITY)
            self._stacks[rank] = stack
        elif len(stack.used) + 1 == stack.capacity:
            self._grow(stack)
        return stack

    def _allocate(self, rank: int, capacity: int) -> TensorGroup:
        specs: dict[str, tuple[int, tuple[int, ...]]] = {}
        for name, (n_in, n_out) in self._shapes.items():
            specs[f"{name}.a"] = (TYPE_F32, (n_in, rank, capacity))
            specs[f"{name}.b"] = (TYPE_F32, (rank, n_out, capacity))
        needed, available = sum(4 * math.prod(shape) for _, shape in specs.values()), host_memory()
        if needed > available:
            raise IcarusError(
                f"{capacity - 1} adapters of rank {rank} take {needed >> 20} MiB and {available >> 20} MiB are free",
                "Load fewer agents, or adapters of a smaller rank",
            )
        return TensorGroup(specs, self._buffer_type)

    def _grow(self, stack: Stack) -> None:
        larger = self._allocate(stack.rank, 2 * stack.capacity)
        for name in self._shapes:
            for part in (f"{name}.a", f"{name}.b"):
                larger.write(part, stack.group.read(part), 0)
        stack.group.close()
        stack.group, stack.capacity = larger, 2 * stack.capacity
        self.generation += 1

    def _write(self, stack: Stack, slot: int, name: str, pair: LoraPair | None) -> None:
        n_in, n_out = self._shapes[name]
        a = np.zeros((stack.rank, n_in), np.float32)
        b = np.zeros((n_out, stack.rank), np.float32)
        if pair is not None:
            a[: pair.a.shape[0]] = pair.a
            b[:, : pair.b.shape[1]] = pair.b
        stack.group.write(f"{name}.a", a, slot * a.nbytes)
        stack.group.write(f"{name}.b", b, slot * b.nbytes)

    def remove(self, adapter_id: int) -> None:
        """Frees an adapter's place."""
        resident = self._resident(adapter_id)
        stack = self._stacks[resident.rank]
        stack.used.discard(resident.slot)
        del self._residents[adapter_id]
        if not stack.used:
            self._stacks.pop(resident.rank).group.close()
            self.generation += 1

    def _resident(self, adapter_id: int) -> _Resident:
        found = self._residents.get(adapter_id)
        if found is None:
            raise RequestError(f"there is no adapter {adapter_id} (it was never added, or was removed)")
        return found

    def check(self, adapter_id: int) -> None:
        """Raises RequestError unless the adapter is resident."""
        self._resident(adapter_id)

    def ranks_of(self, adapter_ids: list[int | None]) -> tuple[int, ...]:
        """The stacks that a step over these adapters reads, by rank."""
        return tuple(sorted({self._resident(i).rank for i in adapter_ids if i is not None}))

    def slots_of(self, adapter_ids: list[int | None], rank: int) -> npt.NDArray[np.int32]:
        """Each row's slot in one stack, [rows] int32; ZERO_SLOT where its adapter is none or of another rank."""
        residents = [None if i is None else self._resident(i) for i in adapter_ids]
        return np.array([r.slot if r is not None and r.rank == rank else ZERO_SLOT for r in residents], np.int32)

    def stack(self, rank: int) -> Stack:
        """The stack of one rank."""
        return self._stacks[rank]

    @property
    def n_bytes(self) -> int:
        """Bytes that all stacks take."""
        return sum(stack.group.n_bytes for stack in self._stacks.values())

    def close(self) -> None:
        """Frees all; may be called twice."""
        for stack in self._stacks.values():
            stack.group.close()
        self._stacks.clear()
        self._residents.clear()
