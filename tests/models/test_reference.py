"""The torch reference: the two streams are what section 1 of the design says, and not an ordinary LoRA."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from icarus_local.errors import IcarusError
from icarus_models.reference import (
    add_lora,
    base_logits,
    encode,
    ordinary_logits,
    refuse_sliding,
    two_stream_logits,
)

from .conftest import tiny_llama

IDS = torch.tensor([[5, 9, 3, 77, 20, 31, 8, 2], [7, 7, 101, 4, 66, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0]])
EXACT = 2e-5  # fp32 noise; the ordinary LoRA is more than 0.1 away on this model


def by_hand(model: PeftModel, ids: list[int]) -> Tensor:
    """Section 1 written out for one Llama sequence, row by row with plain matrix products: [T, vocab]."""
    llama = model.get_base_model()
    config = llama.config
    heads, kv_heads, size = (
        config.num_attention_heads,
        config.num_key_value_heads,
        llama.model.layers[0].self_attn.head_dim,
    )
    x = torch.tensor(ids)
    cos, sin = llama.model.rotary_emb(torch.zeros(1, 1, dtype=torch.float32), torch.arange(len(ids))[None])

    def rope(t: Tensor) -> Tensor:
        half = t.shape[-1] // 2
        return t * cos[0] + torch.cat([-t[..., half:], t[..., :half]], dim=-1) * sin[0]

    def plain(layer: torch.nn.Module, h: Tensor) -> Tensor:
        return h @ getattr(layer, "base_layer", layer).weight.T  # type: ignore[no-any-return, union-attr]

    def adapted(layer: torch.nn.Module, h: Tensor) -> Tensor:
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight  # type: ignore[index, union-attr]
        return plain(layer, h) + (h @ a.T @ b.T) * layer.scaling["default"]  # type: ignore[index, no-any-return]

    def block(
        layer: torch.nn.Module, h: Tensor, kv: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        linear = plain if kv is None else adapted
        normed = layer.input_layernorm(h)
        attn = layer.self_attn
        q = rope(linear(attn.q_proj, normed).view(len(ids), heads, size).transpose(0, 1))
        if kv is None:
            k = rope(plain(attn.k_proj, normed).view(len(ids), kv_heads, size).transpose(0, 1))
            v = plain(attn.v_proj, normed).view(len(ids), kv_heads, size).transpose(0, 1)
            kv = k, v
        group = heads // kv_heads
        k, v = (t.repeat_interleave(group, dim=0) for t in kv)
        scores = q @ k.transpose(1, 2) / size**0.5
        scores = scores.masked_fill(torch.triu(torch.ones(len(ids), len(ids), dtype=torch.bool), 1), -torch.inf)
        h = h + linear(attn.o_proj, (scores.softmax(-1) @ v).transpose(0, 1).reshape(len(ids), -1))
        normed = layer.post_attention_layernorm(h)
        gated = torch.nn.functional.silu(linear(layer.mlp.gate_proj, normed)) * linear(layer.mlp.up_proj, normed)
        return h + linear(layer.mlp.down_proj, gated), kv

    encoder = decoder = llama.model.embed_tokens(x)
    for layer in llama.model.layers:
        encoder, kv = block(layer, encoder, None)
        decoder, _ = block(layer, decoder, kv)
    return llama.lm_head(llama.model.norm(decoder))  # type: ignore[no-any-return]


def test_equals_the_definition_written_out(agent: PeftModel) -> None:
    with torch.no_grad():
        got = two_stream_logits(agent, IDS[:1], MASK[:1])[0]
        assert (got - by_hand(agent, IDS[0].tolist())).abs().max() < EXACT


def test_selected_positions_equal_the_full_pass(agent: PeftModel) -> None:
    positions = torch.tensor([[2, 5, 7], [1, 4, -1]])
    with torch.no_grad():
        full = two_stream_logits(agent, IDS, MASK)
        some = two_stream_logits(agent, IDS, MASK, positions)
    assert some.shape == (2, 3, 128)
    for row in range(2):
        for column in range(3):
            if positions[row, column] >= 0:
                assert (some[row, column] - full[row, positions[row, column]]).abs().max() < EXACT
    assert torch.isfinite(some).all()


def test_padding_changes_nothing(agent: PeftModel) -> None:
    with torch.no_grad():
        padded = two_stream_logits(agent, IDS, MASK)[1, :5]
        alone = two_stream_logits(agent, IDS[1:, :5], MASK[1:, :5])[0]
    assert (padded - alone).abs().max() < EXACT


def test_gradients_reach_only_what_icarus_adapts(agent: PeftModel) -> None:
    two_stream_logits(agent, IDS, MASK).square().sum().backward()
    reached = {name for name, parameter in agent.named_parameters() if parameter.grad is not None}
    assert reached
    assert all("lora_" in name for name in reached)
    for module in ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        assert sum(module in name for name in reached) == 4, module  # A and B in two layers
    assert not any("k_proj" in name or "v_proj" in name for name in reached)
    for name, parameter in agent.named_parameters():
        if name in reached:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


def test_zero_adapter_is_the_base() -> None:
    model = add_lora(tiny_llama(), rank=4, alpha=8, seed=3)
    with torch.no_grad():
        assert (two_stream_logits(model, IDS[:1], MASK[:1]) - base_logits(model, IDS[:1], MASK[:1])).abs().max() < EXACT


def test_ordinary_lora_is_another_function(agent: PeftModel) -> None:
    """The guard of all parity tests: what they must catch is far above their bound."""
    with torch.no_grad():
        icarus = two_stream_logits(agent, IDS[:1], MASK[:1])
        ordinary = ordinary_logits(agent, IDS[:1], MASK[:1])
    assert (icarus - ordinary).abs().max() > 1000 * EXACT
    # One token attends to itself alone, and in layer 1 K and V are still the base's; from layer 2 on they differ.
    assert (icarus[:, 0] - ordinary[:, 0]).abs().max() > 100 * EXACT


def test_the_cache_does_not_depend_on_the_agent(agent: PeftModel) -> None:
    with_adapter = encode(agent, IDS, MASK)
    for name, parameter in agent.named_parameters():
        if "lora_" in name:
            parameter.data.zero_()
    without = encode(agent, IDS, MASK)
    for one, other in zip(with_adapter.layers, without.layers, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)


def test_a_model_without_the_projections_is_refused() -> None:
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    )
    for layer in model.model.layers:
        layer.mlp = torch.nn.Identity()
    with pytest.raises(IcarusError, match="gate_proj"):
        add_lora(model, rank=2, alpha=2, seed=0)


def test_a_context_beyond_the_sliding_window_is_refused() -> None:
    config = LlamaConfig()
    config.sliding_window = 4
    config.layer_types = ["sliding_attention", "full_attention"]
    refuse_sliding(config, 4)
    with pytest.raises(IcarusError, match="window"):
        refuse_sliding(config, 5)
