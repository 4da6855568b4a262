"""llama.cpp as a system: a pool of contexts, each with one agent's adapter and cache at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from icarus_local.bench.machine import peak_rss_bytes
from icarus_local.bench.script import Request
from icarus_local.bench.system import N_WARM_UP, TurnTime, common_length, sampled
from icarus_local.chat.figures import counted
from icarus_local.engine.devices import check_memory, cpu
from icarus_local.engine.oracle import LlamaContext, LlamaModel

_N_CTX_STEP = 256  # cells of a context are a multiple of it


def checked_cells(n_caches: int, n_ctx: int, kv_bytes_per_token: int) -> int:
    """Cells that llama.cpp makes for caches of `n_ctx` tokens each, all together.

    Raises:
        IcarusError: they have no room in what memory is free.
    """
    cells = n_caches * -(-n_ctx // _N_CTX_STEP) * _N_CTX_STEP
    # libllama would take what it can get, and the system then ends the process, or others.
    check_memory(
        cpu().buffer_type,
        cells * kv_bytes_per_token,
        f"a pool of {counted(n_caches, 'cache')} of {n_ctx} tokens",
        "Give fewer --agents or a smaller --context, or leave this one out of --systems",
    )
    return cells


@dataclass(slots=True, eq=False)
class _Slot:
    """A context, whose adapter it has, and the ids whose K and V of that agent its cache holds."""

    context: LlamaContext
    agent: int | None = None
    tokens: list[int] = field(default_factory=list)


class LlamaPool:
    """Contexts over one model, handed to agents as they speak; a LoRA acts on every row, the ordinary way.

    An agent finds its own cache again and encodes what it has not seen. Where it has none, it takes a context that is
    free, or the one that was used least recently, whose cache is cleared. So one context is the swap of adapters, and
    as many as there are agents are separate caches. Answers that are asked for at once are given one after another.
    Weights are loaded as llama.cpp loads them where nothing else is said: all that its CPU can repack is repacked.
    """

    def __init__(
        self,
        base: Path,
        adapters: Sequence[Path],
        n_ctx: int,
        n_contexts: int,
        *,
        kv_type: str,
        n_threads: int,
        kv_bytes_per_token: int,
    ) -> None:
        """Loads base and adapters, one for each agent, and makes the contexts.

        Args:
            n_ctx: cells of each context. kv_bytes_per_token: K and V of a token over all layers.

        Raises:
            IcarusError: libllama refuses one of them, or the caches have no room in what memory is free.
        """
        checked_cells(n_contexts, n_ctx, kv_bytes_per_token)
        self._kv_bytes_per_token = kv_bytes_per_token
        self._most_used = 0
        self._marked: dict[int, list[int]] = {}
        with ExitStack() as stack:
            model = LlamaModel(base, repack=True)
            stack.callback(model.close)
            self._adapters = [model.add_adapter(path) for path in adapters]
            # The least recently used comes first.
            self._slots: list[_Slot] = []
            for _ in range(n_contexts):
                context = LlamaContext(model, n_ctx, n_threads, n_seq_max=1, kv_type=kv_type)
                stack.callback(context.close)
                self._slots.append(_Slot(context))
            self._stack = stack.pop_all()

    def begin(self) -> None:
        """Clears all contexts, and touches the weights and the shapes of a step in each."""
        for i, slot in enumerate(self._slots):
            slot.context.use(self._adapters[i % len(self._adapters)])
            slot.context.truncate(0)
            slot.context.prefill([0] * N_WARM_UP, last_only=True)
            slot.context.decode([(0, N_WARM_UP, 0)])
            slot.context.truncate(0)
            slot.agent, slot.tokens = None, []
        self._marked, self._most_used = {}, 0

    def turn(self, requests: Sequence[Request]) -> list[TurnTime]:
        """Answers one request after another."""
        asked = time.perf_counter()
        return [self._answer(request, asked) for request in requests]

    def _answer(self, request: Request, asked: float) -> TurnTime:
        start = time.perf_counter()
        slot = self._slot_of(request.agent)
        cached = common_length(slot.tokens, request.prompt)
        if cached < len(slot.tokens):
            slot.context.truncate(cached)
        sampled(slot.context.prefill(request.prompt[cached:], start=cached, last_only=True))
        first = time.perf_counter()
        for position, token in enumerate(request.answer[:-1], len(request.prompt)):
            sampled(slot.context.decode([(token, position, 0)]))
        end = time.perf_counter()
        slot.tokens = request.prompt + request.answer[:-1]
        self._most_used = max(self._most_used, sum(len(other.tokens) for other in self._slots))
        encoded = len(request.prompt) - cached
        return TurnTime(request.agent, end - asked, first - asked, end - start, encoded, len(request.answer))

    def _slot_of(self, agent: int) -> _Slot:
        """The agent's context, from now on the most recently used one."""
        slot = next((slot for slot in self._slots if slot.agent == agent), self._slots[0])
        self._slots.remove(slot)
        self._slots.append(slot)
        if slot.agent != agent:
            # K and V of an ordinary LoRA are of no use to another.
            slot.context.truncate(0)
            slot.context.use(self._adapters[agent])
            slot.agent, slot.tokens = agent, []
        return slot

    def mark(self) -> None:
        """Remembers what each agent's cache holds."""
        self._marked = {slot.agent: list(slot.tokens) for slot in self._slots if slot.agent is not None}

    def rewind(self) -> None:
        """Truncates each cache to what its agent had at the mark; an agent that had none has none again."""
        for slot in self._slots:
            before = [] if slot.agent is None else self._marked.get(slot.agent, [])
            keep = common_length(slot.tokens, before)
            if keep < len(slot.tokens):
                slot.context.truncate(keep)
                del slot.tokens[keep:]

    @property
    def kv_bytes(self) -> int:
        """Bytes of all contexts' caches."""
        return sum(slot.context.n_ctx for slot in self._slots) * self._kv_bytes_per_token

    @property
    def kv_used_bytes(self) -> int:
        """Bytes of the cells in use at the fullest moment."""
        return self._most_used * self._kv_bytes_per_token

    @property
    def rss_bytes(self) -> int | None:
        """Of this process."""
        return peak_rss_bytes()

    def close(self) -> None:
        """Frees contexts and model; may be called twice."""
        self._stack.close()
