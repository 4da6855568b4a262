"""`config.json` of the architectures that the engine computes: read, checked, and written as GGUF keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gguf

from icarus_convert.hf_folder import CONFIG_FILE, HfFolder
from icarus_convert.hf_rope import RopeConfig, read_rope
from icarus_convert.hf_values import Values
from icarus_local.engine.architecture import ARCHITECTURES
from icarus_local.engine.rope import ROPE_NORMAL
from icarus_local.errors import ModelFileError

# transformers' class -> llama.cpp's architecture.
CLASSES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Phi3ForCausalLM": "phi3",
    "GraniteForCausalLM": "granite",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo2",
}
_ACTIVATIONS = {"silu": ("silu", "swish"), "gelu": ("gelu_pytorch_tanh",)}
# Architectures that may have biases of Q, K, V and O where `attention_bias` says so, and of the MLP (`mlp_bias`).
_BIASED = ("llama", "granite")
# transformers' defaults, which files of Gemma 3 leave out.
_GEMMA3 = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072}
_GRANITE_SCALES = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
# Settings that must have one of these values where they are set: anything else is another function.
_FIXED: dict[str, tuple[Any, ...]] = {
    "use_bidirectional_attention": (False,),
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
    "use_qk_norm": (False,),
    "clip_qkv": (),
    "position_embedding_type": ("rope",),
    "norm_topk_prob": (True,),
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([],),
    "use_sliding_window": (False,),
    "no_rope_layers": (),
    "layer_norm_eps": (),
    "tie_encoder_decoder": (False,),
}


@dataclass(frozen=True)
class ModelConfig:
    """A model's configuration; names as in llama.cpp.

    Attributes:
        arch: as llama.cpp names it. prefix: of the language model's tensors.
        tied: the head is the token embedding.
        attention_bias, mlp_bias: whether the linear maps have one.
        n_ff: width of the MLP. n_ff_expert: of one expert; 0 for none.
        windowed: which layers see a window; empty where none does, or where the architecture's own pattern says so.
        scales: Granite's multipliers, by their name in the file.
        softcaps: (attention, logits), 0 for none.
    """

    arch: str
    prefix: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    own_head_dim: bool
    n_vocab: int
    n_ctx: int
    norm_eps: float
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    rope: RopeConfig
    window: int
    windowed: tuple[bool, ...]
    scales: dict[str, float]
    softcaps: tuple[float, float]
    n_expert: int
    n_expert_used: int
    n_ff_expert: int

    @property
    def permuted(self) -> bool:
        """Whether the file holds the rows of Q and K in the order of ggml's adjacent-pair rope."""
        return ARCHITECTURES[self.arch].rope_kind == ROPE_NORMAL


