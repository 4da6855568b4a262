"""The torch reference: the two streams are what section 1 of the design says, and not an ordinary LoRA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers.cache_utils import Cache

from icarus_local.errors import IcarusError
from icarus_models import reference
from icarus_models.reference import (
    EncoderView,
    add_lora,
    base_logits,
    cache_argument,
    decoder_mask,
    decoder_masks,
    encode,
    ordinary_logits,
    two_stream_logits,
)
from tests.agents import add_agents
from tests.relatives import COMMON, VARIANTS, WINDOW, relative_model
from tests.tiny import n_vocab

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


def long_ids() -> Tensor:
    """100 random ids [1, 100]: three windows."""
    return torch.randint(n_vocab(), (1, 100), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("variant", VARIANTS)
def test_zero_adapter_is_the_base_of_every_relative(variant: str) -> None:
    """Beyond the window, and in LongRoPE with no row beyond its original context: there the encoder's length counts."""
    model, ids = add_agents(relative_model(variant), {"zero": 0.0}), long_ids()
    positions = torch.tensor([[3, 31, 32, 33, 63]])
    with torch.no_grad():
        decoder = two_stream_logits(model, ids, torch.ones_like(ids), positions)
        difference = (decoder - base_logits(model, ids, torch.ones_like(ids))[:, positions[0]]).abs().max()
    print(f"{variant}: {difference:.1e}")
    assert difference < EXACT


def sliding_agent(name: str) -> PeftModel:
    """A random agent on a model of which some layers slide, or with "mistral" all."""
    if name != "mistral":
        return add_agents(relative_model(name), {"random": 0.3})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = MistralConfig(vocab_size=n_vocab(), **COMMON, sliding_window=WINDOW)
        return add_agents(MistralForCausalLM(config).eval(), {"random": 0.3})


class Cells(EncoderView):
    """The cells that the row at `position` may read, cut out of each layer: no mask is needed."""

    def __init__(self, encoder: Cache, kinds: list[str], position: int) -> None:
        super().__init__(encoder)
        self.first = [max(0, position - WINDOW + 1) if kind == reference.SLIDING else 0 for kind in kinds]
        self.end = position + 1

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys, values = super().update(key_states, value_states, layer_idx)
        cells = slice(self.first[layer_idx], self.end)
        return keys[:, :, cells], values[:, :, cells]


def row_over_its_cells(model: PeftModel, ids: Tensor, position: int) -> Tensor:
    """One decoder row over nothing but the cells that section 1 and the layer's window give it: [vocab]."""
    base = model.get_base_model()
    kinds = getattr(base.config, "layer_types", None)
    in_window = torch.zeros(1, 1, 1, min(position + 1, WINDOW))
    masks = {reference.FULL: torch.zeros(1, 1, 1, position + 1), reference.SLIDING: in_window}
    cache = encode(model, ids, torch.ones_like(ids))
    view = Cells(cache, kinds or [reference.SLIDING] * len(cache.layers), position)
    output = base(
        input_ids=ids[:, position : position + 1],
        attention_mask=masks if kinds else in_window,
        position_ids=torch.tensor([[position]]),
        use_cache=True,
        **{cache_argument(base): view},
    )
    return output.logits[0, 0]  # type: ignore[no-any-return]


def mask_with_window(wrong: int | None) -> Callable[..., Tensor]:
    """`decoder_mask` with the `wrong` window in the layers that slide."""

    def mask(rows: Tensor, attention_mask: Tensor, dtype: torch.dtype, window: int | None = None) -> Tensor:
        return decoder_mask(rows, attention_mask, dtype, wrong if window else None)

    return mask


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "olmo3", "mistral"])
def test_decoder_rows_read_the_cells_in_their_window(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = sliding_agent(name), long_ids()
    mask = torch.ones_like(ids)
    with torch.no_grad():
        rows = two_stream_logits(model, ids, mask)[0]
        for position in (0, WINDOW - 1, WINDOW, WINDOW + 1, 99):
            assert (rows[position] - row_over_its_cells(model, ids, position)).abs().max() < EXACT, position
        # The guard: what a window that is one off or ignored would do is far above the bound.
        for window in (WINDOW + 1, WINDOW - 1, None):
            monkeypatch.setattr(reference, "decoder_mask", mask_with_window(window))
            assert (two_stream_logits(model, ids, mask)[0] - rows).abs().max() > 1000 * EXACT, window


@pytest.mark.parametrize("name", ["gemma2", "mistral"])
def test_padding_longer_than_the_window_changes_nothing(name: str) -> None:
    model, ids = sliding_agent(name), long_ids()
    mask = torch.ones_like(ids)
    mask[:, 20:] = 0
    padded = two_stream_logits(model, ids, mask)
    with torch.no_grad():
        alone = two_stream_logits(model, ids[:, :20], mask[:, :20])
    assert (padded[:, :20] - alone).abs().max() < EXACT
    assert torch.isfinite(padded).all()
    padded[:, :20].square().sum().backward()
    gradients = [parameter.grad for key, parameter in model.named_parameters() if "lora_B" in key]
    assert all(gradient is not None and torch.isfinite(gradient).all() for gradient in gradients)


def test_layers_of_another_kind_are_refused() -> None:
    config = LlamaConfig()
    config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(IcarusError, match="chunked_attention"):
        decoder_masks(config, torch.tensor([[0]]), torch.tensor([[1]]), torch.float32)
