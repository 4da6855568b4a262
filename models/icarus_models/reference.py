"""ICaRus's two streams on a Hugging Face causal LM with a PEFT LoRA (arXiv 2603.13281, design section 1).

The logical encoder is the base (`disable_adapter()`, no gradient) and fills a `DynamicCache`. The logical decoder is
the adapted model, run over an `EncoderView` of that cache: every layer's attention reads the encoder's K and V and
nothing of its own. Any model whose attention goes through `transformers.Cache.update` works.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache

from icarus_local.errors import IcarusError
from icarus_models.recipe import TARGET_MODULES

# The kinds of layers as transformers names them.
FULL, SLIDING = "full_attention", "sliding_attention"


class EncoderView(Cache):  # type: ignore[misc]
    """A cache that hands every layer the encoder's K and V, `[B, n_kv_heads, T, head_dim]`, and stores nothing."""

    def __init__(self, encoder: Cache) -> None:
        super().__init__(layers=encoder.layers)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Drop the decoder's own K and V; return the encoder's of `layer_idx`, detached."""
        layer = self.layers[layer_idx]
        return layer.keys.detach(), layer.values.detach()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: the decoder has no past of its own, so no caller shifts its positions."""
        return 0


def add_lora(
    model: PreTrainedModel,
    rank: int,
    alpha: float,
    seed: int,
    *,
    modules: Sequence[str] = TARGET_MODULES,
    rslora: bool = False,
    dropout: float = 0.0,
) -> PeftModel:
    """Wrap `model` with a fresh LoRA; the default modules are all that ICaRus lets an agent adapt.

    lora_A is drawn from `seed`, lora_B is zero, so the new agent is the base. Raises `IcarusError` where the model
    names its projections otherwise, so that a LoRA on half of them never passes for a whole one.
    """
    names = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    missing = [name for name in modules if name not in names]
    if missing:
        raise IcarusError(f"the base model has no {', '.join(missing)}: only models with separate projections train")
    torch.manual_seed(seed)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        use_rslora=rslora,
        bias="none",
        target_modules=list(modules),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def two_stream_logits(
    model: PeftModel, input_ids: Tensor, attention_mask: Tensor, positions: Tensor | None = None
) -> Tensor:
    """Logits of the agent's decoder rows, computed as ICaRus defines them.

    `input_ids` [B, T] int64 and `attention_mask` [B, T] (0 at padding, which is at the end; 1 at tokens, or where a row
    is packed the number of the sample that a token belongs to, from 1) go through the encoder; the decoder runs at
    `positions` [B, S] int64 only (places in the row, each < T; -1 marks a padded row, whose logits mean nothing), or at
    all T when None. Returns [B, S, vocab], the dtype of the model; row s predicts the token after `positions[:, s]`.
    Gradients reach the LoRA only. Raises `IcarusError` for a model with layers of a kind that is neither full nor
    sliding attention.
    """
    base = model.get_base_model()
    config = base.config.get_text_config()
    every = every_place(input_ids)
    rows = every if positions is None else positions.clamp(min=0)
    n_rows = rows.shape[1]
    within = places_within_samples(attention_mask)
    if rope_follows_length(config):
        # Such a rope takes its frequencies from the largest position that it sees: it must be the encoder's.
        rows = torch.cat([rows, within.argmax(1, keepdim=True)], dim=1)
    masks = decoder_masks(config, rows, attention_mask, base.dtype)
    outputs = base(
        input_ids=input_ids.gather(1, rows),
        attention_mask=masks,
        position_ids=within.gather(1, rows),
        use_cache=True,
        **{cache_argument(base): EncoderView(encode(model, input_ids, attention_mask))},
    )
    logits: Tensor = outputs.logits[:, :n_rows]
    return logits


def every_place(input_ids: Tensor) -> Tensor:
    """0 … T-1 in every row, [B, T]."""
    return torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)


def is_packed(attention_mask: Tensor) -> bool:
    """Whether a row holds several samples."""
    return bool((attention_mask > 1).any())


def places_within_samples(attention_mask: Tensor) -> Tensor:
    """[B, T]: at which place of its own sample each token stands; padding counts on from the last."""
    every = every_place(attention_mask)
    begins = torch.ones_like(attention_mask, dtype=torch.bool)
    begins[:, 1:] = (attention_mask[:, 1:] != attention_mask[:, :-1]) & (attention_mask[:, 1:] > 0)
    starts = torch.where(begins, every, 0).cummax(1).values
    return every - starts


