"""Names, row order and scale come out as PEFT's: base + B @ A is the merged model, module by module."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from icarus_convert.base import read_base
from icarus_convert.mapping import permute_rows
from icarus_convert.write import convert_adapter
from icarus_local.engine.adapter_file import MODULES, Adapter
from icarus_local.ggml.gguf import GgufFile
from tests.convert.folders import HF_NAMES, lora_tensors, write_folder, write_run
from tests.tiny import Tiny, llama_cpp_logits
from tests.tiny import permute_rows as reference_permute

TARGETS = ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "patterns": {
        # Two keys that match nothing (a part of a name, a parent), one that is a suffix, one that is a regex, one that
        # names a module whole; the first match counts.
        "rank_pattern": {"proj": 9, "self_attn": 9, "q_proj": 2, r"layers\.0\.mlp\..*": 3, "mlp.up_proj": 5},
        "alpha_pattern": {
            "o_pro": 3,
            "model.layers.1.self_attn.o_proj": 1,
            "down_proj": 11,
            r".*\.1\.self_attn\.q_proj": 9,
        },
    },
    "rslora with patterns": {"use_rslora": True, "rank_pattern": {"o_proj": 7}, "alpha_pattern": {"gate_proj": 2}},
}
TOLERANCE = 1e-6  # rounding of one F32 product; a fault moves weights by 0.02 and more, see the last test


def trained(model: Any, **settings: Any) -> PeftModel:
    """A copy of `model` with a random LoRA."""
    config = LoraConfig(r=4, lora_alpha=6, target_modules=TARGETS, task_type="CAUSAL_LM", **settings)
    peft = get_peft_model(copy.deepcopy(model), config)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in peft.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    return peft.eval()


def converted(tiny: Tiny, peft: PeftModel, directory: Path, **options: Any) -> Adapter:
    peft.save_pretrained(str(directory / "peft"))
    write_run(directory / "peft", {})
    return convert_adapter(directory / "peft", tiny.path, directory / "out.gguf", **options)


def base_weight(path: Path, tensor: str) -> np.ndarray:
    with GgufFile(path) as file:
        n_in, n_out = file.tensors[tensor].shape
        return file.read_tensor(tensor).view(np.float32).reshape(n_out, n_in)


def differences(tiny: Tiny, adapter: Adapter, peft: PeftModel) -> dict[str, float]:
    """Largest |base + B @ A - merged| of every module."""
    merged = copy.deepcopy(peft).merge_and_unload().state_dict()
    n_head = tiny.model.config.num_attention_heads
    found = {}
    for tensor, pair in adapter.pairs.items():
        layer, module = tensor.split(".")[1:3]
        wanted = merged[f"model.layers.{layer}.{HF_NAMES[module]}.weight"].numpy()
        if module == "attn_q":
            wanted = reference_permute(wanted, n_head)
        got = base_weight(tiny.path, tensor) + pair.b.astype(np.float64) @ pair.a
        found[tensor] = float(np.abs(got - wanted).max())
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_base_plus_lora_is_the_merged_model(tiny: Tiny, tmp_path: Path, name: str) -> None:
    peft = trained(tiny.model, **CONFIGS[name])
    adapter = converted(tiny, peft, tmp_path)
    found = differences(tiny, adapter, peft)
    assert len(found) == len(MODULES) * tiny.model.config.num_hidden_layers
    assert max(found.values()) <= TOLERANCE, found


def test_f16_is_close_and_half_as_large(tiny: Tiny, tmp_path: Path) -> None:
    peft = trained(tiny.model)
    adapter = converted(tiny, peft, tmp_path, outtype="f16")
    assert max(differences(tiny, adapter, peft).values()) < 1e-3
    assert adapter.path.stat().st_size < adapter.n_bytes * 0.75


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_folders_are_read_exactly(tiny: Tiny, tmp_path: Path, dtype: torch.dtype) -> None:
    peft = trained(tiny.model)
    for name, parameter in peft.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(dtype)
    adapter = converted(tiny, peft, tmp_path)
    for name, parameter in peft.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
    assert max(differences(tiny, adapter, peft).values()) <= TOLERANCE


def test_llama_cpp_computes_pefts_ordinary_function_with_it(tiny: Tiny, tmp_path: Path) -> None:
    peft = trained(tiny.model, **CONFIGS["patterns"])
    adapter = converted(tiny, peft, tmp_path)
    tokens = [5, 77, 130, 200, 261, 12, 40]
    with torch.no_grad():
        wanted = peft(torch.tensor([tokens])).logits[0].numpy()
        plain = tiny.model(torch.tensor([tokens])).logits[0].numpy()
    got = llama_cpp_logits(tiny.path, tokens, adapter.path)
    assert np.abs(got - wanted).max() < 1e-3
    assert np.abs(plain - wanted).max() > 0.1
    assert np.abs(llama_cpp_logits(tiny.path, tokens) - plain).max() < 1e-3


@pytest.mark.slow
def test_llama_cpp_loads_an_adapter_for_the_real_base(smollm2: Path, tmp_path: Path) -> None:
    base = read_base(smollm2)
    folder = write_folder(tmp_path / "peft", lora_tensors(base, MODULES), run={})
    adapter = convert_adapter(folder, smollm2, tmp_path / "out.gguf", outtype="f16")
    assert len(adapter.pairs) == 30 * 5
    tokens = list(range(100, 108))
    moved = llama_cpp_logits(smollm2, tokens, adapter.path) - llama_cpp_logits(smollm2, tokens)
    assert np.abs(moved).max() > 0.1


def test_the_tolerance_would_see_every_fault(tiny: Tiny, tmp_path: Path) -> None:
    """Rows left in Hugging Face's order, rsLoRA read as LoRA, a pattern overlooked: each is far above the bound."""
    peft = trained(tiny.model, **CONFIGS["rslora with patterns"])
    adapter = converted(tiny, peft, tmp_path)
    pair = adapter.pairs["blk.0.attn_q.weight"]
    rows = permute_rows(np.array(pair.b), tiny.model.config.num_attention_heads)
    assert np.abs(rows @ pair.a - pair.b @ pair.a).max() > 0.02
    for tensor, wrong in (("blk.0.ffn_up.weight", (6 / 4) / (6 / 2)), ("blk.1.attn_output.weight", (4 / 7) ** -0.5)):
        delta = adapter.pairs[tensor].b @ adapter.pairs[tensor].a
        assert np.abs(delta - wrong * delta).max() > 0.02
