"""What each architecture switches on in the one graph, and a model's hyperparameters as its GGUF file gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from icarus_local.engine.rope import ROPE_NEOX, ROPE_NORMAL, Rope, read_rope
from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile

_QKV_BIASES = ("attn_q", "attn_k", "attn_v")
_ALL_BIASES = (*_QKV_BIASES, "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one architecture of llama.cpp differs from the plain Llama (src/models/*.cpp).

    Attributes:
        rope_kind: which dimensions of a head turn together.
        pre_norms: attention and MLP read normed states; else (OLMo 2) the states themselves.
        post_norms: what attention and MLP give is normed before it is added.
        qk_norm: Q and K are normed over each "head", over their "full" width, or not at all ("").
        activation: "silu" or "gelu", gated.
        scaled_embeddings: embeddings are multiplied by sqrt(n_embd).
        scaled_q: the attention scale is applied to Q, not in the softmax.
        fused: Q, K and V are one tensor in the file, gate and up another.
        experts: the MLP is a mixture of experts.
        biases: linear maps that may have one.
        attn_softcap, logit_softcap: defaults of the soft caps; 0 for none.
        window_period: of each so many layers the last sees everything, the others a window; 0 for none.
        default_window: where the file does not say.
        keys: keys of the file that change the function and are computed; all others of NEUTRAL must be neutral.
    """

    rope_kind: int = ROPE_NEOX
    pre_norms: bool = True
    post_norms: bool = False
    qk_norm: str = ""
    activation: str = "silu"
    scaled_embeddings: bool = False
    scaled_q: bool = False
    fused: bool = False
    experts: bool = False
    biases: tuple[str, ...] = _QKV_BIASES
    attn_softcap: float = 0.0
    logit_softcap: float = 0.0
    window_period: int = 0
    default_window: int = 0
    keys: tuple[str, ...] = ()


_WINDOW_KEYS = ("attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa")
_EXPERT_KEYS = ("expert_count", "expert_used_count", "expert_feed_forward_length")
_GRANITE_KEYS = ("attention.scale", "logit_scale", "residual_scale", "embedding_scale", "rope.scaling.finetuned")

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(rope_kind=ROPE_NORMAL, biases=_ALL_BIASES),
    "qwen2": Architecture(biases=(*_QKV_BIASES, "output")),
    "qwen3": Architecture(qk_norm="head"),
    "qwen3moe": Architecture(qk_norm="head", experts=True, keys=_EXPERT_KEYS),
    "gemma2": Architecture(
        post_norms=True,
        activation="gelu",
        scaled_embeddings=True,
        scaled_q=True,
        attn_softcap=50.0,
        logit_softcap=30.0,
        window_period=2,
        default_window=4096,
        keys=(*_WINDOW_KEYS, "attn_logit_softcapping", "final_logit_softcapping"),
    ),
    "gemma3": Architecture(
        post_norms=True,
        qk_norm="head",
        activation="gelu",
        scaled_embeddings=True,
        scaled_q=True,
        window_period=6,
        keys=(*_WINDOW_KEYS, "final_logit_softcapping"),
    ),
    # llama.cpp does not apply Phi-3's window, and so neither does this graph: `notices` says so.
    "phi3": Architecture(scaled_q=True, fused=True, keys=("attention.sliding_window",)),
    "granite": Architecture(rope_kind=ROPE_NORMAL, biases=_ALL_BIASES, keys=_GRANITE_KEYS),
    "olmo2": Architecture(pre_norms=False, post_norms=True, qk_norm="full", window_period=4, keys=_WINDOW_KEYS),
}

# Keys that change what a model computes, with the values that change nothing (llama.cpp's defaults).
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.clamp_kqv": (0.0,),
    "attention.scale": (0.0,),
    "attention.sliding_window": (0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.causal": (True,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0,),
    "residual_scale": (0.0,),
    "embedding_scale": (0.0,),
    "expert_count": (0,),
    "expert_group_count": (0, 1),
    "expert_weights_scale": (0.0, 1.0),
    "expert_weights_norm": (True,),
    "expert_gating_func": (0, 1),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
    "use_parallel_residual": (False,),
    "swin_norm": (False,),
    "deepstack_mapping": (),
}


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """What the graph needs to know of a model; names as in llama.cpp, scales 0 where they do not apply."""

    name: str
    arch: Architecture
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_embd_head: int
    n_vocab: int
    n_ctx_train: int
    norm_eps: float
    rope: Rope
    attention_scale: float
    attn_softcap: float
    logit_softcap: float
    logit_scale: float
    residual_scale: float
    embedding_scale: float
    window: int
    windowed: tuple[bool, ...]
    rope_windowed: Rope
    n_expert: int
    n_expert_used: int

    @property
    def n_embd_q(self) -> int:
        """Width of Q for one token."""
        return self.n_head * self.n_embd_head

    @property
    def n_embd_kv(self) -> int:
        """Width of K and of V for one token in one layer."""
        return self.n_head_kv * self.n_embd_head

    def rope_of(self, layer: int) -> Rope:
        """The rope of a layer: those that see a window may have their own."""
        return self.rope_windowed if self.windowed[layer] else self.rope


