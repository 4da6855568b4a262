"""What a LoRA computes the ordinary way, by llama.cpp: every layer's K and V come from adapted hidden states."""

from __future__ import annotations

import ctypes
import os
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from icarus_local.engine.oracle import Oracle
from icarus_local.errors import AdapterError


class OrdinaryOracle(Oracle):
    """llama.cpp's forward pass with a LoRA over the whole context."""

    def apply(self, adapter: Path) -> None:
        """Applies a GGUF LoRA from here on; it is freed with the model.

        Raises:
            AdapterError: libllama refuses it.
        """
        handle = self._llama.llama_adapter_lora_init(self._model, os.fsencode(adapter))
        if not handle:
            raise AdapterError(f"{adapter}: libllama cannot load it", "--debug shows why")
        handles = (self._llama.llama_adapter_lora_p_ctypes * 1)(handle)
        if self._llama.llama_set_adapters_lora(self._context, handles, 1, (ctypes.c_float * 1)(1.0)):
            raise AdapterError(f"{adapter}: libllama cannot apply it", "--debug shows why")


def ordinary_logits(base: Path, adapter: Path, tokens: list[int], n_threads: int) -> npt.NDArray[np.float32]:
    """Logits [tokens, n_vocab] of a text, an adapter applied the ordinary way.

    Raises:
        ModelFileError: libllama cannot load the base or the adapter.
    """
    with closing(OrdinaryOracle(base, max(256, len(tokens)), n_threads, kv_type="f32")) as oracle:
        oracle.apply(adapter)
        return oracle.prefill(tokens)
