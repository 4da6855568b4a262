"""The family id is one for all quantisations of a model and differs between models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from icarus_local.engine.identity import family_id
from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile
from tests.gguf_files import quantised, rewritten
from tests.relatives import VARIANTS, relative
from tests.tiny import Tiny, tiny_llama

SMOLLM2 = "bc097d3b908ba3cf0a19318e640101e615948de61f9937712c7e29fc23983caa"


def family_of(path: Path) -> str:
    with GgufFile(path) as file:
        return family_id(file)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda variant: relative(variant, tmp_path_factory.mktemp(variant)).path)


def test_the_id_that_adapters_are_bound_to(smollm2: Path) -> None:
    """It stands in every adapter for this base: it never changes."""
    assert family_of(smollm2) == SMOLLM2


@pytest.mark.parametrize("kind", ["F16", "Q4_0", "Q4_1", "Q8_0"])
def test_one_family_over_all_quantisations(tiny: Tiny, tmp_path: Path, kind: str) -> None:
    path = quantised(tiny.path, tmp_path / f"{kind}.gguf", kind)
    assert path.read_bytes() != tiny.path.read_bytes()
    assert family_of(path) == family_of(tiny.path)


@pytest.mark.slow
def test_one_family_over_quantisations_of_the_real_base(smollm2: Path, tmp_path: Path) -> None:
    for kind in ("Q8_0", "Q4_0"):
        path = quantised(smollm2, tmp_path / f"{kind}.gguf", kind)
        assert family_of(path) == family_of(smollm2)


def test_what_a_family_is(tiny: Tiny, tmp_path: Path) -> None:
    ours = family_of(tiny.path)
    assert family_of(rewritten(tiny.path, tmp_path / "same.gguf", {"general.name": "another name"})) == ours
    # A default that is left out is the same model.
    assert family_of(rewritten(tiny.path, tmp_path / "left_out.gguf", {"llama.rope.freq_base": None})) == ours
    assert family_of(rewritten(tiny.path, tmp_path / "template.gguf", {"tokenizer.chat_template": "x"})) == ours
    norm = 1 + np.arange(64, dtype=np.float32) / 1e6
    tokens = [f"t{i}" for i in range(273)]
    others = [
        tiny_llama(tmp_path, seed=1, name="other_weights").path,
        tiny_llama(tmp_path, n_layer=3, name="three_layers").path,
        rewritten(tiny.path, tmp_path / "rope.gguf", {"llama.rope.freq_base": 10001.0}),
        rewritten(tiny.path, tmp_path / "eps.gguf", {"llama.attention.layer_norm_rms_epsilon": 1e-5}),
        rewritten(tiny.path, tmp_path / "heads.gguf", {"llama.attention.head_count_kv": 1}),
        rewritten(tiny.path, tmp_path / "tokens.gguf", {"tokenizer.ggml.tokens": tokens}),
        rewritten(tiny.path, tmp_path / "types.gguf", {"tokenizer.ggml.token_type": [1] * 273}),
        rewritten(tiny.path, tmp_path / "norm.gguf", tensors={"blk.1.ffn_norm.weight": norm}),
        rewritten(tiny.path, tmp_path / "factor.gguf", {"llama.rope.scaling.factor": 2.0}),
        rewritten(tiny.path, tmp_path / "old_factor.gguf", {"llama.rope.scale_linear": 2.0}),
        rewritten(tiny.path, tmp_path / "scale.gguf", {"llama.attention.scale": 0.5}),
    ]
    families = [ours, *map(family_of, others)]
    assert len(set(families)) == len(families)


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("gemma2", {"attention.sliding_window": 33}),
    ("gemma2", {"attention.sliding_window_pattern": 4}),
    ("gemma2", {"attn_logit_softcapping": 6.0}),
    ("gemma2", {"final_logit_softcapping": 11.0}),
    ("gemma3", {"rope.freq_base_swa": 11000.0}),
    ("gemma3", {"rope.scaling.factor": 7.0}),
    ("gemma3", {"attention.sliding_window_pattern": [True, False, True, True, True, True, True]}),
    ("olmo3", {"attention.sliding_window_pattern": [True, False, True, True, True]}),
    ("olmo3", {"rope.scaling.original_context_length": 257}),
    ("olmo3", {"rope.scaling.attn_factor": 1.1}),
    ("phi3-longrope", {"rope.scaling.attn_factor": 1.2}),
    ("phi3-longrope", {"rope.scaling.original_context_length": 65}),
    ("phi3-partial", {"rope.dimension_count": 10}),
    ("granite", {"attention.scale": 0.16}),
    ("granite", {"residual_scale": 0.7}),
    ("granite", {"logit_scale": 5.0}),
    ("granite", {"embedding_scale": 7.0}),
    ("qwen3moe", {"expert_used_count": 3}),
    ("qwen2-yarn", {"rope.scaling.original_context_length": 129}),
    ("llama-yarn", {"rope.scaling.factor": 5.0}),
]
# As another converter writes the same model.
SAME: list[tuple[str, dict[str, Any]]] = [
    ("gemma2", {"attention.sliding_window_pattern": [True, False, True, False], "rope.freq_base": 10000.0}),
    ("gemma3", {"attention.sliding_window_pattern": 6, "rope.freq_base_swa": None}),
    ("gemma3", {"attention.value_length": None, "context_length": 2048, "expert_count": 0}),
    ("olmo3", {"rope.freq_base_swa": 20000.0, "rope.scaling.yarn_beta_fast": None}),  # neither is read
    ("granite", {"rope.scaling.finetuned": True, "rope.dimension_count": None, "rope.scaling.type": "none"}),
    ("qwen3moe", {"feed_forward_length": 999, "rope.scaling.original_context_length": 64}),
    ("phi3", {"attention.sliding_window": None, "rope.scaling.attn_factor": 1.0, "rope.freq_base": None}),
    ("llama", {"attention.scale": 0.0, "attention.sliding_window": 0, "expert_count": 0, "rope.freq_base": None}),
    ("qwen3", {"attention.clamp_kqv": 0.0, "residual_scale": 0.0}),
]


def of(variant: str, keys: dict[str, Any]) -> dict[str, Any]:
    return {f"{VARIANTS[variant].architecture}.{key}": value for key, value in keys.items()}


@pytest.mark.parametrize(("variant", "keys"), OTHERS)
def test_relatives_that_differ_in_a_key(
    models: Callable[[str], Path], tmp_path: Path, variant: str, keys: dict[str, Any]
) -> None:
    other = rewritten(models(variant), tmp_path / "other.gguf", of(variant, keys))
    assert family_of(other) != family_of(models(variant))


@pytest.mark.parametrize(("variant", "keys"), SAME)
def test_one_family_over_converters(
    models: Callable[[str], Path], tmp_path: Path, variant: str, keys: dict[str, Any]
) -> None:
    same = rewritten(models(variant), tmp_path / "same.gguf", of(variant, keys))
    assert same.read_bytes() != models(variant).read_bytes()
    assert family_of(same) == family_of(models(variant))


@pytest.mark.parametrize("name", ["rope_factors_long.weight", "rope_factors_short.weight"])
def test_rope_factors_make_a_family(models: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    ours = models("phi3-longrope")
    other = rewritten(ours, tmp_path / "other.gguf", tensors={name: np.full(8, 1.5, np.float32)})
    assert family_of(other) != family_of(ours)


@pytest.mark.parametrize("variant", ["gemma3", "granite", "olmo3", "phi3-longrope", "qwen3moe"])
def test_one_family_over_quantisations_of_relatives(
    models: Callable[[str], Path], tmp_path: Path, variant: str
) -> None:
    assert family_of(quantised(models(variant), tmp_path / "q.gguf", "Q4_0")) == family_of(models(variant))


@pytest.mark.parametrize("key", ["embedding_length", "attention.head_count", "block_count"])
def test_a_file_without_a_key_is_refused(tiny: Tiny, tmp_path: Path, key: str) -> None:
    path = rewritten(tiny.path, tmp_path / "lacks.gguf", {f"llama.{key}": None})
    with pytest.raises(ModelFileError, match=key):
        family_of(path)


def test_tokens_that_are_no_texts(tiny: Tiny, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "numbers.gguf", "llama")
    for key in ("embedding_length", "attention.head_count", "block_count"):
        writer.add_uint32(f"llama.{key}", 4)
    writer.add_array("tokenizer.ggml.tokens", [1, 2])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.tokens"):
        family_of(tmp_path / "numbers.gguf")
