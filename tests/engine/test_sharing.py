"""One cache for all: the speaker leaves no trace in it, a swap encodes nothing, rows do not disturb each other."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from icarus_local.bench.adapters import random_adapter
from icarus_local.engine import executor
from icarus_local.engine.adapter_file import Adapter, LoraPair, read_adapter, read_rank
from icarus_local.engine.engine import Engine
from icarus_local.engine.graph import Graph, GraphSpec
from icarus_local.errors import AdapterError, RequestError
from tests.agents import add_agents, convert
from tests.tiny import Tiny

PROMPT = list(range(10, 60))
ANSWER = list(range(100, 120))


@pytest.fixture(scope="module")
def adapters(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Adapter]:
    return {name: read_adapter(path) for name, path in make_files(tiny, tmp_path_factory.mktemp("agents")).items()}


@pytest.fixture
def files(tiny: Tiny, tmp_path: Path) -> dict[str, Path]:
    """The files of A, B and C, which a test may change."""
    return make_files(tiny, tmp_path)


def make_files(tiny: Tiny, directory: Path) -> dict[str, Path]:
    """A and C of rank 8, B of rank 20: two stacks in the bank."""
    peft = add_agents(tiny.model, {"A": 0.3, "C": 0.3})
    found = {name: convert(peft, name, tiny.path, directory) for name in ("A", "C")}
    return found | {"B": convert(add_agents(tiny.model, {"B": 0.3}, rank=20), "B", tiny.path, directory)}


@pytest.fixture
def engine(tiny: Tiny) -> Iterator[Engine]:
    with Engine(tiny.path, n_ctx=256) as engine:
        yield engine


def converse(engine: Engine, adapter: int | None) -> int:
    """A prompt and twenty forced tokens of an answer, in dual steps with `adapter`."""
    sequence = engine.cells.create()
    engine.forward(encode=[(sequence, PROMPT)])
    for token in ANSWER:
        engine.forward(encode=[(sequence, [token])], decode=[(sequence, adapter)])
    return sequence


def decode(engine: Engine, sequence: int, adapter: int | None) -> npt.NDArray[np.float32]:
    return engine.forward(decode=[(sequence, adapter)]).decoder[0]


def test_kv_bytes_are_the_same_whoever_spoke(engine: Engine, adapters: dict[str, Adapter]) -> None:
    ids = [None, *(engine.add_adapter(adapters[name]) for name in "AB")]
    states = []
    for adapter in ids:
        sequence = converse(engine, adapter)
        states.append(engine.kv_bytes(sequence))
        engine.cells.drop(sequence)
    assert states[0] == states[1] == states[2]
    assert len(states[0]) == engine.kv_bytes_per_token * (len(PROMPT) + len(ANSWER))
    other = engine.cells.create()
    engine.forward(encode=[(other, [*PROMPT[:-1], 5])])
    assert engine.kv_bytes(other) != states[0][: len(engine.kv_bytes(other))]


def test_a_swap_encodes_nothing_and_gives_the_logits_of_a_run_without_the_other(
    tiny: Tiny, adapters: dict[str, Adapter]
) -> None:
    with Engine(tiny.path, n_ctx=256) as engine:
        a, b = (engine.add_adapter(adapters[name]) for name in "AB")
        sequence = converse(engine, a)
        used = engine.cells.n_used
        after_swap, of_a = decode(engine, sequence, b), decode(engine, sequence, a)
        assert engine.cells.n_used == used
    with Engine(tiny.path, n_ctx=256) as engine:
        b = engine.add_adapter(adapters["B"])
        alone = decode(engine, converse(engine, b), b)
    assert np.array_equal(after_swap, alone)
    assert not np.array_equal(after_swap, of_a)


def test_rows_of_two_adapters_equal_steps_with_one(engine: Engine, adapters: dict[str, Adapter]) -> None:
    a, b, c = (engine.add_adapter(adapters[name]) for name in "ABC")
    first = engine.cells.create()
    engine.forward(encode=[(first, PROMPT)])
    second = engine.cells.fork(first)

    def rows(left: int | None, right: int | None) -> npt.NDArray[np.float32]:
        return engine.forward(decode=[(first, left), (second, right)]).decoder

    # Same stack (A, C), different stacks (A, B), and beside a row without any.
    for left, right in ((a, c), (a, b), (b, None)):
        mixed = rows(left, right)
        assert np.array_equal(mixed[0], rows(left, left)[0])
        assert np.array_equal(mixed[1], rows(right, right)[1])
        assert not np.array_equal(mixed[0], mixed[1])


def test_adapters_come_and_go_without_changing_the_others(engine: Engine, adapters: dict[str, Adapter]) -> None:
    a = engine.add_adapter(adapters["A"])
    sequence = converse(engine, a)
    before = decode(engine, sequence, a)
    others = [engine.add_adapter(adapters[name]) for name in "CBCCC"]  # the stack of rank 16 grows
    assert np.array_equal(decode(engine, sequence, a), before)
    for other in others:
        engine.remove_adapter(other)
    again = engine.add_adapter(adapters["A"])
    assert again not in others
    assert np.array_equal(decode(engine, sequence, again), before)


def resident_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_1000_swaps_over_eight_adapters_build_no_graph_and_keep_no_memory(tiny: Tiny) -> None:
    with Engine(tiny.path, n_ctx=256, device="cpu") as engine:
        ids = [engine.add_adapter(random_adapter(engine.base, 8, seed)) for seed in range(8)]
        sequence = converse(engine, ids[0])

        def swap(times: int) -> None:
            for i in range(times):
                decode(engine, sequence, ids[i % 8])
                engine.forward(encode=[(sequence, [7])], decode=[(sequence, ids[i % 8])])
                engine.cells.truncate(sequence, len(PROMPT))

        swap(80)
        graphs, resident = engine.n_graphs, resident_kib()
        swap(1000)
        assert engine.n_graphs == graphs
        assert resident_kib() - resident <= 2048


def test_a_cap_evicts_the_least_recently_used_and_reads_it_again(tiny: Tiny, files: dict[str, Path]) -> None:
    adapters = {name: read_adapter(path) for name, path in files.items()}
    with Engine(tiny.path, n_ctx=256, device="cpu") as free, Engine(tiny.path, n_ctx=256, max_adapters=2) as capped:
        logits: list[list[npt.NDArray[np.float32]]] = []
        for engine in (free, capped):
            ids = {name: engine.add_adapter(adapter) for name, adapter in adapters.items()}
            sequence = converse(engine, ids["A"])
            logits.append([decode(engine, sequence, ids[name]) for name in "ABCACBBACA"])
        assert capped.n_resident_adapters == 2
        assert free.n_resident_adapters == 3
        assert all(np.array_equal(a, b) for a, b in zip(*logits, strict=True))
        # A and C are in memory: B must come again, and is another file by now.
        assert capped.adapter_bytes < free.adapter_bytes
        shutil.copy(files["A"], files["B"])
        before = capped.kv_bytes(sequence)
        with pytest.raises(AdapterError, match="has changed since it was loaded"):
            decode(capped, sequence, ids["B"])
        assert capped.kv_bytes(sequence) == before
        assert np.array_equal(decode(capped, sequence, ids["A"]), logits[0][-1])
        forks = [capped.cells.fork(sequence) for _ in range(2)]
        with pytest.raises(RequestError, match="3 agents in one step, and at most 2 adapters"):
            capped.forward(decode=[(sequence, ids["A"]), (forks[0], ids["B"]), (forks[1], ids["C"])])


def test_reserved_room_is_made_once_and_filled_without_moving(tiny: Tiny, adapters: dict[str, Adapter]) -> None:
    ranks = [adapters[name].rank for name in "ABC"]  # 8, 20, 8
    with Engine(tiny.path, n_ctx=256, device="cpu") as grown, Engine(tiny.path, n_ctx=256, device="cpu") as engine:
        engine.reserve_adapters(ranks)
        taken, bank = engine.adapter_bytes, engine._bank
        assert [bank.stack(rank).capacity for rank in (16, 32)] == [3, 2]
        logits = []
        for one in (grown, engine):
            ids = [one.add_adapter(adapters[name]) for name in "ABC"]
            sequence = converse(one, ids[0])
            logits.append([decode(one, sequence, adapter) for adapter in ids])
        assert (engine.adapter_bytes, bank.generation) == (taken, 0)
        assert all(np.array_equal(a, b) for a, b in zip(*logits, strict=True))
        # Room beside those who are there already; what cannot be an adapter's rank takes none.
        engine.reserve_adapters([8, 8, 4096])
        assert bank.stack(16).capacity == 5
        assert np.array_equal(decode(engine, sequence, ids[2]), logits[0][2])
    with Engine(tiny.path, n_ctx=256, device="cpu", max_adapters=2) as capped:
        capped.reserve_adapters([8] * 5)
        assert capped._bank.stack(16).capacity == 3


def test_the_rank_is_read_without_the_matrices(files: dict[str, Path], tmp_path: Path) -> None:
    assert [read_rank(files[name]) for name in "ABC"] == [8, 20, 8]
    (tmp_path / "words.gguf").write_text("words", "utf-8")
    for broken in (tmp_path / "words.gguf", tmp_path / "gone.gguf"):
        with pytest.raises(AdapterError, match=broken.name):
            read_rank(broken)


def test_forty_agents_in_turn_build_their_graphs_once(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[GraphSpec] = []

    class Counted(Graph):
        def __init__(self, spec: GraphSpec, *rest: Any, **more: Any) -> None:
            built.append(spec)
            super().__init__(spec, *rest, **more)

    monkeypatch.setattr(executor, "Graph", Counted)
    with Engine(tiny.path, n_ctx=256, device="cpu", n_threads=1) as engine:
        engine.reserve_adapters([8] * 40)
        ids = [engine.add_adapter(random_adapter(engine.base, 8, seed)) for seed in range(40)]
        sequence = converse(engine, None)

        def all_speak() -> int:
            before = len(built)
            for adapter in ids:
                engine.forward(encode=[(sequence, [5, 6])])
                decode(engine, sequence, adapter)
                engine.forward(encode=[(sequence, [7])], decode=[(sequence, adapter)])
                engine.cells.truncate(sequence, len(PROMPT))
            return len(built) - before

        assert all_speak() >= 80
        assert all_speak() == 0


def test_a_rank_beyond_the_weights_own_is_refused(engine: Engine, adapters: dict[str, Adapter]) -> None:
    name, pair = next(iter(adapters["A"].pairs.items()))
    large = LoraPair(np.zeros((4096, pair.a.shape[1]), np.float32), np.zeros((pair.b.shape[0], 4096), np.float32))
    with pytest.raises(AdapterError, match=r"has rank 4096, more than the weight's own 64"):
        engine.add_adapter(dataclasses.replace(adapters["A"], pairs={name: large}))


def test_an_empty_stack_gives_its_memory_back(engine: Engine, adapters: dict[str, Adapter]) -> None:
    before = engine.adapter_bytes
    adapter = engine.add_adapter(adapters["B"])
    assert engine.adapter_bytes > before
    engine.remove_adapter(adapter)
    assert engine.adapter_bytes == before
