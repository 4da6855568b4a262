"""Drafts change the time that an answer takes, and nothing else: not a token, not a byte of the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from icarus_local.bench.adapters import random_adapter
from icarus_local.chat.speculation import NextLogits, PromptLookup
from icarus_local.engine.adapter_file import Adapter, read_adapter
from icarus_local.engine.engine import VERIFY_SIZES, Engine
from icarus_local.errors import RequestError
from icarus_local.text.sampler import Sampler, Sampling
from tests.agents import add_agents, convert
from tests.gguf_files import in_types, quantised
from tests.relatives import relative
from tests.tiny import Tiny, tiny_llama

PROMPT = np.random.default_rng(2).integers(3, 250, 40).tolist() * 2


@given(tokens=st.lists(st.integers(0, 3), max_size=60), n=st.integers(0, 8))
def test_a_draft_is_what_followed_the_latest_earlier_occurrence(tokens: list[int], n: int) -> None:
    lookup = PromptLookup(tokens)
    expected: list[int] = []
    for end in range(len(tokens) - 1, 2, -1):
        if tokens[end - 3 : end] == tokens[-3:]:
            expected = tokens[end : end + n]
            break
    assert lookup.draft(n) == expected


def answer(
    engine: Engine, agent: int, sampling: Sampling, drafts: bool | None, n: int = 60
) -> tuple[list[int], bytes, int]:
    """Tokens of an answer, the cache's bytes after it, and how many drafted tokens were said."""
    sequence = engine.cells.create()
    engine.forward(encode=[(sequence, PROMPT)])
    logits = engine.forward(decode=[(sequence, agent)]).decoder[0]
    source = NextLogits(engine, sequence, agent, PROMPT, drafts)
    sampler = Sampler(sampling, engine.base.hp.n_vocab)
    tokens: list[int] = []
    while len(tokens) < n and source.n_free:
        tokens.append(sampler.sample(logits))
        logits = source.after(tokens[-1])
    source.settle()
    sampler.close()
    kv = engine.kv_bytes(sequence)
    engine.cells.drop(sequence)
    assert engine.cells.n_used == 0
    return tokens, kv, source.accepted


