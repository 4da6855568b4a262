"""Random LoRA adapters: what a step costs does not depend on what an agent learnt."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from icarus_local.engine.adapter_file import TRAINED_UNKNOWN, Adapter, LoraPair
from icarus_local.engine.base import BaseWeights


def random_adapter(base: BaseWeights, rank: int, seed: int) -> Adapter:
    """An adapter on every weight that a LoRA may change, with values that F16 holds exactly."""
    rng = np.random.default_rng(seed)
    pairs = {}
    for tensor, place in base.places.items():
        a = (rng.standard_normal((rank, place.n_in)) / np.sqrt(place.n_in)).astype(np.float16)
        b = (rng.standard_normal((place.n_out, rank)) * 0.02).astype(np.float16)
        b[place.frozen] = 0
        pairs[tensor] = LoraPair(a.astype(np.float32), b.astype(np.float32))
    name = f"random-{seed}"
    return Adapter(
        path=Path(name),
        name=name,
        sha256=hashlib.sha256(name.encode()).hexdigest(),
        family_id=base.family_id,
        trained=TRAINED_UNKNOWN,
        assumed=True,
        template_sha256="",
        tokenizer_sha256="",
        pairs=pairs,
    )
