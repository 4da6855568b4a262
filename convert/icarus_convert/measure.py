"""What a conversion costs, on a probe text: the rounding of the output type, and K and V that were left out."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from icarus_convert.mapping import map_modules
from icarus_convert.ordinary import ordinary_logits
from icarus_convert.prepare import Prepared
from icarus_convert.probe import Distance, Walk, distance, probe_engine, probe_tokens, walk
from icarus_convert.write import write_adapter
from icarus_local.engine.adapter_file import Adapter
from icarus_local.engine.engine import default_threads
from icarus_local.errors import IcarusError


def rounding(prepared: Prepared, written: Adapter, n_threads: int | None) -> Distance:
    """How far the written file's logits are from those of the same adapter in F32.

    Raises:
        IcarusError: the base cannot be loaded.
    """
    assert prepared.mapped is not None
    if prepared.base.path.is_dir():
        raise IcarusError(f"{prepared.base.path} is a folder, and the engine runs a GGUF", "Give it with --base")
    exact = replace(written, pairs=prepared.mapped.pairs)
    tokens = probe_tokens(prepared.base.path)
    with probe_engine(prepared.base.path, n_threads) as engine:
        a, b = (walk(engine, tokens, engine.add_adapter(adapter)).logits for adapter in (exact, written))
    return distance(a, b)


def cost_of_dropping(prepared: Prepared, written: Adapter, n_threads: int | None) -> tuple[Distance, Distance]:
    """How far the whole adapter, applied the ordinary way, is from what was written over a shared cache, and how far
    it is from the base alone.

    Raises:
        IcarusError: the base cannot be loaded, or libllama refuses the whole adapter.
    """
    assert prepared.source is not None
    tokens, base = probe_tokens(prepared.base.path), prepared.base
    whole = map_modules(prepared.source, base, "keep")
    with tempfile.TemporaryDirectory(prefix="icarus-convert-") as directory:
        path = Path(directory) / "whole.gguf"
        write_adapter(path, whole.pairs, base, prepared.training, name="whole")
        ordinary = ordinary_logits(base.path, path, tokens, n_threads or default_threads())
    with probe_engine(base.path, n_threads) as engine:
        ours: Walk = walk(engine, tokens, engine.add_adapter(written))
        alone: Walk = walk(engine, tokens, None)
    return distance(np.asarray(ordinary), ours.logits), distance(np.asarray(ordinary), alone.logits)