def read_config(folder: HfFolder) -> ModelConfig:
    """Reads and checks the configuration.

    Raises:
        ModelFileError: another architecture, or a setting that the engine does not compute, by name.
    """
    path = folder.path / CONFIG_FILE
    kind = _model_class(path, folder.config)
    arch, values, prefix = CLASSES[kind], Values(path, folder.config), "model."
    if kind == "Gemma3ForConditionalGeneration":
        values = values.section("text_config")
        old = any(name.startswith("language_model.") for name in folder.tensors)
        prefix = "language_model.model." if old else "model.language_model."
    _refuse_settings(values, arch)
    defaults = _GEMMA3 if arch == "gemma3" else {}
    n_embd, n_layer = values.integer("hidden_size", None), values.integer("num_hidden_layers", None, high=4096)
    n_head = values.integer("num_attention_heads", defaults.get("num_attention_heads"), high=4096)
    n_head_kv = values.integer("num_key_value_heads", defaults.get("num_key_value_heads", n_head), high=4096)
    head_dim = values.integer("head_dim", defaults.get("head_dim", max(1, n_embd // n_head)), high=1 << 14)
    if n_head % n_head_kv or head_dim % 2 or ("head_dim" not in values and not defaults and n_embd % n_head):
        raise ModelFileError(f"{path}: {n_head} heads of {head_dim} over {n_head_kv} KV heads do not divide evenly")
    if arch in ("granite", "phi3") and n_head * head_dim != n_embd:
        raise ModelFileError(f"{path}: head_dim is {head_dim}, which llama.cpp does not read for {arch}")
    n_ctx = values.integer("max_position_embeddings", defaults.get("max_position_embeddings"), high=1 << 30)
    experts = arch == "qwen3moe"
    n_expert = values.integer("num_local_experts", values.integer("num_experts", 128)) if experts else 0
    window, windowed = _windows(values, kind, arch, n_layer)
    _check_attention_scale(values, arch, n_layer, n_embd // n_head, head_dim)
    return ModelConfig(
        arch=arch,
        prefix=prefix,
        n_layer=n_layer,
        n_embd=n_embd,
        n_ff=values.integer("intermediate_size", None),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        own_head_dim="head_dim" in values or bool(defaults) or arch == "gemma2",
        n_vocab=values.integer("vocab_size", _embeddings(folder, prefix)),
        n_ctx=n_ctx,
        norm_eps=values.number("rms_norm_eps", 1e-6 if arch in ("gemma2", "gemma3") else None),
        tied=values.flag("tie_word_embeddings", arch in ("gemma2", "gemma3")),
        attention_bias=arch in _BIASED and values.flag("attention_bias", False),
        mlp_bias=arch in _BIASED and values.flag("mlp_bias", False),
        rope=read_rope(values, arch, n_ctx, head_dim),
        window=window,
        windowed=windowed,
        scales={key: values.number(key, 1.0) for key in _GRANITE_SCALES} if arch == "granite" else {},
        softcaps=_softcaps(values, arch),
        n_expert=n_expert,
        n_expert_used=values.integer("num_experts_per_tok", 8, high=n_expert) if experts else 0,
        n_ff_expert=values.integer("moe_intermediate_size", None) if experts else 0,
    )


def _model_class(path: Any, config: dict[str, Any]) -> str:
    kinds = config.get("architectures")
    kind = kinds[0] if isinstance(kinds, list) and len(kinds) == 1 else None
    if not isinstance(kind, str) or kind not in CLASSES:
        raise ModelFileError(
            f"{path} is of the architecture {kind or kinds!r}; this version converts {', '.join(CLASSES)}",
            "Use a base of one of these",
        )
    return kind


def _embeddings(folder: HfFolder, prefix: str) -> int | None:
    """Rows of the token embedding, for files that leave out vocab_size."""
    stored = folder.tensors.get(f"{prefix}embed_tokens.weight")
    return stored.shape[0] if stored is not None and stored.shape else None


def _refuse_settings(values: Values, arch: str) -> None:
    activation = "gelu" if ARCHITECTURES[arch].activation == "gelu" else "silu"
    for key in ("hidden_activation", "hidden_act"):
        if key in values:
            if values.get(key) not in _ACTIVATIONS[activation]:
                raise ModelFileError(f"{values.path}: {key} is {values.get(key)!r}; {arch} computes with {activation}")
            break
    for key, allowed in _FIXED.items():
        if key in values and values.get(key) not in allowed:
            raise ModelFileError(f"{values.path} sets {key} to {values.get(key)!r}, which is not computed for {arch}")
    if arch == "qwen3moe" and "norm_topk_prob" not in values:
        # transformers' default is false, and llama.cpp always norms.
        raise ModelFileError(f"{values.path} lacks norm_topk_prob: experts are computed with normed weights only")
    if arch not in _BIASED:
        for key in ("attention_bias", "mlp_bias"):
            if values.flag(key, False):
                raise ModelFileError(f"{values.path} sets {key}, which is not computed for {arch}")


def _windows(values: Values, kind: str, arch: str, n_layer: int) -> tuple[int, tuple[bool, ...]]:
    """The window, and which layers see no further where the architecture's own pattern does not say so."""
    types = values.get("layer_types")
    known = ("full_attention", "sliding_attention")
    if types is not None and (
        not isinstance(types, list) or len(types) != n_layer or any(name not in known for name in types)
    ):
        raise ModelFileError(f"{values.path}: layer_types is no list of {' and '.join(known)} for {n_layer} layers")
    sliding = tuple(name == "sliding_attention" for name in types or ())
    period = ARCHITECTURES[arch].window_period
    if arch in ("gemma2", "gemma3"):
        window = values.integer("sliding_window", 4096, high=1 << 30)
        own = tuple(layer % period < period - 1 for layer in range(n_layer))
        stated = values.integer("sliding_window_pattern", values.integer("_sliding_window_pattern", period, high=4096))
        if not sliding and stated != period:
            sliding = tuple((layer + 1) % stated != 0 for layer in range(n_layer))
        if sliding in ((), own):
            return window, ()
        if arch == "gemma2":
            raise ModelFileError(f"{values.path}: layers see windows in another order than llama.cpp has for gemma2")
        return window, sliding
    if kind == "Olmo3ForCausalLM":
        sliding = sliding or tuple((layer + 1) % 4 != 0 for layer in range(n_layer))
        return values.integer("sliding_window", 4096, high=1 << 30), sliding
    if any(sliding):
        raise ModelFileError(f"{values.path} has layers with a sliding window, which is not computed for {arch}")
    # Qwen's files name a window that `use_sliding_window` switches off; Mistral's is on where it is named.
    if kind == "MistralForCausalLM" and "sliding_window" in values:
        raise ModelFileError(
            f"{values.path} has a sliding window of {values.get('sliding_window')} tokens, which llama.cpp does not "
            "compute for llama",
            "Mistral 7B has none since v0.2",
        )
    # llama.cpp reads Phi-3's and leaves it out; the engine says so when it opens the file.
    if arch == "phi3" and "sliding_window" in values:
        return values.integer("sliding_window", None, high=1 << 30), ()
    return 0, ()


def _check_attention_scale(values: Values, arch: str, n_layer: int, per_head: int, head_dim: int) -> None:
    if arch not in ("gemma2", "gemma3"):
        return
    # llama.cpp knows the 27B models by their layers.
    computed = per_head if (arch, n_layer) in (("gemma2", 46), ("gemma3", 62)) else head_dim
    scalar = values.number("query_pre_attn_scalar", 256.0)
    if scalar != computed:
        raise ModelFileError(
            f"{values.path}: query_pre_attn_scalar is {scalar:g}; llama.cpp computes {arch} of {n_layer} layers with "
            f"{computed}"
        )


def _softcaps(values: Values, arch: str) -> tuple[float, float]:
    names = ("attn_logit_softcapping", "final_logit_softcapping")
    if arch == "gemma2":
        for name in names:
            if name not in values:
                raise ModelFileError(f"{values.path} lacks {name}, which llama.cpp always applies to gemma2")
        return values.number(names[0], None), values.number(names[1], None)
    if arch == "gemma3":
        if names[0] in values:
            raise ModelFileError(f"{values.path} sets {names[0]}, which is not computed for gemma3")
        return 0.0, values.number(names[1], None) if names[1] in values else 0.0
    return 0.0, 0.0


def add_keys(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """Writes the architecture's keys as llama.cpp's converter does."""
    writer.add_vocab_size(config.n_vocab)
    writer.add_context_length(config.n_ctx)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(config.n_ff)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_head_kv)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    if config.own_head_dim and config.arch not in ("granite", "phi3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    _add_rope(writer, config)
    if config.window or config.arch == "phi3":
        # llama.cpp tells Phi-4 from other Phi-3 by a window of 0.
        writer.add_sliding_window(config.window)
    if config.windowed:
        writer.add_sliding_window_pattern(list(config.windowed))
    if config.softcaps[0]:
        writer.add_attn_logit_softcapping(config.softcaps[0])
    if config.softcaps[1]:
        writer.add_final_logit_softcapping(config.softcaps[1])
    if config.scales:
        writer.add_attention_scale(config.scales["attention_multiplier"])
        writer.add_embedding_scale(config.scales["embedding_multiplier"])
        writer.add_residual_scale(config.scales["residual_multiplier"])
        writer.add_logit_scale(config.scales["logits_scaling"])
    if config.n_expert:
        writer.add_expert_count(config.n_expert)
        writer.add_expert_used_count(config.n_expert_used)
        writer.add_expert_feed_forward_length(config.n_ff_expert)


def _add_rope(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    rope, arch = config.rope, config.arch
    if arch != "gemma2" or rope.theta != 10000.0:
        writer.add_rope_freq_base(rope.theta)
    if rope.theta_windowed is not None:
        writer.add_rope_freq_base_swa(rope.theta_windowed)
    if config.permuted or arch == "phi3":
        writer.add_rope_dimension_count(int(config.head_dim * rope.partial))
    if arch == "phi3":
        writer.add_rope_scaling_orig_ctx_len(rope.original)
        if rope.factors:
            writer.add_rope_scaling_attn_factors(rope.attention_factor)
    if rope.kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope.kind))
        writer.add_rope_scaling_factor(rope.factor)
    if rope.kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope.original)
        for key, add in (
            ("attention_factor", writer.add_rope_scaling_yarn_attn_factor),
            ("attn_factor", writer.add_rope_scaling_yarn_attn_factor),
            ("beta_fast", writer.add_rope_scaling_yarn_beta_fast),
            ("beta_slow", writer.add_rope_scaling_yarn_beta_slow),
        ):
            if key in rope.yarn:
                add(rope.yarn[key])
