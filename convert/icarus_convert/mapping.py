"""From modules as transformers names them to a GGUF LoRA: tensor names, row order, folded scales."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from icarus_convert.base import Base
from icarus_convert.source import ONLY_PLAIN, Matrix, Module, Source, is_key_or_value
from icarus_local.engine.adapter_file import LoraPair
from icarus_local.engine.rope import ROPE_NORMAL
from icarus_local.engine.weights import weight_table
from icarus_local.errors import AdapterError

# The text part of a model that sees, too.
_MODULE = re.compile(
    r"(?:model|model\.language_model|language_model\.model)\.layers\.(?P<layer>\d{1,6})\."
    r"(?P<part>self_attn|mlp)\.(?P<linear>\w+)"
)
_SEPARATE = {
    "self_attn.q_proj": "attn_q",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_KEYS_AND_VALUES = {"self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
_FUSED = {
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

# What happens to K and V: the adapter is refused, converted without them, or mapped whole (to measure what that costs).
KeysAndValues = Literal["refuse", "drop", "keep"]


@dataclass(frozen=True)
class PlanRow:
    """Where one module goes.

    Attributes:
        module, tensors: its name, and its matrices' names in the source.
        target: the base's tensor; "" where it is left out.
        n_in, n_out, rank: its sizes. scale: what is folded into lora_b.
        notes: what else happens to it.
    """

    module: str
    tensors: tuple[str, str]
    target: str
    n_in: int
    n_out: int
    rank: int
    scale: float
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Mapped:
    """An adapter in the base's terms.

    Attributes:
        pairs: by base tensor name, in the order of the layers, scale folded into b.
        plan: every module of the source.
        dropped: modules of K and V that were left out, such as "attn_k".
    """

    pairs: dict[str, LoraPair]
    plan: list[PlanRow]
    dropped: tuple[str, ...]


def permute_rows(rows: Matrix, n_head: int) -> Matrix:
    """Rows [n_head * d, ...] of Q in the order of a `llama` GGUF: per head, the two halves interleaved.

    convert_hf_to_gguf.py, LlamaModel.permute: Hugging Face rotates halves, ggml's normal rope neighbours.
    """
    halves = rows.reshape(n_head, 2, rows.shape[0] // n_head // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def map_modules(source: Source, base: Base, kv: KeysAndValues = "refuse") -> Mapped:
    """Every module in its place.

    Args:
        source: read with `keep_kv` where `kv` is not "refuse".
        base: what it is for.
        kv: what happens to K and V.

    Raises:
        AdapterError: a module that has no place in the base, or whose shape does not fit.
    """
    pairs: dict[str, LoraPair] = {}
    plan, dropped = [], set()
    for module in source.modules:
        tensor = _tensor_name(source, module, base)
        if tensor in pairs:
            raise AdapterError(f"{source.path} adapts {tensor} twice", "Save or fetch it again")
        _check_shape(source, module, tensor, base)
        notes: list[str] = []
        kind = tensor.split(".")[2]
        if kv == "drop" and is_key_or_value(module.name):
            dropped.add(kind)
            plan.append(_row(module, "", ("left out: K and V are the base's",)))
            continue
        b = module.b
        if tensor in base.places and b[base.places[tensor].frozen].any():
            if kv == "refuse":
                raise AdapterError(
                    f"{source.path}: {module.name} changes rows of K or V: every agent reads those that the base alone "
                    "writes, so the shared cache would be wrong",
                    "Train an ICaRus adapter on the same data with icarus-train; or give --drop-kv to leave them out "
                    "and see what that costs",
                )
            if kv == "drop":
                dropped.add(f"{kind}[k,v]")
                notes.append("rows of K and V set to 0")
                b = np.where(base.places[tensor].frozen[:, None], np.float32(0), b)
        rows, ordered = _rows(source, module, b, kind, base)
        pairs[tensor] = LoraPair(module.a, rows)
        plan.append(_row(module, tensor, (*notes, *ordered)))
    if kv == "drop" and not pairs:
        raise AdapterError(f"{source.path} adapts nothing but K and V: without them it is the base", ONLY_PLAIN)
    order = sorted(pairs, key=lambda name: (int(name.split(".")[1]), name))
    return Mapped({tensor: pairs[tensor] for tensor in order}, plan, tuple(sorted(dropped)))


def _row(module: Module, target: str, notes: tuple[str, ...]) -> PlanRow:
    rank, n_in = module.a.shape
    return PlanRow(module.name, module.tensors, target, n_in, module.b.shape[0], rank, module.scale, notes)


def _check_shape(source: Source, module: Module, tensor: str, base: Base) -> None:
    place = base.places.get(tensor)
    n_in, n_out = (place.n_in, place.n_out) if place else weight_table(base.hp)[tensor].shape[:2]
    if module.a.shape[1] != n_in or module.b.shape[0] != n_out:
        raise AdapterError(
            f"{source.path}: {module.name} goes from {module.a.shape[1]} to {module.b.shape[0]}, and {tensor} of "
            f"{base.path} from {n_in} to {n_out}",
            source.which_base,
        )


def _tensor_name(source: Source, module: Module, base: Base) -> str:
    match = _MODULE.fullmatch(module.name)
    names = _FUSED if base.hp.arch.fused else {**_SEPARATE, **_KEYS_AND_VALUES}
    target = names.get(f"{match['part']}.{match['linear']}") if match else None
    if match is None or target is None:
        raise AdapterError(
            f"{source.path} adapts {module.name}: {_why_no_place(module.name, base.hp.name)}", ONLY_PLAIN
        )
    layer = int(match["layer"])
    tensor = f"blk.{layer}.{target}.weight"
    if tensor not in base.places and (target not in _KEYS_AND_VALUES.values() or layer >= base.hp.n_layer):
        raise AdapterError(
            f"{source.path} adapts {module.name}, and {base.path} has {base.hp.n_layer} layers and no {tensor}",
            source.which_base,
        )
    return tensor


def _why_no_place(name: str, architecture: str) -> str:
    if "lm_head" in name:
        return "the output head is shared by all agents"
    if "embed" in name:
        return "every agent reads the base's embeddings, so the shared cache would be wrong"
    if "norm" in name:
        return "K and V are computed from the norms, so the shared cache would be wrong"
    if "expert" in name:
        return "experts are frozen"
    return f"no such module is known in the architecture {architecture}"


def _rows(source: Source, module: Module, b: Matrix, kind: str, base: Base) -> tuple[Matrix, list[str]]:
    """Rows of lora_b with the scale, in the file's order, and what was done to them."""
    with np.errstate(over="ignore"):
        rows = b * np.float32(module.scale)
    if not np.isfinite(rows).all():
        raise AdapterError(
            f"{source.path}: {module.name} times its scale of {module.scale} is not finite", "Train it again"
        )
    if base.hp.arch.rope_kind == ROPE_NORMAL and kind in ("attn_q", "attn_k"):
        n_head = base.hp.n_head if kind == "attn_q" else base.hp.n_head_kv
        return permute_rows(rows, n_head), ["rows in the order of ggml's rope"]
    return rows, []
