"""A PEFT adapter's logits in PyTorch, as ICaRus defines them and as PEFT applies it: what a conversion is held to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from peft import PeftModel

from icarus_local.errors import AdapterError, IcarusError
from icarus_models.base import load_base
from icarus_models.reference import base_logits, ordinary_logits, two_stream_logits


@dataclass(frozen=True, eq=False)
class ReferenceLogits:
    """Logits [tokens, vocab] float32 of the base alone, of ICaRus's two streams, and of PEFT's ordinary forward."""

    base: npt.NDArray[np.float32]
    two_stream: npt.NDArray[np.float32]
    ordinary: npt.NDArray[np.float32]


def adapter_logits(base: Path, adapter: Path, tokens: Sequence[int]) -> ReferenceLogits:
    """Logits of a text of token ids.

    Args:
        base: a Hugging Face folder, or a GGUF, which is dequantised once and kept (`base.load_base`).
        adapter: a PEFT folder, read by PEFT itself.

    Raises:
        IcarusError: either cannot be loaded.
    """
    model = load_base(base)
    try:
        peft = PeftModel.from_pretrained(model, str(adapter)).eval()
    except (ValueError, OSError, RuntimeError, KeyError, TypeError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise AdapterError(f"{adapter}: PEFT cannot load it: {said}", "Save it again with PEFT") from error
    ids = torch.tensor([list(tokens)])
    if max(tokens) >= model.get_input_embeddings().num_embeddings:
        raise IcarusError(f"{base} has fewer tokens than the GGUF", "Give the model that the GGUF was made of")
    mask = torch.ones_like(ids)
    with torch.no_grad():
        found = [how(peft, ids, mask)[0].float().numpy() for how in (base_logits, two_stream_logits, ordinary_logits)]
    return ReferenceLogits(*found)
