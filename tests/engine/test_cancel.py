"""A step that is stopped anywhere leaves nothing behind: what follows has the bits of a run without stops."""

from __future__ import annotations

import random
import threading
import time

import numpy as np

from icarus_local.bench.adapters import random_adapter
from icarus_local.engine.engine import Engine
from icarus_local.errors import CancelledError
from tests.tiny import Tiny

N_UBATCH, N_PROMPT, N_ANSWER = 32, 130, 6
CANCELS = 1000


def test_after_1000_random_cancels_logits_and_cache_are_those_of_a_run_without(tiny: Tiny) -> None:
    rng = random.Random(1)
    tokens = [rng.randrange(3, 250) for _ in range(N_PROMPT + N_ANSWER)]
    with Engine(tiny.path, n_ctx=256, n_ubatch=N_UBATCH, device="cpu") as engine:
        agent = engine.add_adapter(random_adapter(engine.base, 8, seed=0))

        def converse(sequence: int) -> np.ndarray:
            """Goes on from wherever the sequence is, by the same steps as without stops."""
            if (n := engine.cells.length(sequence)) < N_PROMPT:
                engine.forward(encode=[(sequence, tokens[n:N_PROMPT])])
            logits = engine.forward(decode=[(sequence, agent)]).decoder[0]
            for token in tokens[engine.cells.length(sequence) :]:
                logits = engine.forward(encode=[(sequence, [token])], decode=[(sequence, agent)]).decoder[0]
            return logits

        sequence = engine.cells.create()
        expected, kv = converse(sequence), engine.kv_bytes(sequence)
        engine.cells.truncate(sequence, 0)
        start = time.perf_counter()
        converse(sequence)
        duration = time.perf_counter() - start
        engine.cells.truncate(sequence, 0)
        cancels, lengths = 0, set()
        stop = threading.Event()

        def cancel_now_and_then() -> None:
            while not stop.is_set():
                time.sleep(rng.uniform(0, duration))
                engine.cancel()

        thread = threading.Thread(target=cancel_now_and_then)
        thread.start()
        try:
            while cancels < CANCELS:
                try:
                    logits = converse(sequence)
                except CancelledError:
                    cancels += 1
                    length = engine.cells.length(sequence)
                    lengths.add(length)
                    assert length % N_UBATCH == 0 or length >= N_PROMPT
                    assert engine.cells.n_used == length
                    continue
                assert np.array_equal(logits, expected)
                engine.cells.truncate(sequence, rng.choice([0, N_UBATCH, 3 * N_UBATCH]))
        finally:
            stop.set()
            thread.join()
        engine.clear_cancel()
        engine.cells.truncate(sequence, 0)
        assert np.array_equal(converse(sequence), expected)
        assert engine.kv_bytes(sequence) == kv
    # Stops came in the prompt and in the answer.
    assert {0, 32, 64, 96} < lengths
    assert any(length > N_PROMPT for length in lengths)
