"""What one step costs, as ratios to llama.cpp's: prefill, one row, encoder and decoder row together, several agents."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from icarus_local.bench.adapters import random_adapter
from icarus_local.engine.engine import Engine
from icarus_local.engine.oracle import Oracle

AGENTS = (2, 4, 8)
ROOM = 64  # cells beside the context: one token for each agent
_STEPS = 5  # steps of one kind in a row, of which each round takes the median


@dataclass(frozen=True)
class StepReport:
    """Medians at one length of context, in seconds; ratios are our time over llama.cpp's.

    Attributes:
        add_adapter_s: to make an adapter resident. prefill_s, row_s: ours and theirs.
        dual_s: an encoder and a decoder row with an adapter.
        agents_s: by number of agents that answer at once, a step in which each gets a token.
        agents_gain: by number of agents, tokens per second over those of one agent after another.
        python_share: of a dual step, the fraction that is not spent in ggml.
    """

    n_context: int
    add_adapter_s: float
    prefill_s: tuple[float, float]
    row_s: tuple[float, float]
    dual_s: float
    agents_s: dict[str, float]
    prefill_ratio: float
    row_ratio: float
    dual_ratio: float
    agents_gain: dict[str, float]
    python_share: float


@dataclass
class _Times:
    """Durations by what was done."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def take(self, what: str, work: Callable[[], object], undo: Callable[[], object], n: int) -> None:
        """Does `work` n times, undoing each, and keeps the median."""
        durations = []
        for _ in range(n):
            start = time.perf_counter()
            work()
            durations.append(time.perf_counter() - start)
            undo()
        self.seconds.setdefault(what, []).append(statistics.median(durations))

    def __getitem__(self, what: str) -> float:
        return statistics.median(self.seconds[what])


def _nothing() -> None:
    pass


class StepBench:
    """One base in an engine and in llama.cpp, with the same threads, buffers and cache; llama.cpp is on the CPU."""

    def __init__(self, engine: Engine, n_context: int, rank: int = 16) -> None:
        """Loads llama.cpp, and random adapters into the engine.

        Args:
            engine: of at least n_context + ROOM tokens; it stays the caller's.
            n_context: tokens before each measured step. rank: of the adapters.
        """
        self.n_context, self.engine = n_context, engine
        repacked, kv_type = bool(engine.base.placement.repacked), engine.kv_type
        adapters = [random_adapter(engine.base, rank, i) for i in range(max(AGENTS))]
        with ExitStack() as stack:
            self._agents = []
            start = time.perf_counter()
            for adapter in adapters:
                self._agents.append(engine.add_adapter(adapter))
                stack.callback(engine.remove_adapter, self._agents[-1])
            self._add_adapter_s = (time.perf_counter() - start) / len(adapters)
            self._oracle = Oracle(engine.base.path, engine.n_ctx, engine.n_threads, kv_type=kv_type, repack=repacked)
            stack.callback(self._oracle.close)
            self._stack = stack.pop_all()
        tokens = np.random.default_rng(0).integers(0, self.engine.base.hp.n_vocab, n_context + 1).tolist()
        self._prompt, self._next = tokens[:-1], tokens[-1]

    def run(self, repeats: int) -> StepReport:
        """Measures `repeats` alternating rounds, after one that does not count."""
        times, prefills, engine = _Times(), _Times(), self.engine
        sequence = self._prefill(prefills, repeats)
        for i in range(repeats + 1):
            if i == 1:
                times = _Times()
            self._round(times, sequence)
        prefill = (prefills["ours"], prefills["theirs"])
        row = (times["row"], times["their row"])
        agents = {str(k): times[f"{k} agents"] for k in AGENTS}
        engine.cells.drop(sequence)
        return StepReport(
            n_context=self.n_context,
            add_adapter_s=self._add_adapter_s,
            prefill_s=prefill,
            row_s=row,
            dual_s=times["dual"],
            agents_s=agents,
            prefill_ratio=prefill[0] / prefill[1],
            row_ratio=row[0] / row[1],
            dual_ratio=times["dual"] / row[1],
            agents_gain={k: int(k) * times["dual"] / seconds for k, seconds in agents.items()},
            python_share=1 - times["native"] / times["dual"],
        )

    def _prefill(self, times: _Times, repeats: int) -> int:
        engine, oracle, prompt = self.engine, self._oracle, self._prompt
        sequence = engine.cells.create()
        # Before the first that counts, both have seen all pages of the file.
        engine.forward(encode=[(sequence, prompt[:64])])
        oracle.prefill(prompt[:64], last_only=True)
        # A prefill takes seconds where a step takes milliseconds: three say as much.
        for _ in range(min(repeats, 3)):
            engine.cells.truncate(sequence, 0)
            oracle.truncate(0)
            times.take("ours", lambda: engine.forward(encode=[(sequence, prompt)]), _nothing, 1)
            times.take("theirs", lambda: oracle.prefill(prompt, last_only=True), _nothing, 1)
        return sequence

    def _round(self, times: _Times, sequence: int) -> None:
        engine, oracle, n, token = self.engine, self._oracle, self.n_context, self._next
        step, agent = [(sequence, [token])], self._agents[0]

        def undo() -> None:
            engine.cells.truncate(sequence, n)

        times.take("their row", lambda: oracle.decode([(token, n, 0)]), lambda: oracle.truncate(n), _STEPS)
        times.take("row", lambda: engine.forward(encode=step, encoder_logits=True), undo, _STEPS)
        native = []

        def dual() -> None:
            before = engine.native_s
            engine.forward(encode=step, decode=[(sequence, agent)])
            native.append(engine.native_s - before)

        times.take("dual", dual, undo, _STEPS)
        times.seconds.setdefault("native", []).append(statistics.median(native))
        for k in AGENTS:
            forks = [engine.cells.fork(sequence) for _ in range(k)]
            encode = [(fork, [token]) for fork in forks]
            decode = list(zip(forks, self._agents, strict=False))

            def undo_all(forks: list[int] = forks) -> None:
                for fork in forks:
                    engine.cells.truncate(fork, n)

            def at_once(encode: Any = encode, decode: Any = decode) -> None:
                engine.forward(encode=encode, decode=decode)

            times.take(f"{k} agents", at_once, undo_all, _STEPS)
            for fork in forks:
                engine.cells.drop(fork)

    def close(self) -> None:
        """Frees llama.cpp, and the adapters."""
        self._stack.close()

    def __enter__(self) -> StepBench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
