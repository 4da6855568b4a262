"""A short text through the engine: what an adapter does to the logits, and that it does nothing to the cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from icarus_local.engine.engine import Engine
from icarus_local.text.tokenizer import Tokenizer

Logits = npt.NDArray[np.float32]

N_TOKENS = 64
TEXT = (
    "The function below reads a file line by line and counts how often each word occurs. It is given as a first draft: "
    "names are short, errors are not handled, and nobody has tested it with an empty file. Say what you would change, "
    "then write it again.\n\ndef count(path):\n    words = {}\n    for line in open(path):\n"
    "        for word in line.split():\n            words[word] = words.get(word, 0) + 1\n    return words\n"
)


@dataclass(frozen=True)
class Distance:
    """How far two agents' logits are apart over a text.

    Attributes:
        largest: of |a - b| over all logits.
        kl: mean Kullback-Leibler divergence of b's next token from a's, in nats.
        top1: share of positions at which both find the same token likeliest.
    """

    largest: float
    kl: float
    top1: float

    def __str__(self) -> str:
        return f"largest difference {self.largest:.3g}, KL {self.kl:.3g} nats, same first choice {self.top1:.0%}"


@dataclass(frozen=True, eq=False)
class Walk:
    """A text as one agent reads it: logits [tokens, n_vocab] float32, and the bytes of K and V it left."""

    logits: Logits
    kv: bytes


def probe_tokens(base: Path, n: int = N_TOKENS) -> list[int]:
    """Ids of a built-in text in a base's vocabulary, BOS included where it has one."""
    with closing(Tokenizer(base)) as tokenizer:
        start = [tokenizer.bos] if tokenizer.adds_bos and tokenizer.bos is not None else []
        return [*start, *tokenizer.encode(TEXT)][:n]


@contextmanager
def probe_engine(base: Path, n_threads: int | None, n_tokens: int = N_TOKENS) -> Iterator[Engine]:
    """An engine on the CPU with room for the text and an exact cache."""
    with Engine(base, n_ctx=n_tokens, kv_type="f32", n_threads=n_threads, device="cpu", repack=False) as engine:
        yield engine


def walk(engine: Engine, tokens: list[int], agent: int | None) -> Walk:
    """An agent's logits after every token, each computed in one step with the token's encoding."""
    sequence = engine.cells.create()
    try:
        rows = [engine.forward(encode=[(sequence, [token])], decode=[(sequence, agent)]).decoder[0] for token in tokens]
        return Walk(np.stack(rows), engine.kv_bytes(sequence))
    finally:
        engine.cells.drop(sequence)


def distance(a: Logits, b: Logits) -> Distance:
    """How far `b` [tokens, n_vocab] is from `a`."""
    log_a, log_b = _log_softmax(a), _log_softmax(b)
    return Distance(
        largest=float(np.abs(a - b).max()),
        kl=max(0.0, float((np.exp(log_a) * (log_a - log_b)).sum(-1).mean())),
        top1=float((a.argmax(-1) == b.argmax(-1)).mean()),
    )


def _log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result
