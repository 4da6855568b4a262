"""Tiny random models of every architecture that the engine runs: a Hugging Face model and the F32 GGUF of its numbers.

The files have the keys, names and row orders that llama.cpp's convert_hf_to_gguf.py writes. Import it as
`from tests.relatives import relative`. torch and transformers load on the call, not on import.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.tiny import Tiny, add_tokenizer, n_vocab, permute_rows

Array = npt.NDArray[Any]

N_CTX = 1024
WINDOW = 32
PERMUTED = ("llama", "granite")  # architectures whose GGUF holds Q and K in the row order of ggml's adjacent-pair rope
COMMON = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": N_CTX,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": None,
    "attn_implementation": "eager",
}


@dataclass(frozen=True)
class Variant:
    """The GGUF's `architecture`, transformers' classes `model` and `config`, and `options` over `COMMON`."""

    architecture: str
    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""


def rope(kind: str, factor: float, theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    """Rope parameters of a config."""
    return {"rope_type": kind, "factor": factor, "rope_theta": theta, **more}


GEMMA3_ROPE = {
    "full_attention": rope("linear", 8.0, theta=1e6),
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
GEMMA = {
    "head_dim": 32,
    "sliding_window": WINDOW,
    "tie_word_embeddings": True,
    "final_logit_softcapping": 10.0,
    "query_pre_attn_scalar": 32,
}
GEMMA2 = {**GEMMA, "attn_logit_softcapping": 5.0, "num_hidden_layers": 4}
GEMMA3 = {**GEMMA, "final_logit_softcapping": None, "rope_parameters": GEMMA3_ROPE, "num_hidden_layers": 7}
LONGROPE = {
    "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.8, 2.0],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0],
}

VARIANTS: dict[str, Variant] = {
    "llama": Variant("llama", "LlamaForCausalLM"),
    "llama-linear": Variant("llama", "LlamaForCausalLM", {"rope_parameters": rope("linear", 4.0)}),
    "llama-yarn": Variant(
        "llama",
        "LlamaForCausalLM",
        {"rope_parameters": rope("yarn", 4.0, original_max_position_embeddings=256)},
    ),
    "llama3": Variant(
        "llama",
        "LlamaForCausalLM",
        {
            "rope_parameters": rope(
                "llama3",
                8.0,
                theta=500000.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=256,
            )
        },
    ),
    # llama.cpp has no window in `llama`; Mistral has none either since 7B v0.2.
    "mistral-head-dim": Variant("llama", "MistralForCausalLM", {"head_dim": 32, "sliding_window": None}),
    "qwen2": Variant("qwen2", "Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2-yarn": Variant(
        "qwen2",
        "Qwen2ForCausalLM",
        {"rope_parameters": rope("yarn", 8.0, theta=1e6, original_max_position_embeddings=128)},
    ),
    "qwen3": Variant("qwen3", "Qwen3ForCausalLM", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma2": Variant("gemma2", "Gemma2ForCausalLM", GEMMA2),
    # llama.cpp knows the 27B sizes by their layers, and only there scales Q by hidden/heads instead of the head size.
    "gemma2-27b": Variant(
        "gemma2", "Gemma2ForCausalLM", {**GEMMA2, "num_hidden_layers": 46, "query_pre_attn_scalar": 16}
    ),
    # Every sixth layer is full: of seven both kinds are there, and a sliding one is the last.
    "gemma3": Variant("gemma3", "Gemma3ForCausalLM", GEMMA3, config="Gemma3TextConfig"),
    "gemma3-27b": Variant(
        "gemma3",
        "Gemma3ForCausalLM",
        {**GEMMA3, "num_hidden_layers": 62, "query_pre_attn_scalar": 16},
        config="Gemma3TextConfig",
    ),
    "phi3": Variant("phi3", "Phi3ForCausalLM"),
    # As Phi-4-mini: the last quarter of each head is not rotated.
    "phi3-partial": Variant(
        "phi3",
        "Phi3ForCausalLM",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
        },
    ),
    # transformers takes the long factors from 65 tokens on, llama.cpp in a context of more than 64 cells.
    "phi3-longrope": Variant(
        "phi3",
        "Phi3ForCausalLM",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, **LONGROPE},
        },
    ),
    # Short factors on both sides, in contexts up to 512 cells.
    "phi3-longrope-short": Variant(
        "phi3",
        "Phi3ForCausalLM",
        {
            "original_max_position_embeddings": 512,
            "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, **LONGROPE},
        },
    ),
    "granite": Variant(
        "granite",
        "GraniteForCausalLM",
        {
            "attention_multiplier": 0.15,
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.6,
            "logits_scaling": 4.0,
            "tie_word_embeddings": True,
        },
    ),
    "olmo2": Variant("olmo2", "Olmo2ForCausalLM"),
    # OLMo 3 is `olmo2` to llama.cpp: three of four layers slide, and YaRN is for the full ones only.
    "olmo3": Variant(
        "olmo2",
        "Olmo3ForCausalLM",
        {
            "num_hidden_layers": 5,
            "sliding_window": WINDOW,
            "rope_parameters": {
                "full_attention": rope(
                    "yarn",
                    4.0,
                    original_max_position_embeddings=256,
                    attention_factor=0.1 * math.log(4.0) + 1.0,
                    beta_fast=32.0,
                    beta_slow=1.0,
                ),
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "qwen3moe": Variant(
        "qwen3moe",
        "Qwen3MoeForCausalLM",
        {
            "head_dim": 32,
            "moe_intermediate_size": 64,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
        },
    ),
}


def relative(variant: str, directory: Path) -> Tiny:
    """The seeded random model of `variant`, written as `directory/VARIANT.gguf`."""
    model = relative_model(variant)
    path = Path(directory) / f"{variant}.gguf"
    write_gguf(path, VARIANTS[variant].architecture, model)
    return Tiny(model, path)


def relative_model(variant: str) -> Any:
    """The Hugging Face model alone (fp32, eval, eager attention); norms and biases are random too."""
    import torch
    import transformers

    kind = VARIANTS[variant]
    config_class = getattr(transformers, kind.config or kind.model.replace("ForCausalLM", "Config"))
    # The global generator is put back: other tests seed it themselves.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = config_class(vocab_size=n_vocab(), **{**COMMON, **kind.options})
        model = getattr(transformers, kind.model)(config).eval()
        for key, parameter in model.named_parameters():
            if key.endswith(".bias"):
                parameter.data = 0.5 * torch.randn_like(parameter)
            elif parameter.ndim == 1 and "norm" in key:
                # Gemma multiplies by 1 + weight.
                parameter.data = 0.2 * torch.randn_like(parameter) + (0.0 if "Gemma" in kind.model else 1.0)
    return model


def write_gguf(path: Path, architecture: str, model: Any) -> None:
    """Writes `model` as a F32 GGUF of `architecture`."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    # Not the variant's name: libllama changes token attributes where a name says phi3, and fails without its tokens.
    writer.add_name("tiny")
    add_shape(writer, config)
    add_rope(writer, config)
    {
        "gemma2": add_gemma,
        "gemma3": add_gemma,
        "granite": add_granite,
        "olmo2": add_olmo,
        "phi3": add_phi3,
        "qwen3moe": add_experts,
    }.get(architecture, lambda writer, config: None)(writer, config)
    add_tokenizer(writer)
    names = gguf.get_tensor_name_map(
        {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[architecture], config.num_hidden_layers
    )
    for key, weight in tensors(model, architecture):
        name = key if key.startswith("rope_") else names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert name is not None, key
        writer.add_tensor(name, np.ascontiguousarray(weight, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_shape(writer: gguf.GGUFWriter, config: Any) -> None:
    """What every architecture names."""
    writer.add_file_type(int(gguf.LlamaFileType.ALL_F32))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None) is not None:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)


def head_size(config: Any) -> int:
    """Size of one head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def full_rope(config: Any) -> Mapping[str, Any]:
    """The rope parameters of the full layers, where the kinds of layers have their own."""
    parameters: Mapping[str, Any] = config.rope_parameters
    return parameters.get("full_attention", parameters)  # type: ignore[no-any-return]


def add_rope(writer: gguf.GGUFWriter, config: Any) -> None:
    """Rope parameters; Gemma 2 has none in its file, and Phi 3 its own, without a scaling type."""
    if writer.arch in ("gemma2", "phi3"):
        return
    parameters = full_rope(config)
    writer.add_rope_freq_base(parameters["rope_theta"])
    if "sliding_attention" in config.rope_parameters:
        writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    if writer.arch in PERMUTED:
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_size(config))
    if parameters["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(parameters["rope_type"]))
        writer.add_rope_scaling_factor(parameters["factor"])
    if parameters["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(parameters["original_max_position_embeddings"])
        if "attention_factor" in parameters:
            writer.add_rope_scaling_yarn_attn_factor(parameters["attention_factor"])
            writer.add_rope_scaling_yarn_beta_fast(parameters["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(parameters["beta_slow"])


def add_gemma(writer: gguf.GGUFWriter, config: Any) -> None:
    """The window, whose pattern llama.cpp knows by itself, and the soft caps."""
    writer.add_sliding_window(config.sliding_window)
    if config.attn_logit_softcapping is not None:
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if config.final_logit_softcapping is not None:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def add_granite(writer: gguf.GGUFWriter, config: Any) -> None:
    """The four multipliers."""
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def add_olmo(writer: gguf.GGUFWriter, config: Any) -> None:
    """OLMo 3's window and which layers slide; OLMo 2 has neither."""
    if getattr(config, "sliding_window", None) is not None:
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


def add_phi3(writer: gguf.GGUFWriter, config: Any) -> None:
    """Rope parameters, and a window as Phi-3-mini's file has one: llama.cpp reads it and attends to all cells."""
    parameters, original = config.rope_parameters, config.original_max_position_embeddings
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_dimension_count(int(head_size(config) * parameters["partial_rotary_factor"]))
    writer.add_rope_freq_base(parameters["rope_theta"])
    writer.add_sliding_window(WINDOW)
    if parameters["rope_type"] == "longrope":
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))


