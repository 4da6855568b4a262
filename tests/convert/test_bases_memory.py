"""`icarus-convert base` holds one tensor in memory, not the model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from icarus_convert.hf_config import read_config
from icarus_convert.hf_folder import HfFolder
from icarus_convert.hf_tensors import expected_tensors
from tests.convert.hf_models import edit, save

MIB = 1 << 20
N_LAYER, N_EMBD, N_FF = 8, 1024, 8192  # the largest tensor has 16 MiB in BF16, the model 460


def large_model(folder: Path, small: Path) -> int:
    """Random shards of a Llama in BF16, one a layer; gives the bytes of its weights."""
    folder.mkdir()
    for file in small.glob("*.json"):
        shutil.copy(file, folder)
    widths = {"hidden_size": N_EMBD, "intermediate_size": N_FF, "num_hidden_layers": N_LAYER}
    edit(folder / "config.json", num_attention_heads=16, num_key_value_heads=8, head_dim=64, **widths)
    config = read_config(HfFolder(folder, "", json.loads((folder / "config.json").read_text()), {}, {}))
    shards: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in [*expected_tensors(config), ("lm_head.weight", (config.n_vocab, N_EMBD))]:
        parts = name.split(".")
        shards.setdefault(f"model-{parts[2] if 'layers' in parts else 'rest'}.safetensors", {})[name] = shape
    block = (np.random.default_rng(0).standard_normal(N_FF * N_EMBD, np.float32).view(np.uint32) >> 16).astype("<u2")
    total = 0
    for shard, tensors in shards.items():
        header, position = {}, 0
        for name, shape in tensors.items():
            end = position + 2 * int(np.prod(shape))
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, end]}
            position = end
        raw = json.dumps(header).encode()
        with (folder / shard).open("wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            for shape in tensors.values():
                file.write(block[: int(np.prod(shape))].tobytes())
        total += position
    places = {name: shard for shard, tensors in shards.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return total


@pytest.mark.slow
@pytest.mark.parametrize(("outtype", "copies"), [("auto", 1.5), ("f16", 3), ("f32", 4)])
def test_memory_does_not_grow_with_the_model(outtype: str, copies: float, tmp_path: Path) -> None:
    small = save(tmp_path / "small")
    total = large_model(tmp_path / "large", small)
    arguments = [str(small), str(tmp_path / "large"), str(tmp_path / "out.gguf"), outtype]
    command = [sys.executable, "-m", "tests.convert.measure_base", *arguments]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    traced, growth = map(int, printed.split())
    largest = 2 * N_EMBD * N_FF
    print(
        f"{outtype}: {total / MIB:.0f} MiB of weights, the largest {largest / MIB:.0f}; "
        f"arrays of {traced / MIB:.0f} MiB at most, the process grew by {growth / MIB:.0f}"
    )
    assert total > 25 * largest
    # Another type lies beside the bits while it is made; F32 is twice their size.
    assert largest <= traced < copies * largest
    assert growth < copies * largest
