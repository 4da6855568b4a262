"""Several tokens of an answer in one step, where an agent repeats what the conversation holds: prompt lookup."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from icarus_local.engine.engine import VERIFY_SIZES, Engine, Logits

_NGRAM = 3  # tokens that must have occurred before; fewer draft too much that is wrong
_FIRST_SIZE = 2  # index into VERIFY_SIZES
_LEAST_GAIN = 1.02  # verified tokens per second over stepped ones, below which drafting pauses
_TRIALS = 3  # verifications before that is judged
_FIRST_PAUSE, _MAX_PAUSE = 16, 256  # tokens


class PromptLookup:
    """Drafts what followed the last tokens where they stood before (prompt lookup decoding)."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        """Appends a token to what is known."""
        if len(self._tokens) >= _NGRAM:
            self._after[tuple(self._tokens[-_NGRAM:])] = len(self._tokens)
        self._tokens.append(token)

    def draft(self, n: int) -> list[int]:
        """Up to `n` tokens that followed the latest earlier occurrence of the last ones; none where there is none."""
        start = self._after.get(tuple(self._tokens[-_NGRAM:]))
        return [] if start is None else self._tokens[start : start + n]


class _Pace:
    """Whether drafting pays, from the times and acceptances of this answer, and how long the drafts should be."""

    def __init__(self) -> None:
        self._size = _FIRST_SIZE
        self._step_s: float | None = None
        self._trials, self._tokens, self._seconds = 0, 0, 0.0
        self._pause, self._paused = _FIRST_PAUSE, 0

    @property
    def n_tokens(self) -> int:
        """Tokens of the next verification: the one that was said, and a draft."""
        return VERIFY_SIZES[self._size]

    def may_draft(self) -> bool:
        """Whether to draft for the next token; counts the pauses down."""
        if self._step_s is None:
            return False
        if self._paused:
            self._paused -= 1
            return False
        return True

    def stepped(self, seconds: float) -> None:
        """Takes the time of a step of one token."""
        self._step_s = seconds if self._step_s is None else 0.8 * self._step_s + 0.2 * seconds

    def verified(self, seconds: float) -> None:
        """Takes the time of a verification."""
        self._trials, self._seconds = self._trials + 1, self._seconds + seconds

    def settled(self, drafted: int, accepted: int) -> None:
        """Takes what became of a draft."""
        self._tokens += accepted + 1
        step = 1 if accepted == drafted else -1
        self._size = min(max(self._size + step, 0), len(VERIFY_SIZES) - 1)
        assert self._step_s is not None
        if self._trials >= _TRIALS:
            if self._tokens * self._step_s < _LEAST_GAIN * self._seconds:
                self._paused, self._pause = self._pause, min(2 * self._pause, _MAX_PAUSE)
            # The last few decide, not the whole answer.
            self._trials, self._tokens, self._seconds = 0, 0, 0.0


class NextLogits:
    """The logits after each token of one answer, in order; where drafts are exact, the same bits with and without.

    Attributes:
        drafted, accepted: tokens so far.
    """

    def __init__(
        self, engine: Engine, sequence: int, adapter_id: int | None, prompt: Sequence[int], drafts: bool | None
    ) -> None:
        """Prepares an answer to `prompt`, which the sequence holds.

        `drafts` None drafts only where the bits stay the same, True everywhere.
        """
        self._engine, self._sequence, self._adapter_id = engine, sequence, adapter_id
        # The base's own row is a lone one, whose kernels a row among others does not share.
        self._lookup = PromptLookup(prompt) if drafts is not False and adapter_id is not None else None
        self._exact_only = drafts is None
        self._pace = _Pace()
        self._draft: list[int] = []
        self._rows: Logits = np.empty((0, 0), np.float32)
        self._used = 0
        self.drafted = self.accepted = 0

    @property
    def n_free(self) -> int:
        """Cells that the rest of the answer may take, those of drafted tokens among them."""
        return self._engine.cells.n_free + len(self._draft) - self._used

    def after(self, token: int) -> Logits:
        """Logits [n_vocab] of the token that follows `token`, which is appended to the sequence.

        Raises:
            CancelledError, ContextFullError: as `Engine.forward`.
        """
        if self._lookup is not None:
            self._lookup.add(token)
        if self._used < len(self._draft) and self._draft[self._used] == token:
            self._used += 1
            self.accepted += 1
            logits: Logits = self._rows[self._used]
            return logits
        self.settle()
        return self._step(token)

    def _step(self, token: int) -> Logits:
        logits: Logits
        draft, start = self._next_draft(), time.perf_counter()
        engine, step = self._engine, [(self._sequence, [token])]
        if draft:
            assert self._adapter_id is not None
            self._rows = engine.verify(self._sequence, [token, *draft], self._adapter_id)
            self._draft, self.drafted = draft, self.drafted + len(draft)
            self._pace.verified(time.perf_counter() - start)
            logits = self._rows[0]
            return logits
        if self._adapter_id is None:
            rows = engine.forward(encode=step, encoder_logits=True).encoder
        else:
            rows = engine.forward(encode=step, decode=[(self._sequence, self._adapter_id)]).decoder
        self._pace.stepped(time.perf_counter() - start)
        logits = rows[0]
        return logits

    def _next_draft(self) -> list[int]:
        if self._lookup is None or not self._pace.may_draft():
            return []
        draft = self._lookup.draft(self._pace.n_tokens - 1)
        if not draft:
            return []
        most = min(len(draft) + 1, self._engine.verifiable(self._exact_only))
        return draft[: max((size for size in VERIFY_SIZES if size <= most), default=1) - 1]

    def settle(self) -> None:
        """Takes drafted tokens that were not said out of the sequence; to be called however the answer ends."""
        if not self._draft:
            return
        rejected = len(self._draft) - self._used
        length = self._engine.cells.length(self._sequence)
        self._engine.cells.truncate(self._sequence, length - rejected)
        self._pace.settled(len(self._draft), self._used)
        self._draft, self._used = [], 0
