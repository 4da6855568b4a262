"""Proves a converted adapter on its base: every tensor landed, logits move, the cache does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from icarus_convert.against_peft import Reference, held_to, same_numbers
from icarus_convert.probe import distance, probe_engine, probe_tokens, walk
from icarus_local.engine.adapter_file import Adapter, check_fits, read_adapter
from icarus_local.engine.engine import Engine
from icarus_local.ggml.gguf import GgufFile


@dataclass(frozen=True)
class Proof:
    """One thing that was looked at: `detail` says what was seen, and `failed` that it is wrong."""

    name: str
    detail: str
    failed: bool = False


def verify(
    adapter_path: Path,
    base: Path,
    *,
    peft: Path | None = None,
    peft_adapter: str | None = None,
    hf_base: Path | None = None,
    n_threads: int | None = None,
) -> Iterator[Proof]:
    """Yields each proof as soon as it is done.

    Args:
        adapter_path: the adapter's file. base: GGUF of the base.
        peft, peft_adapter: the PEFT folder that it was made of, and which of several in it.
        hf_base: the base as a Hugging Face folder; the GGUF itself, dequantised, where None.
        n_threads: of the CPU.

    Raises:
        IcarusError: a file cannot be read, the adapter is for another base, or torch is not installed.
    """
    adapter = read_adapter(adapter_path)
    reference = Reference.ready(peft, peft_adapter, hf_base or base, base) if peft is not None else None
    tokens = probe_tokens(base)
    with probe_engine(base, n_threads) as engine:
        check_fits(adapter, engine.base.family_id, engine.base.places)
        yield _landed(adapter)
        alone = walk(engine, tokens, None)
        adapted = walk(engine, tokens, engine.add_adapter(adapter))
        yield from _by_module(engine, adapter, tokens)
        moved = distance(alone.logits, adapted.logits)
        yield Proof("logits move", f"against the base: {moved}", failed=moved.largest == 0)
        same = alone.kv == adapted.kv
        differ = "" if same else ", and differ"
        yield Proof("cache unchanged", f"{len(alone.kv)} bytes of K and V, with and without{differ}", failed=not same)
        if reference is None:
            return
        exact = walk(engine, tokens, engine.add_adapter(replace(adapter, pairs=reference.pairs)))
    yield Proof("numbers of the source", *same_numbers(adapter, reference.pairs))
    logits = reference.logits(tokens)
    for name, detail, failed in held_to(logits, alone.logits, adapted.logits, exact.logits):
        yield Proof(name, detail, failed)


def _landed(adapter: Adapter) -> Proof:
    with GgufFile(adapter.path) as file:
        n_tensors = len(file.tensors)
    counts: dict[str, int] = {}
    for tensor in adapter.pairs:
        module = tensor.split(".")[2]
        counts[module] = counts.get(module, 0) + 1
    n = 2 * sum(counts.values())
    by_place = ", ".join(f"{module} {count}" for module, count in sorted(counts.items()))
    return Proof("tensors landed", f"{n} of {n_tensors} ({by_place})", failed=n != n_tensors)


def _by_module(engine: Engine, adapter: Adapter, tokens: list[int]) -> Iterator[Proof]:
    """Each kind of module alone moves the logits, unless it holds only zeros."""
    sequence = engine.cells.create()
    engine.forward(encode=[(sequence, tokens[:-1])])
    for module in sorted({tensor.split(".")[2] for tensor in adapter.pairs}):
        pairs = {tensor: pair for tensor, pair in adapter.pairs.items() if tensor.split(".")[2] == module}
        agent = engine.add_adapter(replace(adapter, pairs=pairs))
        try:
            rows = [engine.forward(decode=[(sequence, who)]).decoder for who in (None, agent)]
        finally:
            engine.remove_adapter(agent)
        moved = float(np.abs(rows[0] - rows[1]).max())
        zeros = not any(np.any(pair.a) and np.any(pair.b) for pair in pairs.values())
        detail = "holds only zeros" if zeros else f"alone moves logits by {moved:.3g} at most"
        yield Proof(f"  {module}", f"{len(pairs)} weights, {detail}", failed=moved == 0 and not zeros)
    engine.cells.drop(sequence)
