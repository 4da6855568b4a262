"""Every architecture: encoder rows are llama.cpp's bit for bit, decoder rows are the torch reference's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from icarus_local.engine.adapter_file import read_adapter
from icarus_local.engine.engine import Engine
from icarus_local.engine.oracle import Oracle
from tests.agents import add_agents, convert
from tests.engine.side_by_side import assert_llama_decodes_bits
from tests.gguf_files import quantised, rewritten
from tests.relatives import VARIANTS, WINDOW, relative
from tests.test_relatives import EXACT, GELU_TABLE, TOKENS
from tests.tiny import Tiny, tiny_llama

N_CTX = {"phi3-longrope-short": 512}
PROMPT = 3 * WINDOW - 20  # past the window, and more than the tokens of a step
Logits = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tiny]:
    made: dict[str, Tiny] = {}

    def get(variant: str) -> Tiny:
        if variant not in made:
            made[variant] = relative(variant, tmp_path_factory.mktemp(variant))
        return made[variant]

    return get


def n_ctx(variant: str) -> int:
    return N_CTX.get(variant, 768)


@pytest.mark.parametrize("variant", VARIANTS)
def test_encoder_rows_are_llama_decodes(models: Callable[[str], Tiny], variant: str) -> None:
    path = models(variant).path
    with Engine(path, n_ctx=n_ctx(variant), repack=False) as engine, Oracle(path, n_ctx(variant), 2) as oracle:
        assert_llama_decodes_bits(engine, oracle, TOKENS, n_prompt=PROMPT, n_single=12, n_dual=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_dual_steps_are_llama_decodes_of_two_rows(models: Callable[[str], Tiny], variant: str, tmp_path: Path) -> None:
    # In F32 two rows go through another kernel than one, and K and V here are projected from the encoder's row alone.
    path = quantised(models(variant).path, tmp_path / "q4_1.gguf", "Q4_1")
    with Engine(path, n_ctx=n_ctx(variant), repack=False) as engine, Oracle(path, n_ctx(variant), 2) as oracle:
        n_dual = len(TOKENS) - PROMPT
        assert_llama_decodes_bits(engine, oracle, TOKENS, n_prompt=PROMPT, n_single=0, n_dual=n_dual)


@pytest.mark.parametrize("variant", VARIANTS)
def test_decoder_rows_are_the_references(models: Callable[[str], Tiny], variant: str, tmp_path: Path) -> None:
    import torch

    from icarus_models import reference

    tiny = models(variant)
    peft = add_agents(tiny.model, {"A": 0.03})
    ids = torch.tensor([TOKENS])
    with torch.no_grad():
        theirs, ordinary = (
            getattr(reference, how)(peft, ids, torch.ones_like(ids))[0].numpy()
            for how in ("two_stream_logits", "ordinary_logits")
        )
    ours = []
    with Engine(tiny.path, n_ctx=n_ctx(variant), kv_type="f32") as engine:
        agent = engine.add_adapter(read_adapter(convert(peft, "A", tiny.path, tmp_path)))
        sequence = engine.cells.create()
        engine.forward(encode=[(sequence, TOKENS[:20])])
        ours.append(engine.forward(decode=[(sequence, agent)]).decoder[0])
        for token in TOKENS[20:]:
            ours.append(engine.forward(encode=[(sequence, [token])], decode=[(sequence, agent)]).decoder[0])
    bound = GELU_TABLE if variant.startswith("gemma") else EXACT
    difference = float(np.abs(np.stack(ours) - theirs[19:]).max())
    print(f"{variant}: largest difference {difference:.2e}, logits' standard deviation {theirs.std():.2f}")
    assert difference <= bound
    # What the bound is for: a LoRA applied the ordinary way.
    assert float(np.abs(np.stack(ours) - ordinary[19:]).max()) > 5 * bound


def test_layers_that_a_prompt_never_reaches_take_no_input(models: Callable[[str], Tiny], tmp_path: Path) -> None:
    # Encoding ends at the last layer's K and V: here no other layer has its kind of mask, or any.
    pattern = {"gemma3.attention.sliding_window_pattern": [True] * 6 + [False]}
    lone = tiny_llama(tmp_path, n_layer=1).path
    for path in (rewritten(models("gemma3").path, tmp_path / "last.gguf", pattern), lone):
        with Engine(path, n_ctx=256, n_threads=1) as engine, Oracle(path, 256, 1) as oracle:
            sequence = engine.cells.create()
            engine.forward(encode=[(sequence, TOKENS[:50])])
            theirs = oracle.prefill(TOKENS[:51])[-1]
            ours = engine.forward(encode=[(sequence, [TOKENS[50]])], decode=[(sequence, None)]).decoder[0]
            assert np.allclose(ours, theirs, atol=0.05)
