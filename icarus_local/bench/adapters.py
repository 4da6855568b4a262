"""Random LoRA adapters: what a step costs does not depend on what an agent learnt."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from icarus_local.engine import adapter_file as keys
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


def write_random_adapter(path: Path, adapter: Adapter, architecture: str) -> None:
    """Writes what `random_adapter` gave as one F16 file that the engine and libllama both read.

    Args:
        architecture: of the base, as its file names it: libllama loads no adapter of another.
    """
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    try:
        writer.add_string(keys.KEY_TYPE, "adapter")
        writer.add_string(keys.KEY_ADAPTER_TYPE, "lora")
        writer.add_float32(keys.KEY_ALPHA, 0.0)  # a scale of 1, to both
        writer.add_string(keys.KEY_NAME, adapter.name)
        writer.add_uint32(keys.KEY_VERSION, keys.FORMAT_VERSION)
        writer.add_string(keys.KEY_FAMILY, adapter.family_id)
        writer.add_string(keys.KEY_TRAINED, adapter.trained)
        writer.add_bool(keys.KEY_ASSUMED, adapter.assumed)
        writer.add_array(keys.KEY_MODULES, sorted({tensor.split(".")[2] for tensor in adapter.pairs}))
        for tensor, pair in adapter.pairs.items():
            writer.add_tensor(f"{tensor}.lora_a", pair.a.astype(np.float16))
            writer.add_tensor(f"{tensor}.lora_b", pair.b.astype(np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
