"""Rotary position embeddings as a GGUF file describes them and llama.cpp applies them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile

ROPE_NORMAL = 0  # GGML_ROPE_TYPE_NORMAL: pairs of neighbours, as `llama` GGUF files order the rows of Q and K
ROPE_NEOX = 2  # GGML_ROPE_TYPE_NEOX: a dimension of the first half with one of the second

FREQS = "rope_freqs.weight"
FACTORS_SHORT, FACTORS_LONG = "rope_factors_short.weight", "rope_factors_long.weight"

# YaRN's betas, which llama.cpp reads from the file for no architecture of this engine.
BETA_FAST, BETA_SLOW = 32.0, 1.0
_SCALING_TYPES = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class Rope:
    """Arguments of ggml_rope_ext.

    Attributes:
        factors: tensors of per-dimension factors: none, one, or (up to n_ctx_orig tokens of context, beyond).
    """

    kind: int
    dims: int
    n_ctx_orig: int
    freq_base: float
    freq_scale: float
    ext_factor: float
    attn_factor: float
    factors: tuple[str, ...]

    def factors_for(self, n_ctx: int) -> str | None:
        """The factors' tensor for a context of `n_ctx` tokens, as in llama.cpp its size decides, not what it holds."""
        if not self.factors:
            return None
        return self.factors[-1] if n_ctx > self.n_ctx_orig else self.factors[0]

    def for_windowed_layers(self, architecture: str, freq_base: float) -> Rope:
        """The rope of layers that see a window; `freq_base` is the file's own for them, or 0."""
        if architecture == "olmo2":
            return replace(self, freq_scale=1.0, ext_factor=0.0, attn_factor=1.0)
        if architecture == "gemma3":
            return replace(self, freq_base=freq_base or 10000.0, freq_scale=1.0)
        return replace(self, freq_base=freq_base or self.freq_base)


def read_rope(file: GgufFile, arch: str, kind: int, n_embd_head: int, n_ctx_train: int) -> Rope:
    """The rope of a model.

    Raises:
        ModelFileError: a scaling that is not known, or a value that no model has.
    """

    def number(key: str, default: float, low: float, high: float) -> float:
        full = f"{arch}.{key}"
        value = float(file.require(full, float)) if full in file else default
        if not low <= value <= high:
            raise ModelFileError(f"{file.path}: key {full} is {value}, which no model has")
        return value

    def integer(key: str, default: int, high: int) -> int:
        full = f"{arch}.{key}"
        value = int(file.require(full, int)) if full in file else default
        if not 1 <= value <= high:
            raise ModelFileError(f"{file.path}: key {full} is {value}, outside 1 to {high}")
        return value

    dims = integer("rope.dimension_count", n_embd_head, 1 << 14)
    if dims > n_embd_head or dims % 2:
        raise ModelFileError(f"{file.path}: rope over {dims} of {n_embd_head} dimensions is not possible")
    full = f"{arch}.rope.scaling.type"
    scaling = file.require(full, str) if full in file else None
    if scaling is not None and scaling not in _SCALING_TYPES:
        raise ModelFileError(
            f"{file.path} scales its rope by {scaling!r}; this version knows {', '.join(_SCALING_TYPES)} and Llama 3's"
        )
    # llama.cpp's rule: the factor may stand under its old name, and 0 is none.
    old = number("rope.scale_linear", 0.0, 0.0, 1e6)
    factor = number("rope.scaling.factor", old, 0.0, 1e6)
    if 0 < factor < 1e-6:
        raise ModelFileError(f"{file.path} scales its rope by {factor}, which no model has")
    _refuse_yarn_keys(file, arch, factor)
    freq_scale = 1.0 if scaling == "none" or not factor else float(np.float32(1) / np.float32(factor))
    yarn = scaling == "yarn"
    attn_factor = np.float32(_yarn_attn_factor(freq_scale) if yarn else 1.0)
    attn_factor *= np.float32(number("rope.scaling.attn_factor", 1.0, 1e-6, 1e6))
    return Rope(
        kind=kind,
        dims=dims,
        n_ctx_orig=integer("rope.scaling.original_context_length", n_ctx_train, 1 << 30),
        freq_base=number("rope.freq_base", 10000.0, 1e-6, 1e12),
        freq_scale=freq_scale,
        ext_factor=1.0 if yarn else 0.0,
        attn_factor=float(attn_factor),
        factors=_factors(file, arch, scaling),
    )


def _yarn_attn_factor(freq_scale: float) -> np.float32:
    """llama_context's: it cancels what ggml's rope multiplies by, so that only the file's own factor remains."""
    factor = np.float32(1) / np.float32(freq_scale)
    log = np.float32(np.log(np.float64(factor)))
    scale = np.float32(0.1) * log + np.float32(1)
    mscale = np.float32(1) if factor <= 1 else scale
    return np.float32(mscale * (np.float32(1) / (np.float32(1) + np.float32(0.1) * log)))


def _refuse_yarn_keys(file: GgufFile, arch: str, factor: float) -> None:
    # Converters write the magnitude that YaRN has by itself; it is not applied once more.
    own = 1.0 + 0.1 * math.log(factor) if factor > 1 else 1.0
    computed = {
        "beta_fast": (BETA_FAST,),
        "beta_slow": (BETA_SLOW,),
        "ext_factor": (1.0,),
        "attn_factor": (1.0, own),
        "log_multiplier": (0.0,),
    }
    for key, values in computed.items():
        full = f"{arch}.rope.scaling.yarn_{key}"
        found = file.require(full, float) if full in file else values[0]
        if not any(math.isclose(found, value, rel_tol=1e-5) for value in values):
            raise ModelFileError(
                f"{file.path} sets {full} to {found}, which llama.cpp does not compute for this architecture"
            )
    full = f"{arch}.rope.scaling.alpha"
    if full in file and file.require(full, float):
        raise ModelFileError(f"{file.path} scales its rope by an alpha, which this version does not compute")


def _factors(file: GgufFile, arch: str, scaling: str | None) -> tuple[str, ...]:
    """The factor tensors that the architecture reads, of those that the file has."""
    if arch == "phi3" or (arch in ("llama", "granite") and scaling == "longrope"):
        found = tuple(name for name in (FACTORS_SHORT, FACTORS_LONG) if name in file.tensors)
        if len(found) == 1:
            raise ModelFileError(f"{file.path} has {found[0]} and not its counterpart", "Convert the model again")
        return found
    if arch in ("llama", "granite") and FREQS in file.tensors:
        return (FREQS,)
    return ()