def add_experts(writer: gguf.GGUFWriter, config: Any) -> None:
    """Count and width of the experts."""
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def tensors(model: Any, architecture: str) -> Iterator[tuple[str, Array]]:
    """The file's tensors under their Hugging Face names, and the rope factors under their own."""
    config = model.config
    for key, value in model.state_dict().items():
        weight = value.detach().float().numpy()
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if key.endswith(".experts.gate_up_proj"):
            gate, up = np.split(weight, 2, axis=1)
            yield key.replace("gate_up_proj", "gate_proj.weight"), gate
            yield key.replace("gate_up_proj", "up_proj.weight"), up
            continue
        if key.endswith(".experts.down_proj"):
            yield f"{key}.weight", weight
            continue
        if architecture in PERMUTED and ".q_proj." in key:
            weight = permute_rows(weight, config.num_attention_heads)
        elif architecture in PERMUTED and ".k_proj." in key:
            weight = permute_rows(weight, config.num_key_value_heads)
        elif architecture in ("gemma2", "gemma3") and key.endswith("norm.weight"):
            weight = weight + 1
        yield key, weight
    parameters = full_rope(config)
    if parameters["rope_type"] == "llama3":
        yield "rope_freqs.weight", llama3_factors(parameters, head_size(config))
    elif parameters["rope_type"] == "longrope":
        yield "rope_factors_long.weight", np.array(parameters["long_factor"])
        yield "rope_factors_short.weight", np.array(parameters["short_factor"])


def llama3_factors(parameters: Mapping[str, Any], size: int) -> Array:
    """What Llama 3 divides each rope frequency by."""
    low, high, factor = (parameters[name] for name in ("low_freq_factor", "high_freq_factor", "factor"))
    wavelengths = 2 * np.pi * parameters["rope_theta"] ** (np.arange(0, size, 2) / size)
    smooth = (parameters["original_max_position_embeddings"] / wavelengths - low) / (high - low)
    smooth = smooth.clip(0, 1)
    return 1 / ((1 - smooth) / factor + smooth)
