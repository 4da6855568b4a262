"""What is measured: a way to serve many agents over one base, behind one small protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import numpy as np
import numpy.typing as npt

from icarus_local.bench.script import Request

ICARUS, SWAP, SEPARATE, SEPARATE_CAPPED = "icarus", "swap", "separate", "separate_capped"
LLAMA_SERVER = "llama_server"
IN_PROCESS = (ICARUS, SWAP, SEPARATE, SEPARATE_CAPPED)
SYSTEMS = (*IN_PROCESS, LLAMA_SERVER)
CAP = 2  # caches that separate_capped has room for
N_WARM_UP = 64  # tokens that are encoded before anything counts


@dataclass(frozen=True, slots=True)
class TurnTime:
    """What one answer took, in seconds from when it was asked for; waiting for others counts.

    Attributes:
        agent: who answered. latency_s: to the last token. ttft_s: to the first.
        busy_s: for how long the system worked on this answer; where it worked on several at once, its part of that.
        encoded: tokens of the prompt that went through the model. generated: tokens of the answer.
    """

    agent: int
    latency_s: float
    ttft_s: float
    busy_s: float
    encoded: int
    generated: int


class System(Protocol):
    """Answers as agents of one base, with what it keeps between the answers. To be used from one thread."""

    def begin(self) -> None:
        """Forgets all conversations, and touches what is only slow the first time."""

    def turn(self, requests: Sequence[Request]) -> list[TurnTime]:
        """Gives answers that were asked for at the same moment; every token of them is predicted, then forced."""

    def mark(self) -> None:
        """Remembers what every cache holds."""

    def rewind(self) -> None:
        """Drops what was cached after the mark; what was evicted since stays evicted."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V that are set aside for all caches."""

    @property
    def kv_used_bytes(self) -> int:
        """Bytes of K and V that held something at the fullest moment."""

    @property
    def rss_bytes(self) -> int | None:
        """The most memory that the process which serves has had resident; None where the system does not say."""

    def close(self) -> None:
        """Frees everything; may be called twice."""


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the beginning that two lists of ids have in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def sampled(logits: npt.NDArray[np.float32]) -> int:
    """The likeliest id: what is computed at every token, so that sampling costs all systems the same."""
    return int(logits.argmax())
