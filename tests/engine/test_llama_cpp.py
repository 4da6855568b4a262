"""Encoder rows are llama.cpp's, bit for bit, on the real SmolLM2 and on tiny variants; a bare decoder row is theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icarus_local.engine.engine import Engine
from icarus_local.engine.oracle import Oracle
from tests.engine.side_by_side import assert_llama_decodes_bits
from tests.gguf_files import quantised, rewritten
from tests.tiny import Tiny

N_CTX = 2048


@pytest.fixture(scope="module")
def engine(smollm2: Path) -> Iterator[Engine]:
    with Engine(smollm2, n_ctx=N_CTX) as engine:
        yield engine


@pytest.fixture
def oracle(smollm2: Path, engine: Engine) -> Iterator[Oracle]:
    with Oracle(smollm2, N_CTX, engine.n_threads) as oracle:
        yield oracle


@pytest.mark.parametrize("n_prompt", [40, 700])
def test_prefill_single_rows_and_dual_steps_equal_llama_decode(
    engine: Engine, oracle: Oracle, text_tokens: list[int], n_prompt: int
) -> None:
    # 700 goes through in one step of 512 and one of 188 on both sides.
    ours = assert_llama_decodes_bits(engine, oracle, text_tokens, n_prompt=n_prompt, n_single=6, n_dual=6)
    # The comparison sees a change of one token, far from the end of the context.
    prompt = text_tokens[:n_prompt]
    changed = [*prompt[:7], prompt[7] + 1, *prompt[8:]]
    other = engine.cells.create()
    assert not np.array_equal(engine.forward(encode=[(other, changed)], encoder_logits=True).encoder[-1], ours[-1])
    engine.cells.drop(other)


def test_a_lone_decoder_row_without_adapter_equals_the_encoder_row(engine: Engine, text_tokens: list[int]) -> None:
    sequence = engine.cells.create()
    engine.forward(encode=[(sequence, text_tokens[:60])])
    encoder = engine.forward(encode=[(sequence, [text_tokens[60]])], encoder_logits=True).encoder
    assert np.array_equal(engine.forward(decode=[(sequence, None)]).decoder, encoder)
    engine.cells.drop(sequence)


def test_forked_sequences_share_cells_and_give_the_same_logits(engine: Engine, text_tokens: list[int]) -> None:
    trunk = engine.cells.create()
    engine.forward(encode=[(trunk, text_tokens[:50])])
    used = engine.cells.n_used
    fork = engine.cells.fork(trunk)
    assert engine.cells.n_used == used
    step = engine.forward(
        encode=[(trunk, [text_tokens[50]]), (fork, [text_tokens[50]])], decode=[(trunk, None), (fork, None)]
    )
    assert np.array_equal(step.decoder[0], step.decoder[1])
    for sequence in (trunk, fork):
        engine.cells.drop(sequence)
    assert engine.cells.n_used == 0


ROPE = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
FACTORS = {"rope_freqs.weight": np.linspace(1, 8, 8, dtype=np.float32)}
BIASES = {
    "blk.0.attn_q.bias": np.linspace(-1, 1, 64, dtype=np.float32),
    "blk.1.attn_k.bias": np.linspace(-1, 1, 32, dtype=np.float32),
    "blk.1.attn_v.bias": np.linspace(-1, 1, 32, dtype=np.float32),
    "blk.0.ffn_down.bias": np.linspace(-1, 1, 64, dtype=np.float32),
}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "plain F32": ({}, {}, None),
    "Llama 3 rope factors": ({}, FACTORS, None),
    "linear rope": (ROPE, {}, None),
    "a factor without a type": ({"llama.rope.scaling.factor": 4.0}, {}, None),
    "a factor by its old name": ({"llama.rope.scale_linear": 4.0}, {}, None),
    "biases": ({}, BIASES, None),
    "tied head": ({}, {"output.weight": None}, None),
    "F16": ({}, {}, "F16"),
    "Q8_0": ({}, {}, "Q8_0"),
    "Q4_0": ({}, {}, "Q4_0"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_the_architecture_equals_llama_decode(tiny: Tiny, tmp_path: Path, variant: str) -> None:
    keys, tensors, kind = VARIANTS[variant]
    path = rewritten(tiny.path, tmp_path / "variant.gguf", keys, tensors)
    if kind is not None:
        path = quantised(path, tmp_path / "quantised.gguf", kind)
    tokens = np.random.default_rng(3).integers(3, 270, 60).tolist()
    with Engine(path, n_ctx=256) as engine, Oracle(path, 256, engine.n_threads) as oracle:
        ours = assert_llama_decodes_bits(engine, oracle, tokens, n_prompt=50, n_single=10, n_dual=0)
        plain = Engine(tiny.path, n_ctx=256)
        other = plain.forward(encode=[(plain.cells.create(), tokens[:50])], encoder_logits=True).encoder
        assert (variant == "plain F32") == np.array_equal(other, ours)
        plain.close()