def trunk_inputs(model: PreTrainedModel, attention_mask: Tensor) -> dict[str, Any]:
    """Mask and positions of a forward pass over whole rows: the model's own, or for packed rows each sample's alone."""
    if not is_packed(attention_mask):
        return {"attention_mask": attention_mask}
    config = model.config.get_text_config()
    masks = decoder_masks(config, every_place(attention_mask), attention_mask, model.dtype)
    return {"attention_mask": masks, "position_ids": places_within_samples(attention_mask)}


def encode(model: PeftModel, input_ids: Tensor, attention_mask: Tensor) -> Cache:
    """The encoder's K and V of every layer for `input_ids` [B, T], without gradient and without the adapter."""
    # Without a config every layer keeps all T cells; a sliding layer would drop those the decoder still reads.
    cache = DynamicCache()
    base = model.get_base_model()
    trunk = base.base_model
    with torch.no_grad(), model.disable_adapter():
        inputs = trunk_inputs(base, attention_mask)
        trunk(input_ids=input_ids, **inputs, use_cache=True, **{cache_argument(trunk): cache})
    return cache


def decoder_masks(config: Any, rows: Tensor, attention_mask: Tensor, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
    """The masks of decoder rows as the model's forward takes them: one, or where kinds of layers differ one per kind.

    Raises `IcarusError` for a kind that is neither full nor sliding attention.
    """
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or [])
    unknown = kinds - {FULL, SLIDING}
    if unknown:
        raise IcarusError(f"layers with {', '.join(sorted(unknown))} have no decoder rows here")
    if not kinds:
        # Models without kinds of layers, as Mistral and Phi 3, slide everywhere where they have a window.
        return decoder_mask(rows, attention_mask, dtype, window)
    masks = {kind: decoder_mask(rows, attention_mask, dtype, window if kind == SLIDING else None) for kind in kinds}
    return masks if len(masks) > 1 else masks.popitem()[1]


def decoder_mask(rows: Tensor, attention_mask: Tensor, dtype: torch.dtype, window: int | None = None) -> Tensor:
    """Additive mask [B, 1, S, T] for decoder rows at `rows` [B, S]: the keys that are at or before the row, less than
    `window` positions before it, of the same sample, and not padding."""
    keys = torch.arange(attention_mask.shape[1], device=rows.device)
    distance = rows[:, :, None] - keys
    visible = (distance >= 0) & attention_mask[:, None, :].bool()
    if is_packed(attention_mask):
        visible &= attention_mask.gather(1, rows)[:, :, None] == attention_mask[:, None, :]
    if window is not None:
        visible &= distance < window
    mask = torch.zeros(visible.shape, dtype=dtype, device=rows.device)
    return mask.masked_fill(~visible, torch.finfo(dtype).min)[:, None]


def rope_follows_length(config: Any) -> bool:
    """Whether the model's rope takes other frequencies for a longer context (LongRoPE, dynamic NTK)."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    return any(kind.get("rope_type") in ("longrope", "dynamic") for kind in kinds)


def ordinary_logits(
    model: PeftModel, input_ids: Tensor, attention_mask: Tensor, positions: Tensor | None = None
) -> Tensor:
    """PEFT's ordinary forward: K and V come from adapted hidden states. What ICaRus is not.

    Arguments and result as of `two_stream_logits`; all rows go through the layers, and the head sees `positions` only.
    """
    base = model.get_base_model()
    with head_at(base, positions):
        outputs = base(input_ids=input_ids, **trunk_inputs(base, attention_mask), use_cache=False)
    logits: Tensor = outputs.logits
    return logits


@contextmanager
def head_at(model: PreTrainedModel, positions: Tensor | None) -> Iterator[None]:
    """Lets the head of a causal LM see the hidden states at `positions` [B, S] only (-1 takes the first)."""

    def gathered(_head: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        (hidden,) = inputs
        assert positions is not None
        rows = positions.clamp(min=0)[:, :, None].expand(-1, -1, hidden.shape[-1])
        return (hidden.gather(1, rows),)

    if positions is None:
        yield
        return
    hook = model.get_output_embeddings().register_forward_pre_hook(gathered)
    try:
        yield
    finally:
        hook.remove()


def base_logits(model: PeftModel, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """The frozen base's logits, [B, T, vocab], without gradient."""
    with torch.no_grad(), model.disable_adapter():
        return ordinary_logits(model, input_ids, attention_mask)


def cache_argument(model: torch.nn.Module) -> str:
    """`cache`, or `past_key_values` as transformers called it before 5.2x."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
