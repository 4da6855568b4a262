"""What the cache holds of the conversation: how much of a prompt is there, what goes when it fills, what it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from icarus_local.chat.conversation import Conversation
from icarus_local.chat.events import CacheUsed, ContextCut
from icarus_local.chat.room import make_room, room_for
from icarus_local.engine.engine import Engine


class Cached:
    """A conversation and its sequence. To be used from the engine's thread.

    Attributes:
        sequence: of the conversation. What is in it beyond what the conversation renders to (a question that was taken
            back) spares encoding that again where the same is asked, and goes where something else is.
    """

    def __init__(self, engine: Engine, conversation: Conversation) -> None:
        self._engine, self._conversation = engine, conversation
        self.sequence = engine.cells.create()
        # Where the conversation ends in it; None at its end.
        self._end: int | None = None

    def common(self, prompt: Sequence[int]) -> int:
        """Tokens at the beginning of `prompt` that are in the cache."""
        cached = self._engine.cells.tokens(self.sequence)
        n = min(len(cached), len(prompt))
        differing = np.flatnonzero(cached[:n] != np.array(prompt[:n], np.int32))
        return int(differing[0]) if len(differing) else n

    def reuse(self, prompt: Sequence[int]) -> int:
        """Cuts the cache to what it has in common with `prompt`, and gives that length."""
        common = self.common(prompt)
        self._engine.cells.truncate(self.sequence, common)
        self._end = None
        return common

    def make_room(self, max_tokens: Sequence[int], measure: Callable[[], int]) -> ContextCut | None:
        """Leaves old turns out where the context is full, and counts what that costs (see `room.make_room`)."""
        conversation, n_ctx = self._conversation, self._engine.n_ctx
        before = conversation.turns
        removed = make_room(conversation, measure, n_ctx, room_for(sum(max_tokens), n_ctx))
        if removed is None:
            return None
        after, conversation.turns = conversation.turns, before
        spared = self.common(conversation.prompt())
        conversation.turns = after
        # Of what was in the cache before, this much stands behind the cut and is still in the conversation.
        again = spared - self.common(conversation.prompt()) - removed.tokens
        return ContextCut(removed.turns, removed.tokens, removed.files, max(again, 0))

    def shorten(self) -> None:
        """The conversation has lost turns: what is in the cache of these counts no more."""
        self._end = self.common(self._conversation.next_prompt())

    @property
    def length(self) -> int:
        """Tokens of the conversation that are in the cache."""
        n_cells = self._engine.cells.length(self.sequence)
        return n_cells if self._end is None else min(self._end, n_cells)

    def used(self, caches: int) -> CacheUsed:
        """What the conversation takes, and what it would take in that many caches."""
        n_bytes = self.length * self._engine.kv_bytes_per_token
        return CacheUsed(self.length, n_bytes, caches, n_bytes * caches)
