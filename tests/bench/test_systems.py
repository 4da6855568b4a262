"""All systems do the same work, and encode what they must: counted by hand for each, evictions included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from icarus_local.bench import llama_system
from icarus_local.bench.icarus_system import Icarus
from icarus_local.bench.llama_system import LlamaPool
from icarus_local.bench.records import Record, Setup
from icarus_local.bench.script import Script
from icarus_local.bench.system import IN_PROCESS
from icarus_local.bench.workflow_child import measure
from icarus_local.engine.oracle import LlamaModel
from icarus_local.errors import IcarusError
from icarus_local.ggml.library import load_llama
from tests.bench.jobs import CONTEXT, case_of, job, tiny_setup, workflow
from tests.tiny import Tiny

ROUND = 3 * (16 + 8)  # tokens of a round of the plain workflow
SHARED = CONTEXT - 2 * ROUND


@pytest.fixture(scope="module")
def setup(tiny: Tiny) -> Iterator[Setup]:
    with tiny_setup(tiny, 3) as setup:
        yield setup


def encoded(record: Record, *, cold: bool) -> list[int]:
    return [turn.encoded for turn in record.turns if turn.cold is cold]


# A warm turn of one's own cache: the last token that was said, two turns of others, the hand-over.
PLAIN = {
    "icarus": ([SHARED + 16, 1 + 16, 1 + 16], 2 * [17, 17, 17]),
    "swap": ([SHARED + 16, SHARED + 40, SHARED + 64], 2 * [SHARED + ROUND + 16 + 24 * i for i in range(3)]),
    "separate": ([SHARED + 16, SHARED + 40, SHARED + 64], 2 * [1 + 2 * 24 + 16] * 3),
    # With room for two of three, the one that speaks next is always the one that was evicted.
    "separate_capped": ([SHARED + 16, SHARED + 40, SHARED + 64], 2 * [SHARED + ROUND + 16 + 24 * i for i in range(3)]),
}


@pytest.mark.parametrize("system", IN_PROCESS)
def test_agents_in_turn(setup: Setup, system: str) -> None:
    record = measure(job(setup, system, workflow()))
    assert (encoded(record, cold=True), encoded(record, cold=False)) == PLAIN[system]
    assert [turn.agent for turn in record.turns] == 3 * [0, 1, 2]
    assert {turn.generated for turn in record.turns} == {8}
    for turn in record.turns:
        assert 0 < turn.ttft_s < turn.latency_s
        assert turn.busy_s == pytest.approx(turn.latency_s, abs=0.05)


def test_memory_of_k_and_v(setup: Setup) -> None:
    per_token, records = setup.kv_bytes_per_token, {s: measure(job(setup, s, workflow())) for s in IN_PROCESS}
    set_aside = {system: record.kv_bytes // per_token for system, record in records.items()}
    assert set_aside == {"icarus": 512, "swap": 512, "separate": 3 * 512, "separate_capped": 2 * 512}
    used = {system: record.kv_used_bytes // per_token for system, record in records.items()}
    # The token that was said last is encoded by whoever speaks next.
    assert used == {"icarus": 511, "swap": 511, "separate": 511 + 487 + 463, "separate_capped": 511 + 487}


# One agent speaks in between: its cache stays, those of the two others take turns in the other place.
BETWEEN = workflow(*[{"speaker": agent, "hand_over": 4, "answer": 4} for agent in (0, 1, 0, 2)], agents=3)


def test_the_least_recently_used_cache_goes(setup: Setup) -> None:
    record = measure(job(setup, "separate_capped", BETWEEN, warm_turns=8))
    shared = CONTEXT - 2 * 32
    kept = 1 + 8 + 4  # the last token said, a turn of another, the hand-over
    assert [turn.encoded for turn in record.turns[:4]] == [shared + 4, shared + 12, kept, shared + 28]
    warm = [kept, shared + 32 + 12, kept, shared + 32 + 28]
    assert [turn.encoded for turn in record.turns[4:]] == 2 * warm
    assert [turn.cold for turn in record.turns] == [True, True, False, True, *8 * [False]]


def test_one_agent_goes_on_where_it_was_in_every_system(setup: Setup) -> None:
    for system in IN_PROCESS:
        record = measure(job(setup, system, workflow(agents=1)))
        assert encoded(record, cold=False) == 6 * [1 + 16]


PANEL = workflow({"hand_over": 4, "answer": 4}, at_once=True, question=8)
PANEL_SHARED = CONTEXT - 2 * (8 + 3 * 8)


@pytest.mark.parametrize("system", IN_PROCESS)
def test_agents_at_once(setup: Setup, system: str) -> None:
    record = measure(job(setup, system, PANEL))
    alone = PANEL_SHARED + 8 + 4
    whole = PANEL_SHARED + 32 + 8 + 4
    # Where answers diverge all is new: what two others said, the question, and one's own answer in its new place.
    own = 3 * 8 + 8 + 4
    first = own - 4 - 4 + 1  # the first answer stands where it was said, all but its last token in the cache
    expected = {
        "icarus": ([alone, 4, 4], [first, 4, 4]),
        "swap": ([alone] * 3, [whole] * 3),
        "separate": ([alone] * 3, [first, own, own]),
        "separate_capped": ([alone] * 3, [whole] * 3),
    }
    cold, warm = expected[system]
    assert (encoded(record, cold=True), encoded(record, cold=False)) == (cold, 2 * warm)
    for i in range(0, 9, 3):
        answers = record.turns[i : i + 3]
        together = {turn.latency_s for turn in answers}
        assert sum(turn.busy_s for turn in answers) == pytest.approx(max(together), rel=0.2)
        if system != "icarus":
            assert sorted(together) == [turn.latency_s for turn in answers], "each waits for those before it"


def test_every_system_is_given_the_same_tokens(setup: Setup) -> None:
    case = case_of(workflow())
    scripts = [Script(workflow(), case, setup.n_vocab, seed) for seed in (0, 0, 1)]
    said = [[request for step in script.round() for request in step] for script in scripts]
    assert said[0] == said[1] != said[2]
    for i, request in enumerate(said[0]):
        assert len(request.prompt) == SHARED + 24 * i + 16
        later = scripts[0].tokens
        assert later[: len(request.prompt) + 8] == request.prompt + request.answer


def test_the_cache_holds_what_was_forced(setup: Setup) -> None:
    system = Icarus(setup.base, setup.adapters, CONTEXT, kv_type="f16", n_threads=1, repack=False)
    for script in (workflow(), PANEL):
        spoken = Script(script, case_of(script), setup.n_vocab)
        system.begin()
        for _ in range(2):
            for step in spoken.round():
                system.turn(step)
        cells = system._engine.cells
        held = cells.tokens(system._sequence).tolist()
        assert held == spoken.tokens[: len(held)]
        assert len(held) == len(spoken.tokens) - (1 if script is not PANEL else 1 + 2 * 8)
        assert cells.n_used == len(held)
    system.close()


def test_adapters_have_room_before_they_come(setup: Setup) -> None:
    system = Icarus(setup.base, setup.adapters, CONTEXT, kv_type="f16", n_threads=1, repack=False)
    bank = system._engine._bank
    # Nothing has moved since the first came, and there is room for nobody else.
    assert bank.generation == 0
    assert bank.stack(16).capacity == len(setup.adapters) + 1
    system.close()


def test_caches_that_free_memory_does_not_hold_are_refused_before_anything_is_loaded(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("it was loaded")

    per_token = 64 << 10
    needed = 3 * CONTEXT * per_token
    monkeypatch.setattr(llama_system, "LlamaModel", loaded)
    monkeypatch.setattr("icarus_local.engine.devices.host_memory", lambda: needed - 1)

    def pool(n_ctx: int, n_contexts: int) -> None:
        shared = {"kv_type": "f16", "n_threads": 1, "kv_bytes_per_token": per_token}
        LlamaPool(setup.base, setup.adapters, n_ctx, n_contexts, **shared)

    # A context is padded to 512 cells.
    with pytest.raises(
        IcarusError, match=r"a pool of 3 caches of 511 tokens takes 96 MiB and 95 MiB are free\..*--agents"
    ):
        pool(CONTEXT - 1, 3)
    with pytest.raises(AssertionError, match="it was loaded"):
        pool(CONTEXT, 2)


def test_llama_cpp_repacks_as_it_does_by_default_whatever_icarus_does(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = bool(load_llama().llama_model_default_params().use_extra_bufts)
    given = []

    class Watched(LlamaModel):
        def __init__(self, path: Path, *, repack: bool = False) -> None:
            given.append(repack)
            super().__init__(path, repack=repack)

    monkeypatch.setattr(llama_system, "LlamaModel", Watched)
    assert not setup.repack
    measure(job(setup, "swap", workflow(agents=1), warm_turns=1))
    assert given == [default]


def test_a_round_has_every_turn_and_every_agent() -> None:
    script = workflow({"tool_result": 5}, {}, {"answer": 2}, agents=3)

    def speakers(agents: int) -> list[tuple[int, int, int]]:
        case = case_of(script, agents)
        return [(s.agent, s.n_prompt, s.n_answer) for step in Script(script, case, 100).steps for s in step]

    assert speakers(1) == [(0, 21, 8), (0, 16, 8), (0, 16, 2)]
    assert speakers(2) == [(0, 21, 8), (1, 16, 8), (0, 16, 2), (1, 21, 8)]
    assert speakers(4) == [(0, 21, 8), (1, 16, 8), (2, 16, 2), (3, 21, 8)]
