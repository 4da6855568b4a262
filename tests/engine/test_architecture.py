"""Hyperparameters as a file gives them: what is computed, and that nothing else is read past."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icarus_local.engine.architecture import ARCHITECTURES, NEUTRAL, Hyperparameters, notices, read_hyperparameters
from icarus_local.engine.engine import Engine
from icarus_local.engine.oracle import Oracle
from icarus_local.engine.rope import FACTORS_LONG, FACTORS_SHORT
from icarus_local.engine.weights import check_tensors
from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile
from tests.gguf_files import rewritten
from tests.relatives import VARIANTS, WINDOW, relative

# One model of each architecture.
MODELS = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "phi3": "phi3-longrope",
    "granite": "granite",
    "olmo2": "olmo3",
}
Models = Callable[[str], Path]
Change = Callable[..., Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return cache(lambda variant: relative(variant, tmp_path_factory.mktemp(variant)).path)


@pytest.fixture
def changed(models: Models, tmp_path: Path) -> Change:
    """A variant with keys of its architecture changed."""

    def change(variant: str, **keys: Any) -> Path:
        architecture = VARIANTS[variant].architecture
        named = {f"{architecture}.{key}": value for key, value in keys.items()}
        return rewritten(models(variant), tmp_path / "changed.gguf", named)

    return change


def read(path: Path) -> Hyperparameters:
    with GgufFile(path) as file:
        hp = read_hyperparameters(file)
        check_tensors(file, hp)
        return hp


def test_every_architecture_is_here() -> None:
    assert set(MODELS) == set(ARCHITECTURES)


def test_an_unknown_architecture_is_refused_by_name(models: Models, tmp_path: Path) -> None:
    path = rewritten(models("llama"), tmp_path / "mamba.gguf", {"general.architecture": "mamba"})
    with pytest.raises(ModelFileError, match=rf"architecture 'mamba'; this version runs {', '.join(ARCHITECTURES)}\."):
        read(path)


def test_a_part_of_a_model_is_refused(models: Models, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="one of the 3 files of a model"):
        read(rewritten(models("llama"), tmp_path / "part.gguf", {"split.count": 3}))


def other(values: tuple[Any, ...]) -> Any:
    """A value of the same type that is not neutral."""
    first = values[0] if values else [0, 1]
    return not first if isinstance(first, bool) else 7 if isinstance(first, int) else 0.5 if values else first


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("key", NEUTRAL)
def test_keys_that_are_not_computed_are_refused(changed: Change, name: str, key: str) -> None:
    if key in ARCHITECTURES[name].keys:
        pytest.skip("computed")
    for value in NEUTRAL[key]:
        read(changed(MODELS[name], **{key: value}))
    with pytest.raises(ModelFileError, match=rf"sets {name}\.{key} to .*, which this version does not compute"):
        read(changed(MODELS[name], **{key: other(NEUTRAL[key])}))


WIDTHS = [
    "attention.value_length",
    "attention.key_length_swa",
    "attention.value_length_swa",
    "rope.dimension_count_swa",
]


@pytest.mark.parametrize("variant", ["llama", "gemma3", "phi3-partial"])
@pytest.mark.parametrize("key", WIDTHS)
def test_widths_of_their_own_are_refused(models: Models, changed: Change, variant: str, key: str) -> None:
    hp = read(models(variant))
    same = hp.rope.dims if key.startswith("rope") else hp.n_embd_head
    assert read(changed(variant, **{key: same})) == hp
    with pytest.raises(ModelFileError, match=key):
        read(changed(variant, **{key: same // 2}))


BROKEN: list[tuple[str, str, Any, str]] = [
    ("llama", "attention.head_count", [4, 4, 4], "head_count has a value for each layer, which is not computed"),
    ("llama", "attention.head_count_kv", [2, 2, 2], "head_count_kv has a value for each layer"),
    ("llama", "feed_forward_length", [128, 128, 128], "feed_forward_length has a value for each layer"),
    ("qwen3moe", "expert_feed_forward_length", [64, 64, 64], "expert_feed_forward_length has a value for each layer"),
    ("qwen3moe", "expert_used_count", [2, 2, 2], "expert_used_count has a value for each layer"),
    ("qwen3moe", "expert_used_count", 9, "expert_used_count is 9, outside 1 to 8"),
    ("qwen3moe", "expert_used_count", 0, "expert_used_count is 0"),
    ("qwen3moe", "expert_count", 0, "expert_count is 0"),
    ("qwen3moe", "expert_count", 7, "has the shape .* not"),
    ("qwen3moe", "expert_feed_forward_length", 32, "has the shape"),
    ("llama", "embedding_length", "64", "embedding_length holds str, not int"),
    ("llama", "rope.dimension_count", 15, "rope over 15 of 16"),
    ("gemma2", "attention.sliding_window", 0, "sliding_window is 0, outside 1"),
    ("gemma3", "attention.sliding_window", -5, "sliding_window is -5"),
    ("gemma3", "attention.sliding_window", 2**31 - 1, "sliding_window is 2147483647"),
    ("gemma3", "attention.sliding_window_pattern", [True, False], "pattern is for 2 of 7 layers"),
    ("gemma3", "attention.sliding_window_pattern", ["a"] * 7, "pattern is of no flags"),
    ("gemma3", "attention.sliding_window_pattern", [1.0] * 7, "pattern is of no flags"),
    ("gemma3", "attention.sliding_window_pattern", -1, "pattern is -1"),
    ("gemma3", "attention.sliding_window_pattern", "6", "pattern holds str, not int"),
    ("gemma3", "rope.freq_base_swa", float("inf"), "freq_base_swa is inf"),
    ("gemma2", "final_logit_softcapping", float("nan"), "final_logit_softcapping is nan"),
    ("gemma2", "attn_logit_softcapping", -1.0, "attn_logit_softcapping is -1.0"),
    ("granite", "logit_scale", 0.0, "logit_scale is 0.0"),
    ("granite", "logit_scale", None, "lacks the key granite.logit_scale"),
    ("granite", "rope.scaling.finetuned", False, "without rope"),
    ("granite", "rope.scaling.finetuned", 0, "without rope"),
    ("llama", "rope.scaling.type", "dynamic", "scales its rope by 'dynamic'; this version knows none, linear"),
    ("llama", "rope.scaling.type", ["yarn"], "rope.scaling.type holds list, not str"),
    ("llama", "rope.scaling.factor", 1e-30, "scales its rope by 1"),
    ("llama", "rope.scaling.factor", float("nan"), "factor is nan"),
    ("llama", "rope.scaling.alpha", 2.0, "by an alpha"),
    ("llama", "rope.scaling.alpha", [2.0, 1.0], "alpha holds ndarray, not float"),
    ("llama-yarn", "rope.scaling.yarn_beta_fast", 16.0, "yarn_beta_fast to 16.0"),
    ("llama-yarn", "rope.scaling.yarn_beta_slow", 2.0, "yarn_beta_slow to 2.0"),
    ("llama-yarn", "rope.scaling.yarn_ext_factor", 0.5, "yarn_ext_factor to 0.5"),
    ("llama-yarn", "rope.scaling.yarn_attn_factor", 2.0, "yarn_attn_factor to 2.0"),
    ("llama-yarn", "rope.scaling.yarn_log_multiplier", 0.1, "yarn_log_multiplier to 0.1"),
    ("llama-yarn", "rope.scaling.yarn_beta_fast", ["a"], "yarn_beta_fast holds list, not float"),
    ("llama-yarn", "rope.scaling.original_context_length", 0, "original_context_length is 0"),
]


@pytest.mark.parametrize(("variant", "key", "value", "message"), BROKEN)
def test_values_that_no_model_has(changed: Change, variant: str, key: str, value: Any, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        read(changed(variant, **{key: value}))


NO_PLACE = [
    ("llama", "blk.0.attn_q.scale", 1),
    ("llama", "output.bias", 273),
    ("llama", "rope_factors_long.weight", 8),
    ("qwen2", "rope_freqs.weight", 8),
    ("qwen2", "blk.0.attn_output.bias", 64),
    ("qwen3", "blk.0.ffn_gate.input_scale", 1),
    ("qwen3moe", "blk.0.ffn_up_exps.scale", 8),
    ("gemma3", "rope_freqs.weight", 16),
    ("phi3", "output.bias", 273),
    ("granite", "blk.0.post_ffw_norm.weight", 64),
    ("olmo3", "blk.0.attn_norm.weight", 64),
]


@pytest.mark.parametrize(("variant", "name", "size"), NO_PLACE)
def test_tensors_without_a_place(models: Models, tmp_path: Path, variant: str, name: str, size: int) -> None:
    with pytest.raises(ModelFileError, match=f"holds the tensor {name}, which has no place"):
        read(rewritten(models(variant), tmp_path / "more.gguf", tensors={name: np.ones(size, np.float32)}))


@pytest.mark.parametrize("name", [FACTORS_LONG, FACTORS_SHORT])
def test_half_of_the_factors_is_refused(models: Models, tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match="and not its counterpart"):
        read(rewritten(models("phi3-longrope"), tmp_path / "half.gguf", tensors={name: None}))


@pytest.mark.parametrize(("variant", "n_layer"), [("gemma2", 46), ("gemma3", 62)])
def test_the_large_gemmas_scale_by_their_width(models: Models, variant: str, n_layer: int) -> None:
    large, small = read(models(f"{variant}-27b")), read(models(variant))
    assert large.n_layer == n_layer
    assert large.attention_scale == np.float32(1 / np.sqrt(64 / 4))
    assert small.attention_scale == np.float32(1) / np.sqrt(np.float32(32))


def test_windows(models: Models, changed: Change) -> None:
    assert read(models("gemma2")).windowed == (True, False, True, False)
    assert read(models("gemma3")).windowed == (True,) * 5 + (False, True)
    assert read(models("olmo3")).windowed == (True, True, True, False, True)
    assert read(models("gemma3")).window == WINDOW
    assert read(changed("gemma2", **{"attention.sliding_window": None})).window == 4096
    assert not any(read(changed("gemma3", **{"attention.sliding_window": None})).windowed)
    assert all(read(changed("gemma3", **{"attention.sliding_window_pattern": 0})).windowed)
    assert not any(read(changed("gemma3", **{"attention.sliding_window_pattern": 1})).windowed)
    assert not any(read(models("phi3")).windowed)


def test_phi3s_window_is_told(models: Models) -> None:
    for variant, n_ctx, n_notices in (("phi3", WINDOW + 1, 1), ("phi3", WINDOW, 0), ("gemma2", 512, 0)):
        with GgufFile(models(variant)) as file:
            told = notices(file.path, read_hyperparameters(file), file, n_ctx)
        assert len(told) == n_notices
        assert all(f"sliding window of {WINDOW} tokens" in notice for notice in told)


# llama.cpp pads a context to 256 cells before it compares, as the engine does.
@pytest.mark.parametrize(
    ("original", "n_ctx", "factors"),
    [
        (512, 512, FACTORS_SHORT),
        (512, 257, FACTORS_SHORT),
        (512, 513, FACTORS_LONG),
        (511, 257, FACTORS_LONG),
        (256, 256, FACTORS_SHORT),
        (256, 257, FACTORS_LONG),
        (255, 200, FACTORS_LONG),
    ],
)
def test_the_contexts_cells_choose_the_factors(changed: Change, original: int, n_ctx: int, factors: str) -> None:
    path = changed("phi3-longrope", **{"rope.scaling.original_context_length": original})
    tokens = list(range(3, 43))
    with Engine(path, n_ctx=n_ctx, repack=False, n_threads=1) as engine, Oracle(path, n_ctx, 1) as oracle:
        assert engine.base.hp.rope.factors_for(engine.n_ctx) == factors
        ours = engine.forward(encode=[(engine.cells.create(), tokens)], encoder_logits=True).encoder
        assert np.array_equal(ours, oracle.prefill(tokens))