class _Keys:
    """Checked reading of one file's keys under its architecture's prefix."""

    def __init__(self, file: GgufFile, arch: str) -> None:
        self._file, self._prefix = file, f"{arch}."

    def raw(self, key: str) -> Any:
        return self._file.value(self._prefix + key)

    def _one(self, key: str, kind: type, default: float | None) -> Any:
        full = self._prefix + key
        if isinstance(self._file.value(full), np.ndarray | list):
            # llama.cpp takes a list for some keys.
            raise ModelFileError(
                f"{self._file.path}: key {full} has a value for each layer, which is not computed here"
            )
        return default if default is not None and full not in self._file else self._file.require(full, kind)

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = 1 << 24) -> int:
        full, value = self._prefix + key, self._one(key, int, default)
        if not low <= value <= high:
            raise ModelFileError(f"{self._file.path}: key {full} is {value}, outside {low} to {high}")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        full, value = self._prefix + key, self._one(key, float, default)
        if value != default and not 0 < value < 1e12:
            raise ModelFileError(f"{self._file.path}: key {full} is {value}, which no model has")
        return float(value)


def read_hyperparameters(file: GgufFile) -> Hyperparameters:
    """The hyperparameters of a base.

    Raises:
        ModelFileError: an adapter, an architecture or a key that this graph does not compute, or a value that no model
            has.
    """
    if str(file.value("general.type")) == "adapter":
        raise ModelFileError(f"{file.path} is a LoRA adapter, not a base model", "Give the base with --base")
    n_parts = file.value("split.count")
    if isinstance(n_parts, int) and n_parts > 1:
        raise ModelFileError(
            f"{file.path} is one of the {n_parts} files of a model", "Join them with llama-gguf-split --merge"
        )
    name = file.require("general.architecture", str)
    arch = ARCHITECTURES.get(name)
    if arch is None:
        raise ModelFileError(
            f"{file.path} is of the architecture {name!r}; this version runs {', '.join(ARCHITECTURES)}",
            "Use a base of one of these",
        )
    keys = _Keys(file, name)
    n_embd = keys.integer("embedding_length")
    n_head = keys.integer("attention.head_count", high=4096)
    n_head_kv = keys.integer("attention.head_count_kv", default=n_head, high=4096)
    n_embd_head = keys.integer("attention.key_length", default=max(1, n_embd // n_head), high=1 << 14)
    _refuse_what_is_not_computed(file, name, arch, n_embd_head)
    if n_head % n_head_kv:
        raise ModelFileError(f"{file.path}: {n_head} heads over {n_head_kv} KV heads do not divide evenly")
    n_layer = keys.integer("block_count", high=4096)
    n_ctx_train = keys.integer("context_length", high=1 << 30)
    n_expert = keys.integer("expert_count", high=512) if arch.experts else 0
    rope = read_rope(file, name, arch.rope_kind, n_embd_head, n_ctx_train)
    window, windowed = _windows(file, keys, arch, n_layer)
    return Hyperparameters(
        name=name,
        arch=arch,
        n_layer=n_layer,
        n_embd=n_embd,
        n_ff=_n_ff(file, keys, arch),
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_embd_head=n_embd_head,
        n_vocab=_n_vocab(file),
        n_ctx_train=n_ctx_train,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope=rope,
        attention_scale=_attention_scale(keys, (name, n_layer), n_embd, n_head, n_embd_head),
        attn_softcap=keys.number("attn_logit_softcapping", arch.attn_softcap),
        logit_softcap=keys.number("final_logit_softcapping", arch.logit_softcap),
        logit_scale=keys.number("logit_scale") if name == "granite" else 0.0,
        residual_scale=keys.number("residual_scale", 0.0),
        embedding_scale=float(np.sqrt(np.float32(n_embd)))
        if arch.scaled_embeddings
        else keys.number("embedding_scale", 0.0),
        window=window,
        windowed=windowed,
        rope_windowed=rope.for_windowed_layers(name, keys.number("rope.freq_base_swa", 0.0)),
        n_expert=n_expert,
        n_expert_used=keys.integer("expert_used_count", high=n_expert) if arch.experts else 0,
    )


def _n_ff(file: GgufFile, keys: _Keys, arch: Architecture) -> int:
    """Width of the MLP, or of one expert."""
    if not arch.experts:
        return keys.integer("feed_forward_length")
    if keys.raw("expert_feed_forward_length") is not None:
        return keys.integer("expert_feed_forward_length")
    n_ff, used = keys.integer("feed_forward_length"), keys.integer("expert_used_count", high=512)
    if n_ff < used:
        raise ModelFileError(f"{file.path}: a width of {n_ff} over {used} experts is not possible")
    return n_ff // used


def _n_vocab(file: GgufFile) -> int:
    tokens = file.tensors.get("token_embd.weight")
    if tokens is None or len(tokens.shape) != 2:
        raise ModelFileError(f"{file.path} lacks the tensor token_embd.weight", "Convert the model again")
    n_texts = file.array_length("tokenizer.ggml.tokens")
    if n_texts != tokens.shape[1]:
        raise ModelFileError(
            f"{file.path} has {n_texts} token texts and {tokens.shape[1]} embeddings: it cannot be talked to",
            "Convert the model again, with its tokenizer",
        )
    return int(tokens.shape[1])


def _attention_scale(keys: _Keys, model: tuple[str, int], n_embd: int, n_head: int, n_embd_head: int) -> float:
    """In float32, as llama.cpp computes it: another rounding would be other bits."""
    width = n_embd_head
    if model in (("gemma2", 46), ("gemma3", 62)):
        width = max(1, n_embd // n_head)  # the 27B models, which llama.cpp tells by their layers
    own = float(np.float32(1) / np.sqrt(np.float32(width)))
    return keys.number("attention.scale", 0.0) or own


def _windows(file: GgufFile, keys: _Keys, arch: Architecture, n_layer: int) -> tuple[int, tuple[bool, ...]]:
    """The window in tokens, and which layers see no further: by the file's pattern, or the architecture's period."""
    everything = (False,) * n_layer
    if not arch.window_period:
        return 0, everything
    # Where llama.cpp has a default, it takes a window of 0 for one that sees nothing.
    low = 1 if arch.default_window else 0
    window = keys.integer("attention.sliding_window", default=arch.default_window, low=low, high=1 << 30)
    if not window:
        return 0, everything
    pattern = keys.raw("attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray | list):
        if len(pattern) != n_layer:
            raise ModelFileError(f"{file.path}: the sliding window pattern is for {len(pattern)} of {n_layer} layers")
        if isinstance(pattern, list) or pattern.dtype.kind not in "biu":
            raise ModelFileError(f"{file.path}: the sliding window pattern is of no flags")
        return window, tuple(bool(flag) for flag in pattern)
    period = arch.window_period
    if pattern is not None:
        period = keys.integer("attention.sliding_window_pattern", low=0, high=4096)
    return window, tuple(period == 0 or layer % period < period - 1 for layer in range(n_layer))


def _refuse_what_is_not_computed(file: GgufFile, name: str, arch: Architecture, n_embd_head: int) -> None:
    """Keys whose meaning this graph does not have: ignored, they would give other logits."""
    rope_dims = file.value(f"{name}.rope.dimension_count")
    neutral = NEUTRAL | {
        "rope.dimension_count_swa": (rope_dims if isinstance(rope_dims, int) else n_embd_head,),
        "attention.value_length": (n_embd_head,),
        "attention.key_length_swa": (n_embd_head,),
        "attention.value_length_swa": (n_embd_head,),
    }
    for key, values in neutral.items():
        value = file.value(f"{name}.{key}")
        if value is None or key in arch.keys:
            continue
        if isinstance(value, np.ndarray | list) or value not in values:
            shown = "a list" if isinstance(value, np.ndarray | list) else value
            raise ModelFileError(f"{file.path} sets {name}.{key} to {shown}, which this version does not compute")
    # llama.cpp reads this key as whether Granite has rope at all.
    if name == "granite" and file.value("granite.rope.scaling.finetuned") not in (None, True):
        raise ModelFileError(f"{file.path} has layers without rope, which this version does not compute")


def notices(file_path: Any, hp: Hyperparameters, file: GgufFile, n_ctx: int) -> list[str]:
    """What a user of this model should be told: where this program and llama.cpp leave out what others compute."""
    window = file.value(f"{hp.name}.attention.sliding_window")
    if hp.name == "phi3" and isinstance(window, int) and 0 < window < n_ctx:
        return [
            f"{file_path} names a sliding window of {window} tokens, which llama.cpp and this program do not apply: "
            "past it, answers differ from transformers'"
        ]
    return []
