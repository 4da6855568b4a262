"""An adapter as it was found, whatever its layout: matrices, scales, how it was trained, and what may not be shared."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from icarus_local.engine.adapter_file import TRAINED_UNKNOWN
from icarus_local.errors import AdapterError

Matrix = npt.NDArray[np.float32]

_KEY_OR_VALUE = re.compile(r"(^|\.)(k_proj|v_proj|key|value|k|v|wk|wv)$")
# A fused qkv_proj is let through here: `map_modules`, which knows the base, looks at its K and V rows.
_FUSED = re.compile(r"(^|\.)(c_attn|query_key_value|Wqkv|kv_proj|in_proj)$")
_MAX_LISTED = 6
ONLY_PLAIN = "Train a LoRA on Q, O and the MLP only (icarus-train does)"


@dataclass(frozen=True, eq=False)
class Module:
    """One adapted linear layer: update `scale * b @ a`.

    Attributes:
        name: as transformers names it, such as `model.layers.0.self_attn.q_proj`.
        a: float32 [rank, n_in]. b: float32 [n_out, rank].
        scale: of the update.
        tensors: names of a and b in the source's file.
    """

    name: str
    a: Matrix
    b: Matrix
    scale: float
    tensors: tuple[str, str]


@dataclass(frozen=True)
class Training:
    """How the adapter was trained, from `icarus_run.json`; empty strings where the file says nothing."""

    trained: str = TRAINED_UNKNOWN
    base_family_id: str = ""
    template_sha256: str = ""
    tokenizer_sha256: str = ""


@dataclass(frozen=True, eq=False)
class Source:
    """An adapter that passed every check which needs no base.

    Attributes:
        path: its folder. layout: "PEFT" or "MLX".
        base_model: the name of the base that it was trained on, or "".
        modules: in the file's order. training: what is known of it.
    """

    path: Path
    layout: str
    base_model: str
    modules: list[Module]
    training: Training

    @property
    def which_base(self) -> str:
        """What to do about a base that does not fit."""
        if self.base_model:
            return f"It was trained on {self.base_model}: give a GGUF of that model with --base"
        return "Give a GGUF of the model that it was trained on with --base"


def in_order(names: Iterable[str]) -> list[str]:
    """Names with their numbers counted, not spelt: layer 2 before layer 10. Files keep no order of their own."""
    return sorted(
        names, key=lambda name: [(int(part), "") if part.isdecimal() else (-1, part) for part in _split(name)]
    )


def _split(name: str) -> list[str]:
    return re.split(r"(\d{1,9})", name)


def is_key_or_value(module: str) -> bool:
    """Whether a module of its own projects keys or values."""
    return _KEY_OR_VALUE.search(module) is not None


def refuse_keys_and_values(path: Path, modules: Iterable[str]) -> None:
    """Refuses modules that write the shared cache.

    Raises:
        AdapterError: with the list, and the ways that are right.
    """
    wrong = [name for name in in_order(modules) if is_key_or_value(name) or _FUSED.search(name)]
    if wrong:
        more = f" and {len(wrong) - _MAX_LISTED} more" if len(wrong) > _MAX_LISTED else ""
        raise AdapterError(
            f"{path} adapts keys or values in {len(wrong)} modules: {', '.join(wrong[:_MAX_LISTED])}{more}. Every "
            "agent reads the K and V that the frozen base writes: over a shared cache this adapter is silently wrong",
            "Train an ICaRus adapter on the same data with icarus-train; or train a LoRA without K and V on the frozen "
            "base's cache (target_modules q_proj, o_proj, gate_proj, up_proj, down_proj); or give --drop-kv to leave "
            "them out and see what that costs",
        )


def check_matrices(path: Path, name: str, parts: dict[str, Matrix]) -> None:
    """Checks a module's matrices, by the names of their parts in the file.

    Raises:
        AdapterError: no matrix, empty, or with values that are not finite.
    """
    for part, values in parts.items():
        if values.ndim != 2 or 0 in values.shape:
            raise AdapterError(
                f"{path}: {part} of {name} has the shape {values.shape}, which is no matrix",
                "The file is damaged, or of a layer that is not linear: save or fetch it again",
            )
        if not np.isfinite(values).all():
            raise AdapterError(f"{path}: {part} of {name} holds values that are not finite", "Train it again")
