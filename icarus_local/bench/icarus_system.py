"""This engine as a system: one cache for all agents, whatever their number."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from icarus_local.bench.machine import peak_rss_bytes
from icarus_local.bench.script import Request
from icarus_local.bench.system import N_WARM_UP, TurnTime, common_length, sampled
from icarus_local.engine.adapter_file import read_adapter, read_rank
from icarus_local.engine.engine import Engine


class Icarus:
    """One sequence; answers at once are one batch over forks of it, as in the chat."""

    def __init__(
        self, base: Path, adapters: Sequence[Path], n_ctx: int, *, kv_type: str, n_threads: int, repack: bool
    ) -> None:
        """Loads base and adapters, one for each agent, on the CPU.

        Raises:
            IcarusError: one cannot be used, or memory does not suffice.
        """
        self._engine = Engine(base, n_ctx, kv_type, n_threads=n_threads, device="cpu", repack=repack)
        self._engine.reserve_adapters([read_rank(path) for path in adapters])
        self._agents = [self._engine.add_adapter(read_adapter(path)) for path in adapters]
        self._sequence = self._engine.cells.create()
        self._marked = self._most_used = 0

    def begin(self) -> None:
        """Forgets the conversation, and touches the weights and the shapes of a step."""
        engine = self._engine
        engine.cells.truncate(self._sequence, 0)
        engine.forward(encode=[(self._sequence, [0] * N_WARM_UP)])
        for agent in self._agents:
            speaker = [(self._sequence, agent)]
            engine.forward(decode=speaker)
            engine.forward(encode=[(self._sequence, [0])], decode=speaker)
        engine.cells.truncate(self._sequence, 0)
        self._marked = self._most_used = 0

    def turn(self, requests: Sequence[Request]) -> list[TurnTime]:
        """Answers one request over the sequence itself, several over forks of it."""
        start, cells = time.perf_counter(), self._engine.cells
        cached = common_length(cells.tokens(self._sequence).tolist(), requests[0].prompt)
        cells.truncate(self._sequence, cached)
        if len(requests) == 1:
            encoded, sequences = [len(requests[0].prompt) - cached], [self._sequence]
            self._engine.forward(encode=[(self._sequence, requests[0].prompt[cached:])])
        else:
            encoded, sequences = self._fork(requests, cached)
        first, ends = self._answer(sequences, requests)
        self._most_used = max(self._most_used, cells.n_used)
        if sequences != [self._sequence]:
            # The first answer's branch goes on: its tokens stand where the conversation will have them.
            for sequence in (self._sequence, *sequences[1:]):
                cells.drop(sequence)
            self._sequence = sequences[0]
        share = (max(ends) - start) / len(requests)
        return [
            TurnTime(request.agent, end - start, first - start, share, n, len(request.answer))
            for request, end, n in zip(requests, ends, encoded, strict=True)
        ]

    def _fork(self, requests: Sequence[Request], cached: int) -> tuple[list[int], list[int]]:
        """Encodes the prompts, what they share once; gives the tokens that were encoded for each, and the forks."""
        engine, prompts = self._engine, [request.prompt for request in requests]
        shared = min(common_length(prompts[0], prompt) for prompt in prompts[1:])
        engine.forward(encode=[(self._sequence, prompts[0][cached:shared])])
        forks = [engine.cells.fork(self._sequence) for _ in requests]
        engine.forward(encode=[(fork, prompt[shared:]) for fork, prompt in zip(forks, prompts, strict=True)])
        return [len(prompts[0]) - cached, *[len(prompt) - shared for prompt in prompts[1:]]], forks

    def _answer(self, sequences: Sequence[int], requests: Sequence[Request]) -> tuple[float, list[float]]:
        """Says the answers, a token of each in a step; gives when they had their first, and when each had its last."""
        answers = [
            (sequence, self._agents[request.agent], request.answer)
            for sequence, request in zip(sequences, requests, strict=True)
        ]
        self._predict([], [(sequence, agent) for sequence, agent, _ in answers])
        first = time.perf_counter()
        ends = [first] * len(answers)
        for i in range(1, max(len(answer) for _, _, answer in answers)):
            live = [n for n, (_, _, answer) in enumerate(answers) if len(answer) > i]
            said = [(answers[n][0], [answers[n][2][i - 1]]) for n in live]
            self._predict(said, [answers[n][:2] for n in live])
            for n in live:
                ends[n] = time.perf_counter()
        return first, ends

    def _predict(self, encode: list[tuple[int, list[int]]], decode: list[tuple[int, int]]) -> None:
        for logits in self._engine.forward(encode=encode, decode=decode).decoder:
            sampled(logits)

    def mark(self) -> None:
        """Remembers the length of the sequence."""
        self._marked = self._engine.cells.length(self._sequence)

    def rewind(self) -> None:
        """Truncates the sequence to the mark."""
        self._engine.cells.truncate(self._sequence, self._marked)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the one cache."""
        return self._engine.n_ctx * self._engine.kv_bytes_per_token

    @property
    def kv_used_bytes(self) -> int:
        """Bytes of the cells in use at the fullest moment."""
        return self._most_used * self._engine.kv_bytes_per_token

    @property
    def rss_bytes(self) -> int | None:
        """Of this process."""
        return peak_rss_bytes()

    def close(self) -> None:
        """Frees the engine; may be called twice."""
        self._engine.close()
