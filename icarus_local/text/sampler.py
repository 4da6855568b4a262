"""Sampling the next token through libllama's sampler chains, over logits that another graph computed."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from icarus_local.errors import RequestError
from icarus_local.ggml.library import load_llama

_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)], align=True)
_MAX_SEED = 2**32 - 1


class Sampling(BaseModel):
    """How an agent's next token is drawn; the defaults are greedy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(default=0.0, ge=0, le=10, description="0 is greedy")
    top_k: int = Field(default=40, ge=0, description="0 is all")
    top_p: float = Field(default=0.95, gt=0, le=1)
    min_p: float = Field(default=0.05, ge=0, le=1)
    repeat_penalty: float = Field(default=1.0, gt=0, le=10, description="1 is none")
    repeat_last_n: int = Field(default=64, ge=0, le=4096)
    seed: int | None = Field(default=None, ge=0, lt=_MAX_SEED, description="None draws one")


class Sampler:
    """One answer's sampler chain: penalties, then top-k, top-p, min-p, temperature and the draw (llama.cpp's order).

    The chain has state (penalties, random numbers), so each answer has its own.
    """

    def __init__(self, sampling: Sampling, n_vocab: int, history: list[int] | None = None) -> None:
        """Builds the chain.

        Args:
            sampling: the parameters.
            n_vocab: size of the logits.
            history: context tokens that the repeat penalty sees, oldest first.
        """
        self._llama = llama = load_llama()
        self._candidates = np.zeros(n_vocab, _TOKEN_DATA)
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._array = llama.llama_token_data_array(
            data=self._candidates.ctypes.data_as(ctypes.POINTER(llama.llama_token_data)),
            size=n_vocab,
            selected=-1,
            sorted=False,
        )
        self._chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        for sampler in self._samplers(sampling):
            llama.llama_sampler_chain_add(self._chain, sampler)
        if sampling.repeat_penalty != 1.0 and sampling.repeat_last_n:
            for token in (history or [])[-sampling.repeat_last_n :]:
                llama.llama_sampler_accept(self._chain, token)

    def _samplers(self, sampling: Sampling) -> list[int]:
        llama, samplers = self._llama, []
        if sampling.repeat_penalty != 1.0 and sampling.repeat_last_n:
            samplers.append(
                llama.llama_sampler_init_penalties(
                    len(self._ids), sampling.repeat_last_n, sampling.repeat_penalty, 0.0, 0.0
                )
            )
        if sampling.temperature == 0:
            return [*samplers, llama.llama_sampler_init_greedy()]
        if sampling.top_k:
            samplers.append(llama.llama_sampler_init_top_k(sampling.top_k))
        samplers += [
            llama.llama_sampler_init_top_p(sampling.top_p, 1),
            llama.llama_sampler_init_min_p(sampling.min_p, 1),
            llama.llama_sampler_init_temp(sampling.temperature),
            llama.llama_sampler_init_dist(_MAX_SEED if sampling.seed is None else sampling.seed),
        ]
        return samplers

    def sample(self, logits: npt.NDArray[np.float32]) -> int:
        """Draws a token from `logits` [n_vocab] float32 and lets the chain see it.

        Raises:
            RequestError: wrong size, or logits that are not numbers.
        """
        if logits.shape != self._ids.shape:
            raise RequestError(f"logits of shape {logits.shape} for a vocabulary of {len(self._ids)} tokens")
        if not np.isfinite(logits).all():
            raise RequestError("the logits hold NaN or infinity: the base or an adapter is damaged")
        self._candidates["id"] = self._ids
        self._candidates["logit"] = logits
        self._candidates["p"] = 0
        self._array.size, self._array.selected, self._array.sorted = len(self._ids), -1, False
        self._llama.llama_sampler_apply(self._chain, ctypes.byref(self._array))
        # The chain may have moved the candidates to a buffer of its own, so they are read through the array.
        token = int(self._array.data[self._array.selected].id)
        self._llama.llama_sampler_accept(self._chain, token)
        return token

    def close(self) -> None:
        """Frees the chain; may be called twice."""
        if self._chain:
            self._llama.llama_sampler_free(self._chain)
            self._chain = None
