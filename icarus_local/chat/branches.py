"""Answers of several agents at once: one batch over forks of one sequence, so that what is shared is cached once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Literal

from icarus_local.chat.conversation import Turn
from icarus_local.chat.events import CacheUsed, TextDelta
from icarus_local.chat.generation import Generation
from icarus_local.engine.engine import Engine
from icarus_local.errors import CancelledError


def shared_length(prompts: Sequence[Sequence[int]]) -> int:
    """Length of the beginning that all prompts have in common."""
    return sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, zip(*prompts, strict=False)))


def tokens_together(prompts: Sequence[Sequence[int]]) -> int:
    """Cells that all prompts take where they share their beginning."""
    shared = shared_length(prompts)
    return shared + sum(len(prompt) - shared for prompt in prompts)


class Branches:
    """One batch. The sequence it begins from stays as it is but for the shared prompt.

    Attributes:
        question: turns of the conversation before the answers.
        generations: the answers, in the order of the agents. sequences: theirs, once `run` has forked them.
    """

    def __init__(
        self,
        engine: Engine,
        trunk: int,
        generations: Sequence[Generation],
        shared: int,
        question: tuple[Turn, ...],
    ) -> None:
        """Prepares answers to prompts whose first `shared` tokens are the same.

        `trunk` holds a beginning of these: the first generation's `reused` tokens.
        """
        self._engine, self._trunk, self._shared = engine, trunk, shared
        self.question = question
        self.generations = tuple(generations)
        self.sequences: list[int] = []

    def run(self) -> Iterator[TextDelta | Generation]:
        """Text as it comes, and each generation when it has ended; all of them end in the end.

        Raises:
            IcarusError: as `Engine.forward`.
        """
        try:
            self._encode()
            live = list(zip(self.generations, self.sequences, strict=True))
            # First tokens come from the agents' own rows, whatever logits the last speaker left.
            rows = self._engine.forward(decode=[(sequence, g.speaker.adapter_id) for g, sequence in live]).decoder
            while live:
                for (generation, _), logits in zip(live, rows, strict=True):
                    yield from generation.take(logits)
                    if generation.finish:
                        yield from generation.end(generation.finish)
                        yield generation
                live = [(generation, sequence) for generation, sequence in live if not generation.finish]
                if self._engine.cells.n_free < len(live):
                    break
                step = [(sequence, [generation.tokens[-1]]) for generation, sequence in live]
                speakers = [(sequence, generation.speaker.adapter_id) for generation, sequence in live]
                rows = self._engine.forward(encode=step, decode=speakers).decoder if live else rows
        except CancelledError:
            yield from self._end("cancelled")
        yield from self._end("length")

    def _encode(self) -> None:
        engine, first = self._engine, self.generations[0]
        engine.forward(encode=[(self._trunk, first.prompt[first.reused : self._shared])])
        self.sequences = [engine.cells.fork(self._trunk) for _ in self.generations]
        rests = [generation.prompt[self._shared :] for generation in self.generations]
        engine.forward(encode=list(zip(self.sequences, rests, strict=True)))

    def _end(self, finish: Literal["cancelled", "length"]) -> Iterator[TextDelta | Generation]:
        sequences = self.sequences or [self._trunk] * len(self.generations)
        for generation, sequence in zip(self.generations, sequences, strict=True):
            if generation.finish:
                continue
            if not generation.tokens:
                # Stopped in the prompt: only whole steps of it are in the cache.
                generation.encoded = max(self._engine.cells.length(sequence) - generation.reused, 0)
            yield from generation.end(finish)
            yield generation

    def used(self) -> CacheUsed:
        """What all take together, and what they would take without sharing."""
        cells, per_token = self._engine.cells, self._engine.kv_bytes_per_token
        sequences = self.sequences or [self._trunk]
        separate = sum(cells.length(sequence) for sequence in sequences)
        return CacheUsed(cells.n_used, cells.n_used * per_token, len(sequences), separate * per_token)

    def close(self, keep: int) -> None:
        """Drops the branches' sequences but `keep`; may be called twice."""
        for sequence in self.sequences:
            if sequence != keep:
                self._engine.cells.drop(sequence)
        self.sequences = []
