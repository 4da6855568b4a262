"""The fixture itself: libllama and transformers compute the same from every relative, and would show a wrong file."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.agents import add_agents
from tests.gguf_files import rewritten
from tests.relatives import VARIANTS, relative, relative_model, write_gguf
from tests.tiny import Tiny, llama_cpp_logits, n_vocab

# Three windows long, and beyond the original context of LongRoPE. Of this seed no expert is chosen by less than 0.006.
TOKENS = np.random.default_rng(8).integers(0, n_vocab(), 100).tolist()
EXACT = 1e-3  # 9e-5 is the most that is seen
# ggml's CPU takes GELU from a table of F16: 0.003 on 4 or 7 layers, 0.01 on 46 or 62.
GELU_TABLE = 0.03
FAULT = 0.1

# Key by key, what the two sides would differ by if a file were read otherwise.
READ: list[tuple[str, str, Any]] = [
    ("llama-linear", "llama.rope.scaling.factor", 3.9),
    ("llama-yarn", "llama.rope.scaling.type", "linear"),
    ("llama-yarn", "llama.rope.scaling.original_context_length", None),
    ("llama-yarn", "llama.rope.scaling.attn_factor", 1.1),
    ("qwen2-yarn", "qwen2.rope.freq_base", 500000.0),
    ("qwen2-yarn", "qwen2.rope.scaling.original_context_length", None),
    ("gemma2", "gemma2.attention.sliding_window", 33),
    ("gemma2", "gemma2.attn_logit_softcapping", 50.0),
    ("gemma2", "gemma2.final_logit_softcapping", 30.0),
    ("gemma3", "gemma3.attention.sliding_window", 33),
    ("gemma3", "gemma3.rope.freq_base", 10000.0),
    ("gemma3", "gemma3.rope.freq_base_swa", 11000.0),
    ("gemma3", "gemma3.rope.scaling.factor", 6.0),
    ("phi3-partial", "phi3.rope.dimension_count", 16),
    ("phi3-longrope", "phi3.rope.scaling.attn_factor", None),
    ("phi3-longrope", "phi3.rope.scaling.original_context_length", 512),
    ("phi3-longrope-short", "phi3.rope.scaling.original_context_length", 500),
    ("granite", "granite.attention.scale", 0.16),
    ("granite", "granite.embedding_scale", 1.0),
    ("granite", "granite.residual_scale", 1.0),
    ("granite", "granite.logit_scale", 1.0),
    ("olmo3", "olmo2.attention.sliding_window", 33),
    ("olmo3", "olmo2.attention.sliding_window_pattern", [True, False, True, True, True]),
    ("olmo3", "olmo2.rope.scaling.type", "linear"),
    ("qwen3moe", "qwen3moe.expert_used_count", 3),
]
# Keys that llama.cpp reads past in these architectures, though its converter writes some of them.
UNREAD: list[tuple[str, str, Any]] = [
    ("llama-yarn", "llama.rope.scaling.yarn_attn_factor", 2.0),
    ("llama-yarn", "llama.rope.scaling.yarn_beta_fast", 2.0),
    ("llama-yarn", "llama.rope.scaling.yarn_beta_slow", 2.0),
    ("llama-yarn", "llama.rope.scaling.yarn_ext_factor", 0.0),
    ("llama", "llama.attention.sliding_window", 32.0),
    ("qwen2", "qwen2.attention.sliding_window", 32.0),
    ("phi3", "phi3.attention.sliding_window", 16),
    ("olmo3", "olmo2.rope.freq_base_swa", 20000.0),
    ("qwen3moe", "qwen3moe.expert_weights_norm", 0.0),
]

Make = Callable[[str], tuple[Tiny, npt.NDArray[np.float32]]]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A variant and libllama's logits of it, made once."""
    directory = tmp_path_factory.mktemp("relatives")

    @cache
    def made(variant: str) -> tuple[Tiny, npt.NDArray[np.float32]]:
        tiny = relative(variant, directory)
        return tiny, llama_cpp_logits(tiny.path, TOKENS)

    return made


def transformers_logits(model: Any) -> npt.NDArray[np.float32]:
    """The Hugging Face model's logits of `TOKENS`."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("variant", VARIANTS)
def test_libllama_and_transformers_agree(variant: str, make: Make) -> None:
    tiny, expected = make(variant)
    difference = np.abs(transformers_logits(tiny.model) - expected).max()
    print(f"{variant}: {difference:.1e}, logits' deviation {expected.std():.2f}")
    assert difference < (GELU_TABLE if variant.startswith("gemma") else EXACT)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.startswith("gemma")])
def test_the_gelu_table_is_all_that_differs(variant: str, tmp_path: Path) -> None:
    """With gates so large that GELU is 0 or the identity, where ggml uses no table."""
    model = relative_model(variant)
    for layer in model.model.layers:
        layer.mlp.gate_proj.weight.data *= 100000
    path = tmp_path / "large.gguf"
    write_gguf(path, VARIANTS[variant].architecture, model)
    assert np.abs(transformers_logits(model) - llama_cpp_logits(path, TOKENS)).max() < EXACT


@pytest.mark.parametrize(("variant", "key", "value"), READ)
def test_a_wrong_key_shows(variant: str, key: str, value: Any, make: Make, tmp_path: Path) -> None:
    tiny, right = make(variant)
    wrong = llama_cpp_logits(rewritten(tiny.path, tmp_path / "wrong.gguf", {key: value}), TOKENS)
    assert np.abs(wrong - right).max() > FAULT


@pytest.mark.parametrize(("variant", "key", "value"), UNREAD)
def test_llama_cpp_reads_past(variant: str, key: str, value: Any, make: Make, tmp_path: Path) -> None:
    tiny, right = make(variant)
    assert np.array_equal(llama_cpp_logits(rewritten(tiny.path, tmp_path / "other.gguf", {key: value}), TOKENS), right)


@pytest.mark.parametrize("variant", ["gemma2-27b", "gemma3-27b"])
def test_the_large_gemmas_have_their_own_scale(variant: str, make: Make) -> None:
    """The head size's would show: the scale is in no key, llama.cpp takes it from the number of layers."""
    model = relative_model(variant)
    for layer in model.model.layers:
        layer.self_attn.scaling = layer.self_attn.head_dim**-0.5
    assert np.abs(transformers_logits(model) - make(variant)[1]).max() > FAULT


@pytest.mark.parametrize("variant", VARIANTS)
def test_agents_adapt_what_icarus_allows(variant: str) -> None:
    """And with these weights the ordinary LoRA would be seen."""
    import torch

    from icarus_models.reference import ordinary_logits, two_stream_logits

    model = add_agents(relative_model(variant), {"random": 0.3})
    adapted = {
        name.split(".lora_B")[0].rsplit(".", 1)[-1]: p for name, p in model.named_parameters() if "lora_B" in name
    }
    expected = {"q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    if variant.startswith("phi3"):
        expected = {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
        assert adapted["qkv_proj"].shape == (128, 8)
        assert adapted["qkv_proj"][:64].count_nonzero() == 64 * 8
        assert adapted["qkv_proj"][64:].count_nonzero() == 0
    elif variant == "qwen3moe":
        expected = {"q_proj", "o_proj"}
    assert set(adapted) == expected
    ids = torch.tensor([TOKENS])
    with torch.no_grad():
        icarus = two_stream_logits(model, ids, torch.ones_like(ids))
        assert (icarus - ordinary_logits(model, ids, torch.ones_like(ids))).abs().max() > 10 * FAULT
