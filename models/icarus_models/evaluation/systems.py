"""Who answers: the base, an ICaRus agent over the frozen base's cache, or an ordinary LoRA; each greedily, on GGUF."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

from icarus_local.engine.adapter_file import Adapter
from icarus_local.engine.engine import Engine, default_threads
from icarus_local.engine.oracle import Oracle
from icarus_local.text.tokenizer import Tokenizer

SystemName = Literal["base", "icarus", "lora"]
SYSTEMS: tuple[SystemName, ...] = ("base", "icarus", "lora")


class System(Protocol):
    """Answers prompts."""

    def answer(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        """The likeliest token at each place, up to an end of turn, which is left out, or `max_tokens`."""


class OverTheCache:
    """An ICaRus agent in the runtime's engine."""

    def __init__(self, engine: Engine, adapter: Adapter, tokenizer: Tokenizer) -> None:
        self._engine, self._tokenizer = engine, tokenizer
        self._adapter = engine.add_adapter(adapter)

    def answer(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        """As `System.answer`; the steps are a chat's: prefill, the agent's own row, then dual steps."""
        sequence = self._engine.cells.create()
        step = [(sequence, self._adapter)]
        said: list[int] = []
        try:
            self._engine.forward(encode=[(sequence, prompt)])
            logits = self._engine.forward(decode=step).decoder[0]
            while not self._tokenizer.is_end_of_generation(token := int(logits.argmax())):
                said.append(token)
                if len(said) == max_tokens:
                    break
                logits = self._engine.forward(encode=[(sequence, [token])], decode=step).decoder[0]
            return said
        finally:
            self._engine.cells.drop(sequence)


class InLlamaCpp:
    """llama.cpp, with a LoRA applied to the whole context, or with none."""

    def __init__(self, oracle: Oracle, adapter: Path | None, tokenizer: Tokenizer) -> None:
        self._oracle, self._tokenizer = oracle, tokenizer
        if adapter is not None:
            oracle.use(oracle.model.add_adapter(adapter))

    def answer(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        """As `System.answer`."""
        self._oracle.truncate(0)
        said: list[int] = []
        logits = self._oracle.prefill(prompt, last_only=True)[0]
        while not self._tokenizer.is_end_of_generation(token := int(logits.argmax())):
            said.append(token)
            if len(said) == max_tokens:
                break
            logits = self._oracle.decode([(token, len(prompt) + len(said) - 1, 0)])[0]
        return said


@contextmanager
def opened(
    system: SystemName, base: Path, tokenizer: Tokenizer, adapter: Adapter | Path | None, n_ctx: int
) -> Iterator[System]:
    """A system over a base, on the CPU, with weights as the file has them in both programs.

    Args:
        adapter: for icarus as the engine reads it, for lora its GGUF file, for base None.
        n_ctx: tokens of the longest prompt and answer.

    Raises:
        IcarusError: base or adapter cannot be used.
    """
    n_ctx = max(256, -(-n_ctx // 256) * 256)
    if isinstance(adapter, Adapter):
        with Engine(base, n_ctx=n_ctx, device="cpu", repack=False) as engine:
            yield OverTheCache(engine, adapter, tokenizer)
    else:
        with Oracle(base, n_ctx, default_threads(), n_seq_max=1) as oracle:
            yield InLlamaCpp(oracle, adapter, tokenizer)
