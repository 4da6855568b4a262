"""Which tensors a model must have, and how each becomes one of the GGUF file; nothing is read before all is checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from icarus_convert.hf_config import ModelConfig
from icarus_convert.hf_folder import HfFolder
from icarus_convert.hf_safetensors import STORAGE, StoredTensor
from icarus_convert.mapping import permute_rows
from icarus_local.engine.architecture import ARCHITECTURES
from icarus_local.errors import ModelFileError

Array = npt.NDArray[Any]
Kind = gguf.GGMLQuantizationType

OUTTYPES = {"f32": Kind.F32, "f16": Kind.F16, "bf16": Kind.BF16}
_DTYPES: dict[Any, np.dtype[Any]] = {Kind.F32: np.dtype("<f4"), Kind.F16: np.dtype("<f2"), Kind.BF16: np.dtype("<u2")}
_PIECE = 1 << 20  # values
_KINDS = {"F32": Kind.F32, "F16": Kind.F16, "BF16": Kind.BF16}
# Buffers that transformers computes itself and older files hold.
_HARMLESS = re.compile(r"(.*\.)?(rotary_emb\.(inv_freq|cos_cached|sin_cached)|attention\.(bias|masked_bias))")
_VISION = ("vision_tower.", "model.vision_tower.", "multi_modal_projector.", "model.multi_modal_projector.")


@dataclass(frozen=True)
class Planned:
    """One tensor of the GGUF file.

    Attributes:
        shape: in numpy's order. kind: its type in the file.
        make: reads and gives the values; bfloat16 as bits.
        bfloat16: whether `make` gives such bits.
    """

    name: str
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    make: Callable[[], Array]
    bfloat16: bool = False

    @property
    def n_bytes(self) -> int:
        """Bytes in the file."""
        return int(np.prod(self.shape)) * (4 if self.kind == Kind.F32 else 2)

    def encoded(self) -> Array:
        """The values as the file holds them; another type is made piece by piece.

        Raises:
            ModelFileError: a value is too large for F16.
        """
        values = self.make()
        if values.dtype == _DTYPES[self.kind] and self.bfloat16 == (self.kind == Kind.BF16):
            return values
        flat, stored = values.reshape(-1), np.empty(values.shape, _DTYPES[self.kind])
        into = stored.reshape(-1)
        for start in range(0, flat.size, _PIECE):
            into[start : start + _PIECE] = self._converted(flat[start : start + _PIECE])
        return stored

    def _converted(self, values: Array) -> Array:
        wide = widened(values, self.bfloat16)
        if self.kind == Kind.F32:
            return wide
        if self.kind == Kind.BF16:
            return np.asarray(gguf.quants.quantize(wide, Kind.BF16)).view(np.uint16)
        with np.errstate(over="ignore"):
            narrow = wide.astype(np.float16)
        if not np.array_equal(np.isfinite(narrow), np.isfinite(wide)):
            raise ModelFileError(f"{self.name} holds values too large for f16", "Give --outtype bf16 or f32")
        return narrow


def widened(values: Array, bfloat16: bool) -> npt.NDArray[np.float32]:
    """Values, or the bits of bfloat16, as float32."""
    return (values.astype(np.uint32) << 16).view(np.float32) if bfloat16 else values.astype(np.float32, copy=False)


def expected_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all tensors of the Hugging Face model but experts and head, in numpy's order."""
    yield f"{config.prefix}embed_tokens.weight", (config.n_vocab, config.n_embd)
    yield f"{config.prefix}norm.weight", (config.n_embd,)
    maps, norms = _maps(config), _norms(config)
    for layer in range(config.n_layer):
        prefix = f"{config.prefix}layers.{layer}."
        for name, width in norms.items():
            yield f"{prefix}{name}.weight", (width,)
        for name, shape in maps.items():
            yield f"{prefix}{name}.weight", shape
            if _has_bias(config, name):
                yield f"{prefix}{name}.bias", shape[:1]


