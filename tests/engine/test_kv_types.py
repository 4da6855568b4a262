"""Types of K and V: llama.cpp's bits for every head size and window, one cache for all speakers, what each loses."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import icarus_models
from icarus_local.engine.adapter_file import read_adapter
from icarus_local.engine.engine import Engine
from icarus_local.engine.kv import KV_TYPES, KvCache
from icarus_local.engine.oracle import Oracle
from icarus_local.errors import RequestError
from tests import relatives
from tests.agents import add_agents, convert
from tests.engine.side_by_side import assert_llama_decodes_bits
from tests.gguf_files import quantised
from tests.relatives import GEMMA2, GEMMA3, N_CTX, WINDOW, Variant, relative
from tests.tiny import Tiny, tiny_llama

TOKENS = np.random.default_rng(8).integers(3, 270, 4 * WINDOW).tolist()
PROMPT = 3 * WINDOW
# libllama casts an f32 cache to f16 under flash attention: f32 is compared with torch, in test_relatives.
COMPARED = ("f16", "q8_0", "q4_0")
# By llama.cpp: K is turned in blocks of the largest power of two that divides the head, V in blocks of 64.
ROTATIONS = {32: (0, 0), 64: (64, 64), 96: (0, 0), 128: (128, 64), 192: (64, 64), 256: (256, 64)}
WINDOWED = {
    "gemma2-64": Variant("gemma2", "Gemma2ForCausalLM", {**GEMMA2, "head_dim": 64}),
    "gemma3-128": Variant("gemma3", "Gemma3ForCausalLM", {**GEMMA3, "head_dim": 128}, config="Gemma3TextConfig"),
    "olmo3-32": Variant("olmo2", "Olmo3ForCausalLM", {**relatives.VARIANTS["olmo3"].options, "num_attention_heads": 2}),
}
CODER = Path(icarus_models.__path__[0]) / "adapters" / "coder.gguf"
Models = Callable[[object], Tiny]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """By head size, or by name in WINDOWED."""

    @cache
    def made(which: object) -> Tiny:
        directory = tmp_path_factory.mktemp("model")
        if isinstance(which, int):
            return tiny_llama(directory, hidden=4 * which, n_ctx=N_CTX)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(relatives.VARIANTS, which, WINDOWED[str(which)])
            return relative(str(which), directory)

    return made


@pytest.mark.parametrize("kv_type", COMPARED)
@pytest.mark.parametrize("which", [*ROTATIONS, *WINDOWED])
def test_every_head_size_and_window_equals_llama_decode(
    models: Models, tmp_path: Path, which: object, kv_type: str
) -> None:
    # In Q4_1, two rows go through the kernel of one.
    path = quantised(models(which).path, tmp_path / "q4_1.gguf", "Q4_1")
    with (
        Engine(path, n_ctx=512, kv_type=kv_type, repack=False, n_threads=1) as engine,
        Oracle(path, 512, 1, kv_type=kv_type) as oracle,
    ):
        assert_llama_decodes_bits(engine, oracle, TOKENS, n_prompt=PROMPT, n_single=6, n_dual=6)


@pytest.mark.parametrize(("head", "rotations"), ROTATIONS.items())
def test_which_caches_are_rotated(models: Models, head: int, rotations: tuple[int, int]) -> None:
    for kv_type in KV_TYPES:
        with Engine(models(head).path, n_ctx=256, kv_type=kv_type) as engine:
            cache: KvCache = engine._kv
            expected = rotations if kv_type.startswith("q") else (0, 0)
            assert (cache.k_rotation, cache.v_rotation) == expected


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("which", [64, "gemma2-64"])
def test_the_cache_is_the_same_whoever_spoke(models: Models, tmp_path: Path, which: object, kv_type: str) -> None:
    tiny = models(which)
    peft = add_agents(tiny.model, {"A": 0.1, "B": 0.1})
    with Engine(tiny.path, n_ctx=256, kv_type=kv_type, n_threads=1) as engine:
        agents = [engine.add_adapter(read_adapter(convert(peft, name, tiny.path, tmp_path))) for name in "AB"]
        caches, logits = [], []
        for speaker in (*agents, None):
            sequence = engine.cells.create()
            engine.forward(encode=[(sequence, TOKENS[:40])])
            for token in TOKENS[40:60]:
                step = engine.forward(encode=[(sequence, [token])], decode=[(sequence, speaker)])
            caches.append(engine.kv_bytes(sequence))
            logits.append(step.decoder)
            engine.cells.drop(sequence)
        assert len(caches[0]) == 60 * engine.kv_bytes_per_token
        assert caches[0] == caches[1] == caches[2]
        assert not np.array_equal(logits[0], logits[1])


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_heads_that_are_no_whole_blocks_are_refused(tiny: Tiny, kv_type: str) -> None:
    with pytest.raises(RequestError, match=f"KV type of {kv_type} needs heads of a multiple of 32 .* have 16"):
        Engine(tiny.path, kv_type=kv_type)


def log_probabilities(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))  # type: ignore[no-any-return]


def test_what_each_type_loses(smollm2: Path, text_tokens: list[int]) -> None:
    """Kullback-Leibler divergence from an f32 cache: the base's over 256 places of a text, an agent's over 24 more."""
    logits: dict[tuple[str, str], npt.NDArray[np.float32]] = {}
    for kv_type in KV_TYPES:
        with Engine(smollm2, n_ctx=512, kv_type=kv_type, n_threads=1) as engine:
            agent, sequence = engine.add_adapter(read_adapter(CODER)), engine.cells.create()
            encode = [(sequence, text_tokens[:256])]
            logits["base", kv_type] = engine.forward(encode=encode, encoder_logits=True).encoder
            steps = [
                engine.forward(encode=[(sequence, [token])], decode=[(sequence, agent)])
                for token in text_tokens[256:280]
            ]
            logits["agent", kv_type] = np.concatenate([step.decoder for step in steps])
    # The base quantises its activations: rounded otherwise, any cache gives 0.004.
    bounds = {"f16": 0.012, "q8_0": 0.012, "q4_0": 0.15}
    for speaker in ("base", "agent"):
        p = log_probabilities(logits[speaker, "f32"])
        for kv_type, bound in bounds.items():
            q = log_probabilities(logits[speaker, kv_type])
            loss = float((np.exp(p) * (p - q)).sum(axis=-1).mean())
            same = float((p.argmax(axis=-1) == q.argmax(axis=-1)).mean())
            print(f"{speaker}, {kv_type}: mean divergence {loss:.4f}, the same likeliest token at {same:.0%}")
            assert loss < bound
