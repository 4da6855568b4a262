"""Decoder rows against ICaRus in PyTorch: F32 weights, f32 cache, so that a fault is far above rounding."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from icarus_local.engine.adapter_file import Adapter, read_adapter
from icarus_local.engine.engine import Engine
from tests.agents import add_agents, convert
from tests.gguf_files import quantised
from tests.tiny import tiny_llama

BOUND = 1e-3
PROMPT, TURN = 20, 40  # tokens before the first answer, and of each turn
SHORT = 150  # tokens that suffice to see a sabotage


@dataclass(eq=False)
class World:
    """A base in both worlds, agents A and B, and a conversation of 700 tokens."""

    peft: Any
    base: Path
    adapters: dict[str, Adapter]
    tokens: list[int]

    def speaker(self, position: int) -> str:
        return "AB"[(position - PROMPT) // TURN % 2]

    @functools.cache  # noqa: B019 - two worlds live for a module's tests
    def torch_logits(self, how: str = "two_stream_logits") -> dict[str, npt.NDArray[np.float32]]:
        """Logits of A and of B at every position."""
        import torch

        from icarus_models import reference

        ids = torch.tensor([self.tokens])
        logits = {}
        for name in "AB":
            self.peft.set_adapter(name)
            with torch.no_grad():
                logits[name] = getattr(reference, how)(self.peft, ids, torch.ones_like(ids))[0].numpy()
        return logits


@pytest.fixture(scope="module", params=["tiny", pytest.param("smollm2", marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "tiny":
        tiny = tiny_llama(directory, n_layer=3)
        rng = np.random.default_rng(5)
        model, base, tokens = tiny.model, tiny.path, rng.integers(3, 270, 700).tolist()
    else:
        from icarus_models.base import load_base

        smollm2 = request.getfixturevalue("smollm2")
        model, base = load_base(smollm2, directory / "cache"), quantised(smollm2, directory / "base.gguf", "F32")
        tokens = request.getfixturevalue("text_tokens")[:700]
    peft = add_agents(model, {"A": 0.03, "B": 0.03})
    adapters = {name: read_adapter(convert(peft, name, base, directory)) for name in "AB"}
    return World(peft, base, adapters, tokens)


def engine_logits(
    world: World, adapters: dict[str, Adapter], end: int = 700, stale: bool = False
) -> npt.NDArray[np.float32]:
    """What the program computes for the conversation, [end - PROMPT + 1, n_vocab]: the speaker's row at each position.

    `stale` keeps the last speaker's logits at a change of speaker, as a careless runtime would.
    """
    rows = []
    with Engine(world.base, n_ctx=768, kv_type="f32") as engine:
        ids = {name: engine.add_adapter(adapter) for name, adapter in adapters.items()}
        sequence = engine.cells.create()
        engine.forward(encode=[(sequence, world.tokens[:PROMPT])])
        rows.append(engine.forward(decode=[(sequence, ids["A"])]).decoder[0])
        for position in range(PROMPT, end):
            name, step = world.speaker(position), [(sequence, [world.tokens[position]])]
            changes = (position - PROMPT) % TURN == 0
            previous = world.speaker(position - 1) if stale and changes and position > PROMPT else name
            rows.append(engine.forward(encode=step, decode=[(sequence, ids[previous])]).decoder[0])
    return np.stack(rows)


def expected(world: World, logits: dict[str, npt.NDArray[np.float32]], end: int = 700) -> npt.NDArray[np.float32]:
    speakers = ["A", *(world.speaker(position) for position in range(PROMPT, end))]
    return np.stack([logits[name][PROMPT - 1 + i] for i, name in enumerate(speakers)])


def largest(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    return float(np.abs(a - b).max())


def test_every_position_of_an_alternating_conversation_is_the_references(world: World) -> None:
    ours = engine_logits(world, world.adapters)
    theirs = expected(world, world.torch_logits())
    difference = largest(ours, theirs)
    print(f"largest difference {difference:.2e}, logits' standard deviation {theirs.std():.2f}")
    assert difference <= BOUND
    # The bound can see what it is for: an ordinary LoRA, and the other agent.
    assert largest(ours, expected(world, world.torch_logits("ordinary_logits"))) > 20 * BOUND
    other = {"A": world.torch_logits()["B"], "B": world.torch_logits()["A"]}
    assert largest(ours, expected(world, other)) > 20 * BOUND


def test_a_scale_that_is_two_percent_off_is_seen(world: World) -> None:
    def stretched(adapter: Adapter) -> Adapter:
        pairs = {key: dataclasses.replace(pair, b=pair.b * np.float32(1.02)) for key, pair in adapter.pairs.items()}
        return dataclasses.replace(adapter, pairs=pairs)

    ours = engine_logits(world, {name: stretched(adapter) for name, adapter in world.adapters.items()}, SHORT)
    assert largest(ours, expected(world, world.torch_logits(), SHORT)) > 5 * BOUND


def test_logits_kept_from_the_last_speaker_are_seen(world: World) -> None:
    ours = engine_logits(world, world.adapters, SHORT, stale=True)
    theirs = expected(world, world.torch_logits(), SHORT)
    wrong = np.abs(ours - theirs).max(axis=1) > 20 * BOUND
    changes = [i for i in range(len(wrong)) if i > 1 and (i - 1) % TURN == 0]
    assert np.flatnonzero(wrong).tolist() == changes
