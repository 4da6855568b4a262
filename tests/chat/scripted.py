"""Answers whose tokens a test chooses: no model says on demand what it thinks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from icarus_local.chat.agents import Agent
from icarus_local.chat.events import AnswerDone, TextDelta
from icarus_local.chat.generation import Generation
from icarus_local.chat.roster import ReadyAgent


def generate(
    tokenizer: Any,
    n_vocab: int,
    ids: Sequence[int],
    thinking: bool = False,
    stop: tuple[str, ...] = (),
    max_tokens: int = 512,
) -> tuple[Generation, AnswerDone]:
    """An answer in which a model says `ids`, up to what ends it; cancelled where nothing does.

    `tokenizer` has `piece` and `is_end_of_generation`.
    """
    speaker = ReadyAgent(Agent(name="a", stop=stop, max_tokens=max_tokens), None)
    generation = Generation(speaker, tokenizer, [1, 2, 3], 1, n_vocab=n_vocab, thinking=thinking)
    deltas: list[TextDelta] = []
    with closing(generation):
        for token in ids:
            deltas += generation.take(np.eye(1, n_vocab, token, dtype=np.float32)[0])
            if generation.finish:
                break
        deltas += generation.end("cancelled")
    done = generation.done(0, 0)
    # What was streamed is what the record holds.
    for which, whole in ((True, done.thought), (False, done.text)):
        assert "".join(delta.text for delta in deltas if delta.thought is which) == whole
    assert generation.text == done.text
    assert done.generated == len(generation.tokens)
    return generation, done


def script(monkeypatch: pytest.MonkeyPatch, answers: Iterable[Sequence[int]]) -> None:
    """The next answers of any session say these ids, whatever the logits are."""
    remaining = iter(answers)

    class Scripted:
        def __init__(self, *_: object) -> None:
            self._ids = iter(next(remaining))

        def sample(self, _: object) -> int:
            return next(self._ids)

        def close(self) -> None:
            pass

    monkeypatch.setattr("icarus_local.chat.generation.Sampler", Scripted)
