"""llama.cpp's own forward pass over a base: proves that encoder rows are the same bits, and is measured beside ours."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from icarus_local.engine.kv import KV_TYPES
from icarus_local.errors import AdapterError, IcarusError, ModelFileError, RequestError
from icarus_local.ggml.gguf import check_header
from icarus_local.ggml.library import load_llama

_FLASH_ATTENTION_ON = 1  # LLAMA_FLASH_ATTN_TYPE_ENABLED
_N_UBATCH = 512


class LlamaModel:
    """A base in libllama, on the CPU, and LoRA adapters over it.

    Attributes:
        path: the base's file. handle: address of the llama_model.
    """

    def __init__(self, path: Path, *, repack: bool = False) -> None:
        """Loads the base, its weights repacked for the CPU where asked for.

        Raises:
            ModelFileError: libllama refuses it.
        """
        check_header(path)
        self.path = path
        self._llama: Any = load_llama()
        params = self._llama.llama_model_default_params()
        params.n_gpu_layers, params.use_extra_bufts = 0, repack
        self.handle = self._llama.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise ModelFileError(f"{path}: libllama cannot load it", "--debug shows why")

    def add_adapter(self, path: Path) -> int:
        """Loads a GGUF LoRA, which is freed with the model; gives what `LlamaContext.use` takes.

        Raises:
            AdapterError: libllama refuses it.
        """
        check_header(path)
        adapter = self._llama.llama_adapter_lora_init(self.handle, os.fsencode(path))
        if not adapter:
            raise AdapterError(f"{path}: libllama cannot load it over {self.path}", "--debug shows why")
        address = ctypes.cast(adapter, ctypes.c_void_p).value
        assert address is not None
        return address

    def close(self) -> None:
        """Frees the model, whose contexts must be closed; may be called twice."""
        if self.handle:
            self._llama.llama_model_free(self.handle)
            self.handle = None


class LlamaContext:
    """One libllama context set up as the engine is: on the CPU, flash attention, KV in one stream, all cells kept.

    Attributes:
        n_ctx: cells of its cache. n_vocab: tokens of the vocabulary.
    """

    def __init__(
        self, model: LlamaModel, n_ctx: int, n_threads: int, *, n_seq_max: int = 4, kv_type: str = "f16"
    ) -> None:
        """Makes a context over a model, which stays the caller's.

        Raises:
            ModelFileError: libllama refuses it.
        """
        self._llama: Any = load_llama()
        self._model = model.handle
        params = self._llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, _N_UBATCH, _N_UBATCH
        params.n_seq_max, params.kv_unified = n_seq_max, True
        # In a build with a GPU, long batches and attention would go there.
        params.op_offload = params.offload_kqv = False
        params.swa_full = True  # all cells are kept, as the engine does
        params.n_threads = params.n_threads_batch = n_threads
        params.flash_attn_type = _FLASH_ATTENTION_ON
        params.type_k = params.type_v = KV_TYPES[kv_type]
        self._context = self._llama.llama_init_from_model(self._model, params)
        if not self._context:
            raise ModelFileError(f"{model.path}: libllama cannot make a context of {n_ctx} tokens", "--debug shows why")
        self.n_ctx = int(self._llama.llama_n_ctx(self._context))
        self.n_vocab = int(self._llama.llama_vocab_n_tokens(self._llama.llama_model_get_vocab(self._model)))

    def use(self, adapter: int | None) -> None:
        """Applies an adapter of the model to every row from now on, the ordinary way; None for the base alone."""
        kind, n = self._llama.llama_adapter_lora_p_ctypes, int(adapter is not None)
        handles, scales = (kind * n)(), (ctypes.c_float * n)(*[1.0] * n)
        if adapter is not None:
            handles[0] = ctypes.cast(adapter, kind)
        status = self._llama.llama_set_adapters_lora(self._context, handles, n, scales)
        if status != 0:
            raise IcarusError(f"llama_set_adapters_lora failed with status {status}")

    def decode(self, rows: Sequence[tuple[int, int, int]], n_logits: int | None = None) -> npt.NDArray[np.float32]:
        """Logits [n_logits, n_vocab] float32 of the last rows (default all) of a batch of (token, position, sequence).

        At most 512 rows.
        """
        llama, n = self._llama, len(rows)
        if n > min(_N_UBATCH, self.n_ctx):
            # libllama would abort.
            raise RequestError(f"{n} rows in one batch of a context of {self.n_ctx} tokens")
        first = 0 if n_logits is None else n - n_logits
        batch = llama.llama_batch_init(n, 0, 1)
        try:
            batch.n_tokens = n
            for i, (token, position, sequence) in enumerate(rows):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
                batch.seq_id[i][0], batch.logits[i] = sequence, i >= first
            status = llama.llama_decode(self._context, batch)
            if status != 0:
                raise IcarusError(f"llama_decode failed with status {status}")
            logits = np.empty((n - first, self.n_vocab), np.float32)
            for i, row in enumerate(logits, first):
                ctypes.memmove(row.ctypes.data, llama.llama_get_logits_ith(self._context, i), row.nbytes)
            return logits
        finally:
            llama.llama_batch_free(batch)

    def prefill(
        self, tokens: Sequence[int], start: int = 0, sequence: int = 0, last_only: bool = False
    ) -> npt.NDArray[np.float32]:
        """Logits [tokens, n_vocab] of `tokens` from position `start` on, in batches of 512; or only the last row."""
        parts = []
        for i in range(0, len(tokens), _N_UBATCH):
            chunk = tokens[i : i + _N_UBATCH]
            rows = [(token, start + i + j, sequence) for j, token in enumerate(chunk)]
            parts.append(self.decode(rows, int(i + len(chunk) == len(tokens)) if last_only else None))
        return np.concatenate(parts)

    def copy_sequence(self, source: int, target: int) -> None:
        """Lets sequence `target` see what `source` sees."""
        self._llama.llama_memory_seq_cp(self._llama.llama_get_memory(self._context), source, target, -1, -1)

    def truncate(self, length: int, sequence: int = 0) -> None:
        """Forgets a sequence's positions from `length` on."""
        self._llama.llama_memory_seq_rm(self._llama.llama_get_memory(self._context), sequence, length, -1)

    def close(self) -> None:
        """Frees the context; may be called twice."""
        if self._context:
            self._llama.llama_free(self._context)
            self._context = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Oracle(LlamaContext):
    """A context with a model of its own.

    Attributes:
        model: the base.
    """

    def __init__(
        self,
        path: Path,
        n_ctx: int,
        n_threads: int,
        *,
        n_seq_max: int = 4,
        kv_type: str = "f16",
        repack: bool = False,
    ) -> None:
        """Loads the base into libllama.

        Raises:
            ModelFileError: libllama refuses it.
        """
        self.model = LlamaModel(path, repack=repack)
        try:
            super().__init__(self.model, n_ctx, n_threads, n_seq_max=n_seq_max, kv_type=kv_type)
        except ModelFileError:
            self.model.close()
            raise

    def close(self) -> None:
        """Frees context and model; may be called twice."""
        super().close()
        self.model.close()
