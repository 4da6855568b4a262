"""Gradient checkpointing that keeps the cache: transformers' own takes it from the layers, which unmakes ICaRus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


def checkpoint_layers(model: torch.nn.Module) -> int:
    """From now on keeps of every layer only its input for the backward pass, which runs the layer again.

    An `EncoderView` gives the same K and V the second time, and the encoder itself runs without gradients and is not
    touched. Gives the number of layers.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.forward = _again_backwards(layer.forward)
    return len(layers)


def _again_backwards(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run
