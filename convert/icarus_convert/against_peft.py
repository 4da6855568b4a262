"""A converted file against its source: its numbers are the source's, and its logits ICaRus's two streams in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from icarus_convert.base import read_base
from icarus_convert.find_source import choose, read_source
from icarus_convert.mapping import map_modules
from icarus_convert.probe import Logits, distance
from icarus_convert.source import Matrix
from icarus_local.engine.adapter_file import TYPE_Q8_0, Adapter, LoraPair
from icarus_local.errors import AdapterError, IcarusError
from icarus_local.ggml.gguf import GgufFile
from icarus_local.ggml.library import TYPE_F16

if TYPE_CHECKING:
    from icarus_models.adapter_logits import ReferenceLogits

# Of F32 weights and an F32 cache; a type that rounds activations moves the base itself, which is then the measure.
BOUND = 1e-3
_OF_THE_BASE = 3.0
# Largest rounding, as a share of the value (F16), or of the largest in its block of 32 (Q8_0, whose scale is F16 too).
_ROUNDING = {TYPE_F16: 2.0**-11, TYPE_Q8_0: 1 / 254 + 2.0**-11}
_F16_SMALLEST = 2.0**-24


@dataclass(frozen=True, eq=False)
class Reference:
    """What a file is held to: the base for PyTorch, the PEFT folder, and its pairs in F32 as they belong in the base.

    K and V are left out: two streams do not read those of an adapter.
    """

    base: Path
    folder: Path
    pairs: dict[str, LoraPair]

    @classmethod
    def ready(cls, peft: Path, adapter: str | None, torch_base: Path, base: Path) -> Reference:
        """Checks that a comparison will be possible, before anything is loaded.

        Raises:
            IcarusError: torch is not installed, or the folder cannot be read.
        """
        folder = choose(peft, adapter)
        try:
            import icarus_models.adapter_logits  # noqa: F401
        except ImportError as error:
            raise IcarusError(
                f"--peft compares with PyTorch, which is not installed ({error.name})",
                "pip install 'icarus-local[train]'",
            ) from error
        source = read_source(folder, keep_kv=True)
        if source.layout != "PEFT":
            raise AdapterError(f"{folder} is of the layout {source.layout}: PEFT cannot load it", "Leave --peft out")
        return cls(torch_base, folder, map_modules(source, read_base(base), "drop").pairs)

    def logits(self, tokens: list[int]) -> ReferenceLogits:
        """PyTorch's logits of the text."""
        from icarus_models.adapter_logits import adapter_logits

        return adapter_logits(self.base, self.folder, tokens)


def same_numbers(adapter: Adapter, pairs: dict[str, LoraPair]) -> tuple[str, bool]:
    """Compares every matrix with the source's: what was seen, and whether one is further off than its type rounds."""
    if adapter.pairs.keys() != pairs.keys():
        odd = min(adapter.pairs.keys() ^ pairs.keys())
        return f"the file and the source do not adapt the same weights: {odd}", True
    with GgufFile(adapter.path) as file:
        types = {name: info.type for name, info in file.tensors.items()}
    worst, where = 0.0, ""
    for tensor, wanted in pairs.items():
        for part in ("a", "b"):
            values, exact = getattr(adapter.pairs[tensor], part), getattr(wanted, part)
            name = f"{tensor}.lora_{part}"
            excess = float((np.abs(values - exact) - _allowed(exact, types[name])).max())
            if excess > worst:
                worst, where = excess, name
    if where:
        return f"{where} differs by {worst:.3g} more than its type rounds", True
    return f"{2 * len(pairs)} matrices are the source's, to the rounding of their types", False


def _allowed(exact: Matrix, kind: int) -> npt.NDArray[np.float64]:
    """How far each value may be off. One rounding of F32 more: alpha/r may be applied in another order."""
    size: npt.NDArray[np.float64] = np.abs(exact).astype(np.float64)
    allowed: npt.NDArray[np.float64] = size * 2.0**-22
    if kind == TYPE_Q8_0:
        largest = size.reshape(size.shape[0], -1, 32).max(-1, keepdims=True)
        allowed += np.broadcast_to(largest, (*largest.shape[:2], 32)).reshape(size.shape) * _ROUNDING[kind]
    elif kind == TYPE_F16:
        allowed += np.maximum(size * _ROUNDING[kind], _F16_SMALLEST)
    elif kind != 0:
        allowed += size * 2.0**-8  # BF16
    return allowed


def held_to(
    reference: ReferenceLogits, alone: Logits, adapted: Logits, exact: Logits
) -> Iterator[tuple[str, str, bool]]:
    """Name, detail and failure of each comparison of the engine's logits with PyTorch's.

    Args:
        reference: PyTorch's. alone: the base's. adapted: the file's. exact: those of the source's numbers in F32.
    """
    if reference.base.shape != alone.shape:
        raise IcarusError(
            f"the reference has {reference.base.shape[1]} tokens, and the GGUF {alone.shape[1]}",
            "Give the model that the GGUF was made of with --hf-base",
        )
    floor, rounding = distance(reference.base, alone), distance(exact, adapted)
    bound = max(BOUND, _OF_THE_BASE * floor.largest)
    why = "" if bound == BOUND else f", {_OF_THE_BASE:g} times that of the base itself"
    yield "base against PyTorch", str(floor), False
    ours, other = distance(reference.two_stream, exact), distance(reference.ordinary, exact)
    if rounding.largest > 0:
        yield "rounding of its tensors", str(rounding), False
    file, more = distance(reference.two_stream, adapted), ", plus its rounding" if rounding.largest > 0 else ""
    failed = not (ours.largest <= bound and file.largest <= bound + rounding.largest)
    yield "two streams", f"{file if ours.largest <= bound else ours} (bound {bound:.3g}{why}{more})", failed
    detail = f"{other} (must be over {bound:.3g})"
    if not other.largest > bound:
        detail += ": this base rounds too much to tell the two apart; give an F32 GGUF of it"
    yield "not PEFT's ordinary forward", detail, not other.largest > bound