def _maps(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Linear maps of a layer: (n_out, n_in)."""
    arch, d = ARCHITECTURES[config.arch], config.n_embd
    q, kv = config.n_head * config.head_dim, config.n_head_kv * config.head_dim
    maps: dict[str, tuple[int, int]] = {"self_attn.o_proj": (d, q)}
    if arch.fused:
        maps |= {"self_attn.qkv_proj": (q + 2 * kv, d), "mlp.gate_up_proj": (2 * config.n_ff, d)}
    else:
        maps |= {"self_attn.q_proj": (q, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d)}
    if arch.experts:
        maps["mlp.gate"] = (config.n_expert, d)
    else:
        maps["mlp.down_proj"] = (d, config.n_ff)
        if not arch.fused:
            maps |= {"mlp.gate_proj": (config.n_ff, d), "mlp.up_proj": (config.n_ff, d)}
    return maps


def _norms(config: ModelConfig) -> dict[str, int]:
    """Norms of a layer, with their widths."""
    arch, d = ARCHITECTURES[config.arch], config.n_embd
    norms = {"post_attention_layernorm": d}
    if arch.pre_norms:
        norms["input_layernorm"] = d
    if arch.post_norms:
        norms["post_feedforward_layernorm"] = d
        if arch.pre_norms:
            norms["pre_feedforward_layernorm"] = d
    if arch.qk_norm:
        heads = (config.n_head, config.n_head_kv) if arch.qk_norm == "full" else (1, 1)
        norms |= {f"self_attn.{x}_norm": n * config.head_dim for x, n in zip("qk", heads, strict=True)}
    return norms


def _has_bias(config: ModelConfig, linear: str) -> bool:
    part, name = linear.split(".")
    if config.arch == "qwen2":
        return name in ("q_proj", "k_proj", "v_proj")
    return config.attention_bias if part == "self_attn" else config.mlp_bias


def plan(folder: HfFolder, config: ModelConfig, outtype: str) -> list[Planned]:
    """All tensors of the file, in the order of the layers.

    Args:
        outtype: "f32", "f16", "bf16", or "auto" for each matrix's own type.

    Raises:
        ModelFileError: a tensor is missing, of another shape or type, or has no place.
    """
    planner = _Planner(folder, config, outtype)
    planned = [Planned(name, values.shape, Kind.F32, _constant(values)) for name, values in config.rope.factors]
    for name, shape in expected_tensors(config):
        stored = planner.take(name, shape)
        planned.append(planner.one(name, stored))
        if name == f"{config.prefix}embed_tokens.weight":
            planned += planner.head(stored)
    for layer in range(config.n_layer if config.n_expert else 0):
        planned += planner.experts(layer)
    planner.refuse_what_is_left()
    return planned


_ARCHITECTURES = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name in ARCHITECTURES}


class _Planner:
    """Takes the folder's tensors one by one and says what becomes of each."""

    def __init__(self, folder: HfFolder, config: ModelConfig, outtype: str) -> None:
        self._folder, self._config, self._outtype = folder, config, outtype
        self._left = dict(folder.tensors)
        self._names = gguf.get_tensor_name_map(_ARCHITECTURES[config.arch], config.n_layer)

    def take(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """A tensor that must be there, of that shape."""
        stored = self._left.pop(name, None)
        if stored is None:
            raise ModelFileError(f"{self._folder.path} lacks the tensor {name}", "Fetch the model again, whole")
        if stored.shape != shape:
            raise ModelFileError(
                f"{stored.path}: tensor {name} has the shape {list(stored.shape)}, and by config.json {list(shape)}"
            )
        if stored.dtype not in STORAGE:
            raise ModelFileError(
                f"{stored.path}: tensor {name} is of the type {stored.dtype}; F32, F16 and BF16 can be converted"
            )
        return stored

    def one(self, name: str, stored: StoredTensor) -> Planned:
        """A tensor that becomes one of the file; `name` is the one that transformers knows it by."""
        config = self._config
        target = self._target(name.replace(config.prefix, "model.", 1))
        kind, bfloat16 = self._kind(target, stored), stored.dtype == "BF16"
        if config.arch in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            # Gemma multiplies by 1 + weight.
            return Planned(target, stored.shape, Kind.F32, _one_more(stored))
        for linear, n_head in ((".q_proj.", config.n_head), (".k_proj.", config.n_head_kv)):
            if config.permuted and linear in name:
                return Planned(target, stored.shape, kind, _permuted(stored, n_head), bfloat16)
        return Planned(target, stored.shape, kind, stored.read, bfloat16)

    def head(self, embedding: StoredTensor) -> list[Planned]:
        """The output head, where it is not the token embedding."""
        tied, outside = self._config.tied, self._config.prefix == "language_model.model."
        name = "language_model.lm_head.weight" if outside else "lm_head.weight"
        if name not in self._left:
            if not tied:
                raise ModelFileError(
                    f"{self._folder.path} lacks the tensor {name}, and config.json does not tie the head"
                )
            return []
        output = self.take(name, embedding.shape)
        if not tied:
            return [self.one("lm_head.weight", output)]
        if not _same(embedding, output):
            raise ModelFileError(
                f"{output.path} holds a head of its own ({name}), and config.json ties it to the embedding"
            )
        return []

    def experts(self, layer: int) -> Iterator[Planned]:
        """A tensor for each matrix of all experts of a layer; files hold them one by one, or stacked already."""
        config = self._config
        n, d, ff = config.n_expert, config.n_embd, config.n_ff_expert
        prefix = f"{config.prefix}layers.{layer}.mlp.experts."
        shapes = {"gate_proj": (ff, d), "up_proj": (ff, d), "down_proj": (d, ff)}
        fused = f"{prefix}gate_up_proj" in self._left
        both = self.take(f"{prefix}gate_up_proj", (n, 2 * ff, d)) if fused else None
        for matrix, shape in shapes.items():
            if both is None:
                parts = [self.take(f"{prefix}{expert}.{matrix}.weight", shape) for expert in range(n)]
                if len({part.dtype for part in parts}) > 1:
                    raise ModelFileError(f"{self._folder.path}: the experts of layer {layer} are of different types")
                stored, make = parts[0], _stacked(parts)
            elif matrix == "down_proj":
                stored = self.take(f"{prefix}down_proj", (n, *shape))
                make = stored.read
            else:
                stored, make = both, _part(both, slice(0, ff) if matrix == "gate_proj" else slice(ff, 2 * ff))
            target = self._target(f"model.layers.{layer}.mlp.experts.{matrix}.weight")
            yield Planned(target, (n, *shape), self._kind(target, stored), make, stored.dtype == "BF16")

    def refuse_what_is_left(self) -> None:
        """Buffers that say nothing are passed over, and so are the eyes of a model whose text part is wanted."""
        inner = self._config.prefix != "model."
        for name, tensor in self._left.items():
            if not _HARMLESS.fullmatch(name) and not (inner and name.startswith(_VISION)):
                raise ModelFileError(
                    f"{tensor.path} holds the tensor {name}, which has no place in {self._config.arch}",
                    "It is not a plain model of that architecture",
                )

    def _target(self, name: str) -> str:
        target = self._names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise ModelFileError(f"llama.cpp has no name for the tensor {name} in {self._config.arch}")
        return str(target)

    def _kind(self, target: str, stored: StoredTensor) -> gguf.GGMLQuantizationType:
        """llama.cpp's rule: vectors and the router of experts are always F32."""
        if len(stored.shape) == 1 or target.endswith("ffn_gate_inp.weight"):
            return Kind.F32
        return _KINDS[stored.dtype] if self._outtype == "auto" else OUTTYPES[self._outtype]


def _same(one: StoredTensor, other: StoredTensor) -> bool:
    return one.dtype == other.dtype and bool(np.array_equal(one.read().view(np.uint8), other.read().view(np.uint8)))


def _constant(values: Array) -> Callable[[], Array]:
    return lambda: values


def _permuted(stored: StoredTensor, n_head: int) -> Callable[[], Array]:
    return lambda: permute_rows(stored.read(), n_head)


def _one_more(stored: StoredTensor) -> Callable[[], Array]:
    return lambda: widened(stored.read(), stored.dtype == "BF16") + np.float32(1)


def _part(stored: StoredTensor, rows: slice) -> Callable[[], Array]:
    return lambda: np.ascontiguousarray(stored.read()[:, rows])


def _stacked(parts: list[StoredTensor]) -> Callable[[], Array]:
    def make() -> Array:
        # One expert at a time beside the stack.
        stack = np.empty((len(parts), *parts[0].shape), STORAGE[parts[0].dtype])
        for i, part in enumerate(parts):
            stack[i] = part.read()
        return stack

    return make
