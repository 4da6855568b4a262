"""Runs the engine beside llama.cpp over the same steps, for the tests of every kind of base."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from icarus_local.engine.engine import Engine, Logits
from icarus_local.engine.oracle import Oracle


def assert_llama_decodes_bits(
    engine: Engine, oracle: Oracle, tokens: Sequence[int], n_prompt: int, n_single: int, n_dual: int
) -> Logits:
    """A prefill, single rows, and dual steps against batches of two rows; gives the logits of the prompt.

    Both must be new, and `tokens` hold n_prompt + n_single + n_dual ids.
    """
    sequence = engine.cells.create()
    prompt = engine.forward(encode=[(sequence, tokens[:n_prompt])], encoder_logits=True).encoder
    assert np.array_equal(prompt, oracle.prefill(tokens[:n_prompt]))
    for position in range(n_prompt, n_prompt + n_single):
        token = tokens[position]
        ours = engine.forward(encode=[(sequence, [token])], encoder_logits=True).encoder
        assert np.array_equal(ours, oracle.decode([(token, position, 0)]))
    oracle.copy_sequence(0, 1)
    for position in range(n_prompt + n_single, n_prompt + n_single + n_dual):
        token = tokens[position]
        step = engine.forward(encode=[(sequence, [token])], decode=[(sequence, None)], encoder_logits=True)
        theirs = oracle.decode([(token, position, 0), (token, position, 1)])
        assert np.array_equal(step.encoder[0], theirs[0])
        assert np.array_equal(step.decoder, step.encoder)
    engine.cells.drop(sequence)
    return prompt
