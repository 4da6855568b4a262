"""A two-layer random Llama: small enough for every test, and a real Hugging Face model all the same."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel
from transformers import LlamaConfig, LlamaForCausalLM

from icarus_models.reference import add_lora


def tiny_llama() -> LlamaForCausalLM:
    """A random Llama with grouped heads; seeded, fp32, eval."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


def with_random_lora(seed: int = 1) -> PeftModel:
    """The tiny Llama with a LoRA whose B is not zero, so that it changes the function."""
    model = add_lora(tiny_llama(), rank=4, alpha=8, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    return model


@pytest.fixture
def agent() -> PeftModel:
    """A tiny agent with a random LoRA."""
    return with_random_lora()
