"""Sampling: greedy is argmax, seeds repeat, filters filter, penalties see the history."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from icarus_local.errors import RequestError
from icarus_local.text.sampler import Sampler, Sampling

N = 1000
LOGITS = np.random.default_rng(0).normal(0, 3, N).astype(np.float32)


def draws(n: int, history: list[int] | None = None, **sampling: Any) -> list[int]:
    sampler = Sampler(Sampling(**sampling), N, history)
    try:
        return [sampler.sample(LOGITS) for _ in range(n)]
    finally:
        sampler.close()


def test_greedy_is_argmax() -> None:
    assert draws(3) == [int(LOGITS.argmax())] * 3


def test_a_seed_repeats_and_another_does_not() -> None:
    first = draws(50, temperature=1.0, seed=1, min_p=0.0)
    assert first == draws(50, temperature=1.0, seed=1, min_p=0.0)
    assert first != draws(50, temperature=1.0, seed=2, min_p=0.0)
    assert len(set(first)) > 3


def test_top_k_and_min_p_bound_what_is_drawn() -> None:
    order = np.argsort(-LOGITS)
    assert set(draws(200, temperature=5.0, top_k=3, top_p=1.0, min_p=0.0, seed=3)) == set(order[:3].tolist())
    likely = np.flatnonzero(LOGITS - LOGITS.max() >= np.log(0.5))
    assert set(draws(100, temperature=1.0, top_k=0, top_p=1.0, min_p=0.5, seed=3)) <= set(likely.tolist())


def test_the_repeat_penalty_sees_the_history_and_what_was_drawn() -> None:
    best, second = (int(i) for i in np.argsort(-LOGITS)[:2])
    assert draws(2, repeat_penalty=10.0)[0] == best
    assert draws(2, repeat_penalty=10.0)[1] != best
    assert draws(1, history=[best], repeat_penalty=10.0) == [second]


def test_bad_logits_and_parameters_are_refused() -> None:
    sampler = Sampler(Sampling(), N)
    with pytest.raises(RequestError, match="NaN"):
        sampler.sample(np.full(N, np.nan, np.float32))
    with pytest.raises(RequestError, match="shape"):
        sampler.sample(LOGITS[:5])
    sampler.close()
    sampler.close()
    with pytest.raises(ValidationError, match="temprature"):
        Sampling(temprature=1.0)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="top_p"):
        Sampling(top_p=0.0)