@pytest.fixture(scope="module", params=["llama", "gemma3", "qwen3moe", "phi3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tiny, Adapter]:
    directory = tmp_path_factory.mktemp(request.param)
    tiny = relative(request.param, directory)
    # A strong adapter: where A and the base say the same, a mistake could not be seen.
    return tiny, read_adapter(convert(add_agents(tiny.model, {"A": 0.05}), "A", tiny.path, directory))


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, seed=3)], ids=["greedy", "sampled"])
def test_an_answer_is_the_same_with_drafts(
    model: tuple[Tiny, Adapter], tmp_path: Path, kind: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Draft whatever it costs: tiny models would pause at once.
    monkeypatch.setattr("icarus_local.chat.speculation._LEAST_GAIN", 0.0)
    tiny, adapter = model
    path = tiny.path if kind == "F32" else quantised(tiny.path, tmp_path / "base.gguf", kind)
    with Engine(path, n_ctx=256, repack=False, device="cpu") as engine:
        assert engine.verifies_exactly
        agent = engine.add_adapter(adapter)
        plain, plain_kv, none = answer(engine, agent, sampling, drafts=False)

        def draft(lookup: PromptLookup, n: int) -> list[int]:
            """What will be said, with a wrong token now and then."""
            said = len(lookup._tokens) - len(PROMPT)
            return [3 if i % 7 == 5 else token for i, token in enumerate(plain[said : said + n], said)]

        monkeypatch.setattr(PromptLookup, "draft", draft)
        drafted, drafted_kv, accepted = answer(engine, agent, sampling, drafts=None)
    assert none == 0
    assert drafted == plain
    assert drafted_kv == plain_kv
    assert 20 < accepted < 60


def test_the_context_can_be_filled_to_its_end(model: tuple[Tiny, Adapter], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icarus_local.chat.speculation._LEAST_GAIN", 0.0)
    tiny, adapter = model
    with Engine(tiny.path, n_ctx=256, device="cpu") as engine:
        agent = engine.add_adapter(adapter)
        plain = answer(engine, agent, Sampling(), drafts=False, n=1000)
        assert len(plain[0]) == 256 - len(PROMPT)
        monkeypatch.setattr(PromptLookup, "draft", lambda lookup, n: plain[0][len(lookup._tokens) - len(PROMPT) :][:n])
        drafted = answer(engine, agent, Sampling(), drafts=None, n=1000)
    assert drafted[:2] == plain[:2]
    assert drafted[2] > 100


@pytest.mark.parametrize("kind", ["Q3_K", "Q4_K", "Q6_K", "IQ4_XS", "IQ3_S", "Q4_1", "BF16"])
def test_a_verified_step_has_the_bits_of_single_ones_in_every_kind_of_type(
    wide: Path, tmp_path: Path, kind: str
) -> None:
    # K and IQ types have a kernel of their own from 8 rows on.
    path = in_types(wide, tmp_path / "base.gguf", lambda _: int(GGMLQuantizationType[kind]))
    with Engine(path, n_ctx=256, repack=False, device="cpu", n_threads=1) as engine:
        agent = engine.add_adapter(random_adapter(engine.base, 16, seed=1))
        sequence = engine.cells.create()
        engine.forward(encode=[(sequence, PROMPT[:40])])
        sizes = [size for size in VERIFY_SIZES if size <= engine.verifiable()]
        assert sizes[-1] == (16 if kind in ("Q4_1", "BF16") else 3)
        for size in sizes:
            tokens = PROMPT[40 : 40 + size]
            steps = [engine.forward(encode=[(sequence, [t])], decode=[(sequence, agent)]).decoder[0] for t in tokens]
            kv = engine.kv_bytes(sequence)
            engine.cells.truncate(sequence, 40)
            assert np.array_equal(engine.verify(sequence, tokens, agent), np.stack(steps))
            assert engine.kv_bytes(sequence) == kv
            engine.cells.truncate(sequence, 40)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 256 values, the longest block of any type."""
    return tiny_llama(tmp_path_factory.mktemp("wide"), n_layer=2, hidden=256, n_ff=512).path


def test_drafts_are_off_where_they_are_not_exact(wide: Path, tmp_path: Path) -> None:
    path = in_types(wide, tmp_path / "base.gguf", lambda _: int(GGMLQuantizationType.Q4_0))
    with Engine(path, n_ctx=256, repack=True, device="cpu") as engine:
        if not engine.base.placement.repacked:
            pytest.skip("this CPU does not repack Q4_0")
        assert not engine.verifies_exactly
        assert engine.verifiable() == 1
        assert engine.verifiable(exactly=False) == 16
    with Engine(wide, n_ctx=256, n_ubatch=6, device="cpu") as engine:
        assert engine.verifiable() == engine.verifiable(exactly=False) == 3
        with pytest.raises(RequestError, match="4 tokens to verify in one step; 1 to 3 are possible"):
            engine.verify(engine.cells.create(), [1, 2, 3, 4], 0)


def test_verifying_far_into_a_context_gives_the_bits_of_dual_steps(smollm2: Path, text_tokens: list[int]) -> None:
    # From 512 cells on ggml attends with one row, as a dual step does in the last layer, by another kernel.
    with Engine(smollm2, n_ctx=1024, repack=False, device="cpu") as engine:
        agent = engine.add_adapter(random_adapter(engine.base, 16, seed=1))
        sequence, tokens = engine.cells.create(), text_tokens[690:697]
        engine.forward(encode=[(sequence, text_tokens[:690])])
        steps = [engine.forward(encode=[(sequence, [t])], decode=[(sequence, agent)]).decoder[0] for t in tokens]
        kv = engine.kv_bytes(sequence)
        engine.cells.truncate(sequence, 690)
        assert np.array_equal(engine.verify(sequence, tokens, agent), np.stack(steps))
        assert engine.kv_bytes(sequence) == kv
