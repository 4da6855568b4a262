"""Every type that a weight may have: encoder rows are llama.cpp's bit for bit, mapped from the file and repacked."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from icarus_local.engine.engine import Engine
from icarus_local.engine.oracle import Oracle
from icarus_local.engine.weights import WEIGHT_TYPES
from icarus_local.errors import ModelFileError
from icarus_local.ggml.library import load
from tests.engine.side_by_side import assert_llama_decodes_bits
from tests.gguf_files import in_types, rewritten
from tests.relatives import relative
from tests.tiny import tiny_llama

TOKENS = np.random.default_rng(3).integers(3, 270, 60).tolist()
PROMPT = 50
NAMES = {load().ggml_type_name(kind).decode(): kind for kind in sorted(WEIGHT_TYPES)}
# What ggml repacks on one CPU or another.
FLOATS = ("f32", "f16", "bf16")  # two rows of these go through another kernel than one
REPACKED = ("q1_0", "q2_K", "q4_0", "q4_K", "q5_K", "q6_K", "q8_0", "iq4_nl", "mxfp4")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 256 values, the longest block of any type; one layer, since some types take long to find."""
    return tiny_llama(tmp_path_factory.mktemp("wide"), n_layer=1, hidden=256, n_ff=256, tied=True).path


@pytest.fixture(scope="module")
def relatives(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda variant: relative(variant, tmp_path_factory.mktemp(variant)).path)


def check(path: Path, repack: bool, dual: bool = True) -> frozenset[str]:
    """A prefill, single rows and dual steps against llama_decode; gives the names of the weights that are repacked."""
    # One thread: two that wait for each other are slow on a busy machine.
    with (
        Engine(path, n_ctx=256, repack=repack, n_threads=1) as engine,
        Oracle(path, 256, 1, repack=repack) as oracle,
    ):
        n_dual = 4 if dual else 0
        prompt = assert_llama_decodes_bits(engine, oracle, TOKENS, n_prompt=PROMPT, n_single=4, n_dual=n_dual)
        assert np.isfinite(prompt).all()
        assert prompt.std() > 1
        return engine.base.placement.repacked


@pytest.mark.parametrize("name", NAMES)
def test_every_type_equals_llama_decode(wide: Path, tmp_path: Path, name: str) -> None:
    path = in_types(wide, tmp_path / "typed.gguf", lambda _: NAMES[name])
    assert check(path, repack=False, dual=name not in FLOATS) == frozenset()


@pytest.mark.parametrize("name", REPACKED)
def test_repacked_types_equal_llama_decode(wide: Path, tmp_path: Path, name: str) -> None:
    path = in_types(wide, tmp_path / "typed.gguf", lambda _: NAMES[name])
    if not check(path, repack=True):
        pytest.skip(f"this CPU repacks no {name}")


def test_repacking_is_another_computation(wide: Path, tmp_path: Path) -> None:
    """On AVX2, Arm and RISC-V alike: else the tests of repacked types would prove nothing."""
    path = in_types(wide, tmp_path / "q4_0.gguf", lambda _: Type.Q4_0)
    logits = []
    for repack in (False, True):
        with Engine(path, n_ctx=256, repack=repack, n_threads=1) as engine:
            assert bool(engine.base.placement.repacked) is repack
            encode = [(engine.cells.create(), TOKENS)]
            logits.append(engine.forward(encode=encode, encoder_logits=True).encoder)
    assert not np.array_equal(*logits)


def q4_k_m(name: str) -> int:
    """As llama-quantize mixes the types of Q4_K_M."""
    return Type.Q6_K if name == "token_embd.weight" or "attn_v" in name or "ffn_down" in name else Type.Q4_K


@pytest.mark.parametrize("repack", [False, True])
def test_mixed_types_equal_llama_decode(wide: Path, tmp_path: Path, repack: bool) -> None:
    check(in_types(wide, tmp_path / "q4_k_m.gguf", q4_k_m), repack)


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.IQ4_NL, Type.MXFP4])
@pytest.mark.parametrize("variant", ["phi3", "qwen3moe"])
@pytest.mark.parametrize("repack", [False, True])
def test_fused_and_expert_weights_in_blocks(
    relatives: Callable[[str], Path], tmp_path: Path, variant: str, kind: int, repack: bool
) -> None:
    """Parts of a fused tensor, and experts, are repacked by themselves."""
    check(in_types(relatives(variant), tmp_path / "typed.gguf", lambda _: kind), repack)


@pytest.mark.parametrize("dtype", ["float64", "int8", "int16", "int64"])
@pytest.mark.parametrize("name", ["token_embd.weight", "blk.0.ffn_up.weight"])
def test_other_types_are_refused(wide: Path, tmp_path: Path, name: str, dtype: str) -> None:
    shape = (273, 256) if name.startswith("token") else (256, 256)
    path = rewritten(wide, tmp_path / "other.gguf", tensors={name: np.zeros(shape, dtype)})
    with pytest.raises(ModelFileError, match=rf"tensor {name} is of the type \w+, which cannot be computed"):
        Engine(path)
