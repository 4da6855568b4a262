"""From PEFT's modules to a GGUF LoRA: tensor names, row order, folded scales."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from icarus_convert.base import Base
from icarus_convert.peft_folder import PeftFolder, PeftModule
from icarus_local.engine.adapter_file import LoraPair
from icarus_local.engine.rope import ROPE_NORMAL
from icarus_local.errors import AdapterError

_MODULE = re.compile(r"model\.layers\.(?P<layer>\d{1,6})\.(?P<part>self_attn|mlp)\.(?P<linear>\w+)")
_SEPARATE = {
    "self_attn.q_proj": "attn_q",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_FUSED = {
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_PLAIN = "Train a LoRA on Q, O and the MLP only (icarus-train does)"


def permute_rows(rows: npt.NDArray[np.float32], n_head: int) -> npt.NDArray[np.float32]:
    """Rows [n_head * d, ...] of Q in the order of a `llama` GGUF: per head, the two halves interleaved.

    convert_hf_to_gguf.py, LlamaModel.permute: Hugging Face rotates halves, ggml's normal rope neighbours.
    """
    halves = rows.reshape(n_head, 2, rows.shape[0] // n_head // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def map_modules(folder: PeftFolder, base: Base) -> dict[str, LoraPair]:
    """The pairs of all modules by base tensor name, scale folded into b, in the order of the layers.

    Raises:
        AdapterError: a module that has no place in the base, or whose shape does not fit.
    """
    pairs = {}
    for module in folder.modules:
        tensor = _tensor_name(folder, module, base)
        if tensor in pairs:
            raise AdapterError(f"{folder.path} adapts {tensor} twice")
        place = base.places[tensor]
        if module.a.shape[1] != place.n_in or module.b.shape[0] != place.n_out:
            raise AdapterError(
                f"{folder.path}: {module.name} goes from {module.a.shape[1]} to {module.b.shape[0]}, and {tensor} of "
                f"{base.path} from {place.n_in} to {place.n_out}",
                _which_base(folder),
            )
        if module.b[place.frozen].any():
            raise AdapterError(
                f"{folder.path}: {module.name} changes rows of K or V: every agent reads those that the base alone "
                "writes, so the shared cache would be wrong",
                "Train an ICaRus adapter on the same data with icarus-train",
            )
        pairs[tensor] = LoraPair(module.a, _rows(folder, module, tensor, base))
    return {tensor: pairs[tensor] for tensor in sorted(pairs, key=lambda name: (int(name.split(".")[1]), name))}


def _which_base(folder: PeftFolder) -> str:
    wanted = folder.config.base_model
    return f"It was trained on {wanted}: give that base" if wanted else "Give the base that it was trained on"


def _tensor_name(folder: PeftFolder, module: PeftModule, base: Base) -> str:
    match = _MODULE.fullmatch(module.name)
    names = _FUSED if base.hp.arch.fused else _SEPARATE
    target = names.get(f"{match['part']}.{match['linear']}") if match else None
    if match is None or target is None:
        raise AdapterError(f"{folder.path} adapts {module.name}: {_why_no_place(module.name, base.hp.name)}", _PLAIN)
    layer = int(match["layer"])
    tensor = f"blk.{layer}.{target}.weight"
    if tensor not in base.places:
        raise AdapterError(
            f"{folder.path} adapts {module.name}, and {base.path} has {base.hp.n_layer} layers and no {tensor}",
            _which_base(folder),
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


def _rows(folder: PeftFolder, module: PeftModule, tensor: str, base: Base) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        rows = module.b * np.float32(module.scale)
    if not np.isfinite(rows).all():
        raise AdapterError(f"{folder.path}: {module.name} times its scale of {module.scale} is not finite")
    if tensor.endswith(".attn_q.weight") and base.hp.arch.rope_kind == ROPE_NORMAL:
        return permute_rows(rows, base.hp.n_head)
    return rows
