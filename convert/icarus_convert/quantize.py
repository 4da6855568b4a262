"""Quantises a GGUF file with libllama, telling how far it is."""

from __future__ import annotations

import ctypes
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from icarus_local.errors import IcarusError
from icarus_local.ggml.library import load_llama

# enum llama_ftype by the names of llama-quantize; those that need an importance matrix are left out.
FTYPES = {
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K_S": 11,
    "Q3_K_M": 12,
    "Q3_K_L": 13,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "IQ4_NL": 25,
    "IQ3_S": 26,
    "IQ3_M": 27,
    "IQ4_XS": 30,
    "TQ1_0": 36,
    "TQ2_0": 37,
}
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_PROGRESS = re.compile(r"\[\s*(\d+)/\s*(\d+)\]")

Progress = Callable[[int, int], None]


def ftype_name(name: str) -> str:
    """The type that `name` means, in any case.

    Raises:
        IcarusError: none; lists those that there are.
    """
    upper = name.upper()
    upper = _ALIASES.get(upper, upper)
    if upper not in FTYPES:
        raise IcarusError(f"there is no type {name} to quantise to", f"Give one of {', '.join(FTYPES)}")
    return upper


def quantize(source: Path, target: Path, name: str, *, threads: int = 0, progress: Progress | None = None) -> None:
    """Writes `target`, the F32, F16 or BF16 file `source` in another type.

    Args:
        threads: 0 for as many as the machine has.
        progress: is given the number of a tensor and of all tensors.

    Raises:
        IcarusError: no such type, or libllama fails.
    """
    llama = load_llama()
    params = llama.llama_model_quantize_default_params()
    params.ftype, params.nthread = FTYPES[ftype_name(name)], threads
    with _following(progress):
        status = llama.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    if status != 0:
        raise IcarusError(f"libllama cannot quantise {source} to {name}", "--debug shows why")


class _Follower(logging.Handler):
    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.DEBUG)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        if match := _PROGRESS.search(record.getMessage()):
            self._progress(int(match[1]), int(match[2]))


@contextmanager
def _following(progress: Progress | None) -> Iterator[None]:
    """Lets `progress` hear what libllama logs, whatever level the program shows."""
    if progress is None:
        yield
        return
    logger, follower = logging.getLogger("icarus_local.llama.log"), _Follower(progress)
    level, propagates = logger.level, logger.propagate
    shown = logger.isEnabledFor(logging.INFO)
    logger.addHandler(follower)
    logger.setLevel(logging.DEBUG)
    # Other handlers would show lines that nobody asked for.
    logger.propagate = propagates and shown
    try:
        yield
    finally:
        logger.removeHandler(follower)
        logger.setLevel(level)
        logger.propagate = propagates
