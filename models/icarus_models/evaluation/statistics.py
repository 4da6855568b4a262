"""How sure a mean is: bootstrap over the items, and over the differences of two systems on the same items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_RESAMPLES = 10_000
_SEED = 0
_LEVEL = 95.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the bounds of its 95 % interval."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """The mean of values and what it would be, in 95 of 100 cases, over other items of the same kind (percentiles)."""
    array = np.asarray(values, np.float64)
    means = _resampled(array)
    tail = (100 - _LEVEL) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return Interval(float(array.mean()), float(low), float(high))


def paired(a: Sequence[float], b: Sequence[float]) -> Interval:
    """The same of a - b, two systems' scores of the same items in the same order."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} scores are not of the same items")
    return interval(np.subtract(a, b).tolist())


def _resampled(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(_SEED)
    n = len(values)
    # In parts: ten thousand times some thousand items would be hundreds of MiB.
    parts = [values[rng.integers(0, n, (500, n))].mean(1) for _ in range(_RESAMPLES // 500)]
    means: npt.NDArray[np.float64] = np.concatenate(parts)
    return means
