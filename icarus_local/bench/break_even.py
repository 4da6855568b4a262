"""From how many agents on one cache for all is not slower than one for each: measured, or estimated from one case."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from icarus_local.bench.records import Record


def measured_break_even(points: Sequence[tuple[int, float, float]]) -> float | None:
    """The number of agents, between two measured ones, from which on warm turns are not slower with one cache.

    Args:
        points: (agents, mean seconds of a warm turn with one cache, with separate ones), in order of agents.

    Returns:
        By a straight line between neighbours; the least measured number where no point is slower; None where the last
        is, or there are less than two.
    """
    gains = [(agents, theirs - ours) for agents, ours, theirs in points]
    if len(gains) < 2 or gains[-1][1] < 0:
        return None
    crossing = float(gains[0][0])
    for (few, loss), (many, gain) in pairwise(gains):
        if loss < 0 <= gain:
            crossing = few + (many - few) * loss / (loss - gain)
    return crossing


def estimated_break_even(our_mean_s: float, separate: Sequence[Record], agents: int) -> int | None:
    """The same from one case with `agents` agents, in whole agents; None if it cannot be known from it.

    With a cache of its own, an agent encodes what all others said since it spoke, so its turn grows by the same time
    with each agent more. Here a turn does not depend on the number of agents.

    Args:
        our_mean_s: of a warm turn with one cache. separate: the repeats with separate ones.
    """
    warm = [turn for record in separate for turn in record.turns if not turn.cold]
    queued = any(turn.latency_s > 1.5 * turn.busy_s for turn in warm)
    # One agent has nobody to read, and answers at once wait for each other.
    if agents < 2 or queued:
        return None
    latency, first_s, encoded, answer = (
        statistics.fmean(values)
        for values in zip(*[(turn.latency_s, turn.ttft_s, turn.encoded, turn.generated) for turn in warm], strict=True)
    )
    # What a prompt of one token takes is part of every first token, however much there is to read.
    step_s = (latency - first_s) / (answer - 1) if answer > 1 else 0.0
    if encoded <= 1 or first_s <= step_s:
        return None
    # A turn encodes a prompt for each agent, an answer for each but its own, and the last token that it said itself.
    tokens_of_an_agent = (encoded + answer - 1) / agents
    more_s = (first_s - step_s) / (encoded - 1) * tokens_of_an_agent
    return max(1, math.ceil(agents - (latency - our_mean_s) / more_s))
