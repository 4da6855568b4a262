"""A tiny random Llama: a Hugging Face model and the F32 GGUF of the same weights, small enough for every test.

Import it as `from tests.tiny import tiny_llama`. torch and transformers load on the call, not on import.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "Ġ a", "i n", "e r", "Ġt he", "l l", "l o", "he ll", "hell o", "Ġ w", "o r", "l d", "or ld")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Tiny:
    """`model`: a `LlamaForCausalLM` (fp32, eval); `path`: the F32 GGUF of the same weights."""

    model: Any
    path: Path


def permute_rows(weight: npt.NDArray[Any], n_head: int) -> npt.NDArray[Any]:
    """Rows of a Hugging Face Q or K [n_head * d, ...] in the order of a `llama` GGUF (convert_hf_to_gguf's permute)."""
    halves = weight.reshape(n_head, 2, weight.shape[0] // n_head // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def byte_alphabet() -> list[str]:
    """The 256 characters that byte-level BPE (GPT-2) writes for the bytes 0 to 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def vocabulary() -> tuple[list[str], list[int]]:
    """Token texts and types (gguf.TokenType): 3 controls, 256 bytes, the merges."""
    texts = [*CONTROLS, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]
    types = [gguf.TokenType.CONTROL] * len(CONTROLS) + [gguf.TokenType.NORMAL] * (len(texts) - len(CONTROLS))
    return texts, [int(kind) for kind in types]


def n_vocab() -> int:
    """Size of the tiny vocabulary."""
    return len(vocabulary()[0])


def tiny_llama(
    directory: Path,
    n_layer: int = 2,
    *,
    hidden: int = 64,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 128,
    tied: bool = False,
    seed: int = 0,
    n_ctx: int = 1024,
    name: str = "tiny",
    template: str | None = CHATML,
) -> Tiny:
    """Builds a seeded random Llama and writes it as `directory/NAME.gguf`; norms are random too, not all ones."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    # The global generator is put back: other tests seed it themselves.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=n_vocab(),
            hidden_size=hidden,
            intermediate_size=n_ff,
            num_hidden_layers=n_layer,
            num_attention_heads=n_head,
            num_key_value_heads=n_head_kv,
            max_position_embeddings=n_ctx,
            initializer_range=0.2,
            tie_word_embeddings=tied,
            bos_token_id=0,
            eos_token_id=2,
        )
        model = LlamaForCausalLM(config).eval()
        for key, parameter in model.named_parameters():
            if parameter.ndim == 1 and "norm" in key:
                parameter.data = 1.0 + 0.2 * torch.randn_like(parameter)
    path = Path(directory) / f"{name}.gguf"
    weights = {key: value.detach().float().numpy() for key, value in model.state_dict().items()}
    if tied:
        weights.pop("lm_head.weight", None)
    write_llama_gguf(path, config, weights, name=name, template=template)
    return Tiny(model, path)


def add_tokenizer(writer: gguf.GGUFWriter, template: str | None = CHATML) -> None:
    """The tiny vocabulary's keys, and a chat template where one is given."""
    texts, types = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    if template is not None:
        writer.add_chat_template(template)


def write_llama_gguf(
    path: Path, config: Any, weights: dict[str, npt.NDArray[Any]], name: str = "tiny", template: str | None = CHATML
) -> None:
    """Writes Hugging Face `weights` of a `LlamaConfig` as a F32 GGUF of the `llama` architecture."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_file_type(int(gguf.LlamaFileType.ALL_F32))
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    add_tokenizer(writer, template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for key, weight in weights.items():
        target = names.get_name(key, try_suffixes=(".weight",))
        assert target is not None, key
        rows = weight
        if ".q_proj." in key:
            rows = permute_rows(weight, config.num_attention_heads)
        elif ".k_proj." in key:
            rows = permute_rows(weight, config.num_key_value_heads)
        writer.add_tensor(target, np.ascontiguousarray(rows, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp_logits(
    path: Path, tokens: list[int], adapter: Path | None = None, scale: float = 1.0
) -> npt.NDArray[np.float32]:
    """Logits [len(tokens), n_vocab] of libllama (F32 KV), with `adapter` applied the ordinary way where given."""
    import ctypes

    from icarus_local.ggml.library import load_llama

    llama = load_llama()
    model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
    assert model, f"libllama refuses {path}"
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.n_threads_batch = 512, 512, 512, 2, 2
    params.type_k = params.type_v = 0  # GGML_TYPE_F32
    # Off: with flash attention libllama casts F32 K and V to F16, and logits move by 0.008.
    params.flash_attn_type = 0
    context = llama.llama_init_from_model(model, params)
    assert context, f"libllama makes no context for {path}"
    try:
        if adapter is not None:
            handle = llama.llama_adapter_lora_init(model, str(adapter).encode())
            assert handle, f"libllama refuses {adapter}"
            handles, scales = (llama.llama_adapter_lora_p_ctypes * 1)(handle), (ctypes.c_float * 1)(scale)
            assert llama.llama_set_adapters_lora(context, handles, 1, scales) == 0
        batch = llama.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        assert llama.llama_decode(context, batch) == 0
        rows = llama.llama_get_logits(context)
        width = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        logits = np.ctypeslib.as_array(rows, shape=(len(tokens), width)).copy()
        llama.llama_batch_free(batch)
        return logits
    finally:
        llama.llama_free(context)
        llama.llama_model_free(model)
