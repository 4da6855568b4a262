"""Encoder rows on the real SmolLM2 are llama.cpp's, bit for bit; a bare decoder row is the encoder's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from icarus_local.engine.engine import Engine
from icarus_local.engine.oracle import Oracle

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
    sequence = engine.cells.create()
    prompt, single, dual = text_tokens[:n_prompt], text_tokens[n_prompt : n_prompt + 6], text_tokens[n_prompt + 6 :][:6]
    # 700 goes through in one step of 512 and one of 188 on both sides.
    ours = engine.forward(encode=[(sequence, prompt)], encoder_logits=True).encoder
    assert np.array_equal(ours, oracle.prefill(prompt))
    for position, token in enumerate(single, n_prompt):
        ours = engine.forward(encode=[(sequence, [token])], encoder_logits=True).encoder
        assert np.array_equal(ours, oracle.decode([(token, position, 0)]))
    oracle.copy_sequence(0, 1)
    for position, token in enumerate(dual, n_prompt + 6):
        step = engine.forward(encode=[(sequence, [token])], decode=[(sequence, None)], encoder_logits=True)
        theirs = oracle.decode([(token, position, 0), (token, position, 1)])
        assert np.array_equal(step.encoder[0], theirs[0])
        assert np.array_equal(step.decoder, step.encoder)
    # The comparison sees a change of one token, far from the end of the context.
    changed = [*prompt[:7], prompt[8], *prompt[8:]]
    other = engine.cells.create()
    assert not np.array_equal(engine.forward(encode=[(other, changed)], encoder_logits=True).encoder[-1], ours[-1])
    engine.cells.drop(other)
    engine.cells.drop(sequence)


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
