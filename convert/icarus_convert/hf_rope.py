"""Rotary position embeddings as `config.json` describes them, for what the engine and llama.cpp compute alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icarus_convert.hf_values import Values
from icarus_local.engine.rope import BETA_FAST, BETA_SLOW
from icarus_local.errors import ModelFileError

# Keys that may stand beside those that a kind reads.
_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings", "factor"}
_MORE = {
    "default": set[str](),
    "linear": set[str](),
    "yarn": {"attention_factor", "attn_factor", "beta_fast", "beta_slow", "truncate", "finetuned"},
    "llama3": {"low_freq_factor", "high_freq_factor"},
    "longrope": {"short_factor", "long_factor", "attention_factor"},
}
_KINDS = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "qwen3moe", "granite", "olmo2"), ("default", "linear", "yarn")),
    "gemma2": ("default",),
    "gemma3": ("default", "linear"),
    "phi3": ("default", "longrope"),
}
# llama.cpp reads a tensor of factors in these alone.
_LLAMA3 = ("llama", "granite")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """A model's rope.

    Attributes:
        kind: "default", "linear", "yarn", "llama3" or "longrope".
        original: tokens of context that it was trained with before it was scaled.
        partial: the part of a head that turns.
        attention_factor: what longrope multiplies by.
        yarn: attention factor and betas, where the file names them.
        theta_windowed: the base of layers that see a window, where they have their own; else None.
        factors: of each dimension pair: (name, values) as tensors of the GGUF file.
    """

    kind: str
    theta: float
    factor: float
    original: int
    partial: float
    attention_factor: float
    yarn: dict[str, float]
    theta_windowed: float | None
    factors: tuple[tuple[str, npt.NDArray[np.float32]], ...]


def read_rope(values: Values, arch: str, n_ctx: int, head_dim: int) -> RopeConfig:
    """The rope of a model, from `rope_parameters` or from `rope_theta` and `rope_scaling` as older files have it.

    Raises:
        ModelFileError: a kind or a parameter that is not computed, or a value that no model has.
    """
    whole = values.section("rope_parameters") or values.section("rope_scaling")
    rope, windowed = whole, None
    if "full_attention" in whole or "sliding_attention" in whole:
        rope, windowed = whole.section("full_attention"), whole.section("sliding_attention")
    default_theta = 1e6 if arch == "gemma3" else 10000.0
    theta = rope.number("rope_theta", values.number("rope_theta", default_theta))
    kind = rope.text("rope_type", rope.text("type", "default")).lower()
    kind = {"su": "longrope", "none": "default"}.get(kind, kind)
    known = (*_KINDS[arch], *(("llama3",) if arch in _LLAMA3 else ()))
    if kind not in known:
        raise ModelFileError(f"{values.path} has a rope of the kind {kind!r}; {arch} has {', '.join(known)} here")
    rope.refuse_others(_COMMON | _MORE[kind], f"a rope of the kind {kind}")
    original = rope.integer(
        "original_max_position_embeddings",
        values.integer("original_max_position_embeddings", 4096 if arch == "phi3" else n_ctx, high=1 << 30),
        high=1 << 30,
    )
    partial = rope.number("partial_rotary_factor", values.number("partial_rotary_factor", 1.0))
    if partial != 1.0 and (arch != "phi3" or partial > 1 or round(head_dim * partial) % 2):
        raise ModelFileError(f"{values.path}: partial_rotary_factor is {partial}, which {arch} is not computed with")
    factor = 1.0 if kind in ("default", "longrope") else rope.number("factor", None, low=1.0, high=1e6)
    factors: tuple[tuple[str, npt.NDArray[np.float32]], ...] = ()
    attention_factor = 1.0
    if kind == "llama3":
        factors = (("rope_freqs.weight", _llama3(rope, theta, factor, original, head_dim)),)
    elif kind == "longrope":
        factors = _longrope(rope, int(head_dim * partial) // 2)
        attention_factor = rope.number("attention_factor", _longrope_factor(n_ctx, original))
    return RopeConfig(
        kind=kind,
        theta=theta,
        factor=factor,
        original=original,
        partial=partial,
        attention_factor=attention_factor,
        yarn=_yarn(rope, factor) if kind == "yarn" else {},
        theta_windowed=_windowed(values, windowed, arch),
        factors=factors,
    )


def _windowed(values: Values, windowed: Values | None, arch: str) -> float | None:
    if windowed is None:
        return values.number("rope_local_base_freq", 10000.0) if arch == "gemma3" else None
    if windowed.text("rope_type", "default") != "default":
        raise ModelFileError(f"{values.path} scales the rope of layers that see a window, which is not computed")
    windowed.refuse_others(_COMMON, "the rope of layers that see a window")
    return windowed.number("rope_theta", 10000.0)


def _yarn(rope: Values, factor: float) -> dict[str, float]:
    """YaRN's parameters that the file names: llama.cpp takes the usual ones for these architectures, and no others."""
    own = 1.0 + 0.1 * math.log(factor)
    usual = {"attention_factor": own, "attn_factor": own, "beta_fast": BETA_FAST, "beta_slow": BETA_SLOW}
    found = {}
    for key, value in usual.items():
        if rope.get(key) is None:
            continue
        found[key] = rope.number(key, None)
        if not math.isclose(found[key], value, rel_tol=1e-5):
            raise ModelFileError(f"{rope.path}: YaRN's {key} is {found[key]}; only the usual {value:g} is computed")
    if rope.flag("truncate", True) is not True:
        raise ModelFileError(f"{rope.path}: YaRN without truncate is not computed")
    return found


def _llama3(rope: Values, theta: float, factor: float, original: int, dims: int) -> npt.NDArray[np.float32]:
    """What Llama 3 divides each frequency by, with the float32 roundings of llama.cpp's converter.

    torch divides a number by a tensor as its reciprocal times the number, and its powers are those of float64, rounded,
    but for a rare last bit. Adapters are bound to the very bits.
    """
    low, high = rope.number("low_freq_factor", None), rope.number("high_freq_factor", None)
    if not low < high:
        raise ModelFileError(f"{rope.path}: low_freq_factor {low} is not below high_freq_factor {high}")
    one = np.float32(1)
    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    frequencies = one / np.power(float(theta), exponents.astype(np.float64)).astype(np.float32)
    lengths = one / frequencies * np.float32(2 * math.pi)
    smooth = (one / lengths * np.float32(original) - np.float32(low)) / np.float32(high - low)
    between = one / ((one - smooth) / np.float32(factor) + smooth)
    scaled = np.where(lengths > original / low, np.float32(factor), between)
    return np.where(lengths < original / high, one, scaled).astype(np.float32)


def _longrope(rope: Values, n: int) -> tuple[tuple[str, npt.NDArray[np.float32]], ...]:
    found = []
    for which in ("long", "short"):
        values = rope.get(f"{which}_factor")
        if not isinstance(values, list) or len(values) != n:
            raise ModelFileError(f"{rope.path}: {which}_factor is no list of {n} factors")
        if not all(type(value) in (int, float) and 0 < value < 1e6 for value in values):
            raise ModelFileError(f"{rope.path}: {which}_factor holds a value that no model has")
        found.append((f"rope_factors_{which}.weight", np.array(values, np.float32)))
    return tuple(found)


def _longrope_factor(n_ctx: int, original: int) -> float:
    scale = n_ctx / original
    if scale <= 1:
        return 1.0
    return math.sqrt(1 + math.log(scale) / math.log(original)) if original > 1 else 1.0
