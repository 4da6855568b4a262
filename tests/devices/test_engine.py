"""The engine on a device: all layers there, some, or none, it computes what it computes on the CPU.

On the RPC device, which is a CPU's kernels behind a socket, that is bit for bit, K and V included; rows with an adapter
come close only, for a device gathers the adapters of all rows where the CPU takes them one by one. A device named by
ICARUS_TEST_DEVICE rounds in its own way: there logits stay within `TOLERANCE` of the CPU's.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from icarus_local.cli.doctor import TOLERANCE
from icarus_local.engine.adapter_file import read_adapter
from icarus_local.engine.devices import Device
from icarus_local.engine.engine import Engine
from icarus_local.engine.executor import CachedGraphs, ScheduledGraphs
from icarus_local.errors import CancelledError, IcarusError
from icarus_local.ggml.library import load
from tests.agents import add_agents, convert
from tests.devices.rpc import DEVICE_VARIABLE, in_subprocess
from tests.gguf_files import quantised, rewritten
from tests.relatives import relative
from tests.tiny import Tiny, n_vocab, tiny_llama

Array = npt.NDArray[Any]

REAL = DEVICE_VARIABLE in os.environ
TOKENS = np.random.default_rng(8).integers(0, n_vocab(), 1000).tolist()
PROMPT = 40  # more than the rows of a step, and past the window of the relatives
RANKS = {"A": 8, "B": 20, "C": 40}  # padded to 16, 32 and 48: three stacks
SIZES = {"n_ctx": 256, "n_ubatch": 32}
SUMMED_OTHERWISE = 1e-3  # F32 sums in another order, in standard deviations of the logits: 2e-4 are seen
# One thread at each end: those of two engines that spin at barriers starve each other on few cores.
EXACT = {"n_threads": 1, "repack": False}


def story(engine: Engine, adapters: list[str]) -> tuple[Array, Array, list[bytes]]:
    """Everything that a step can be: logits of the base's rows, of rows with an adapter, and K and V on the way."""
    plain: list[Array] = []
    adapted: list[Array] = []

    def step(**what: Any) -> None:
        result = engine.forward(**what)
        plain.extend(result.encoder)
        for row, (_, agent) in zip(result.decoder, what.get("decode", ()), strict=True):
            (plain if agent is None else adapted).append(row)

    agents = [engine.add_adapter(read_adapter(Path(file))) for file in adapters]
    trunk = engine.cells.create()
    step(encode=[(trunk, TOKENS[:PROMPT])], encoder_logits=True)
    for agent in (None, *agents):
        step(decode=[(trunk, agent)])
    rest = iter(TOKENS[PROMPT:])
    for agent in (None, *agents):
        step(encode=[(trunk, [next(rest)])], decode=[(trunk, agent)], encoder_logits=True)
    fork, short = engine.cells.fork(trunk), engine.cells.fork(trunk, 20)
    cache = [engine.kv_bytes(trunk)]
    for _ in range(3):  # rows that choose their own adapter, of all stacks in one step
        rows = [(trunk, agents[0]), (fork, agents[-1]), (short, None), *((trunk, agent) for agent in agents)]
        step(encode=[(s, [next(rest)]) for s in (trunk, fork, short)], decode=rows, encoder_logits=True)
    engine.cells.truncate(fork, 10)
    prompts = [(fork, [next(rest) for _ in range(40)]), (short, [next(rest) for _ in range(3)])]
    step(encode=prompts, decode=[(fork, agents[0]), (short, None)], encoder_logits=True)
    for i in range(30):
        speaker = agents[i % len(agents)]
        step(encode=[(trunk, [next(rest)])], decode=[(trunk, speaker)])
        step(decode=[(trunk, agents[(i + 1) % len(agents)])])
    cache += [engine.kv_bytes(sequence) for sequence in (trunk, fork, short)]
    for sequence in (trunk, fork, short):
        engine.cells.drop(sequence)
    return np.stack(plain), np.stack(adapted), cache


def against_cpu(device: str, base: str, adapters: str, options: str) -> dict[str, Any]:
    """The story on the CPU and on the device: what they differ by, and how the device's engine was made."""
    chosen = {**SIZES, **EXACT, **json.loads(options)}
    on_device = {name: chosen.pop(name) for name in ("gpu_layers",) if name in chosen}
    files = json.loads(adapters)
    with Engine(Path(base), device="cpu", **chosen) as engine:
        plain, adapted, cache = story(engine, files)
    with Engine(Path(base), device=device, **chosen, **on_device) as engine:
        our_plain, our_adapted, our_cache = story(engine, files)
        memory = engine.memory()
        executor, n_gpu_layers = type(engine._graphs).__name__, engine.base.placement.n_gpu_layers
        again = story(engine, files)
    deviation = float(plain.std())
    return {
        "executor": executor,
        "n_gpu_layers": n_gpu_layers,
        "copied": memory["copied"] / memory["mapped"],
        "plain": distance(our_plain, plain) / deviation,
        "adapted": distance(our_adapted, adapted) / deviation,
        # Rows PROMPT and up are the lone decoder rows at the prompt's end: of the base, then of each adapter.
        "agents": min(distance(row, plain[PROMPT]) for row in adapted[: len(files)]) / deviation,
        "cache": our_cache == cache,
        "same_again": all(np.array_equal(a, b) for a, b in zip(again[:2], (our_plain, our_adapted), strict=True)),
    }


def distance(ours: Array, theirs: Array) -> float:
    """Root mean square of the difference."""
    return float(np.sqrt(np.mean(np.square(ours - theirs))))


def check(found: dict[str, Any], n_layers: int, executor: type) -> None:
    print(found)
    assert (found["n_gpu_layers"], found["executor"]) == (n_layers, executor.__name__)
    assert found["same_again"]
    assert found["agents"] > 3 * TOLERANCE  # what an adapter without effect would be off by
    if REAL:
        assert found["plain"] <= TOLERANCE
        assert found["adapted"] <= TOLERANCE
    else:
        assert found["plain"] == 0
        assert found["adapted"] <= SUMMED_OTHERWISE
        assert found["cache"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("devices")


def with_agents(model: Tiny, directory: Path, ranks: dict[str, int] = RANKS) -> tuple[str, str]:
    directory.mkdir(exist_ok=True)
    files = [
        convert(add_agents(model.model, {name: 0.2}, rank=rank), name, model.path, directory)
        for name, rank in ranks.items()
    ]
    return str(model.path), json.dumps([str(file) for file in files])


@pytest.fixture(scope="module")
def llama(directory: Path) -> tuple[str, str]:
    """Heads of 64 values, whose quantised K and V are rotated, and a tied head."""
    return with_agents(
        tiny_llama(directory, 3, hidden=256, n_head=4, n_ff=256, tied=True, name="llama"), directory / "llama"
    )


@pytest.mark.parametrize(
    ("layers", "executor"),
    [(None, CachedGraphs), (4, CachedGraphs), (3, ScheduledGraphs), (1, ScheduledGraphs), (0, CachedGraphs)],
)
def test_llama_with_all_some_and_no_layers(llama: tuple[str, str], layers: int | None, executor: type) -> None:
    found = in_subprocess(against_cpu, *llama, json.dumps({"gpu_layers": layers}))
    check(found, 4 if layers is None else layers, executor)
    # Of the tied head there is one copy.
    assert (found["copied"] > 0.98) == (layers in (None, 4))
    assert found["copied"] < 1.02


@pytest.mark.parametrize("layers", [None, 2])
@pytest.mark.parametrize("kv_type", ["f32", "q8_0", "q4_0"])
def test_types_of_the_cache(llama: tuple[str, str], kv_type: str, layers: int | None) -> None:
    found = in_subprocess(against_cpu, *llama, json.dumps({"gpu_layers": layers, "kv_type": kv_type}))
    check(found, 4 if layers is None else layers, CachedGraphs if layers is None else ScheduledGraphs)


@pytest.mark.parametrize("repack", [False, True])
def test_quantised_weights_with_what_is_left_to_the_cpu(llama: tuple[str, str], directory: Path, repack: bool) -> None:
    path = quantised(Path(llama[0]), directory / f"q4_0-{repack}.gguf", "Q4_0")
    found = in_subprocess(against_cpu, str(path), llama[1], json.dumps({"gpu_layers": 2, "repack": repack}))
    # Layers that are repacked on the CPU and lie plain on the device round differently, and so do activations that are
    # quantised after an adapter's sum.
    assert found["plain"] <= (TOLERANCE if repack or REAL else 0)
    assert found["adapted"] <= TOLERANCE
    assert found["executor"] == "ScheduledGraphs"


# A window, its own rope and another; experts; rope factors, and weights fused in the file.
@pytest.mark.parametrize(("variant", "n_layers"), [("gemma3", 7), ("qwen3moe", 3), ("phi3-longrope", 3)])
def test_relatives(variant: str, n_layers: int, directory: Path) -> None:
    world = with_agents(relative(variant, directory), directory / variant, {"A": 8, "B": 20})
    check(in_subprocess(against_cpu, *world, "{}"), n_layers + 1, CachedGraphs)
    check(in_subprocess(against_cpu, *world, json.dumps({"gpu_layers": 2})), 2, ScheduledGraphs)


def many_adapters(device: str, base: str, adapters: str) -> dict[str, Any]:
    """A step of many rows that change adapters at every row, after one of few nodes."""
    with Engine(Path(base), device=device, gpu_layers=2, **SIZES, **EXACT) as engine:  # type: ignore[arg-type]
        sequence = engine.cells.create()
        engine.forward(encode=[(sequence, TOKENS[:PROMPT])])
        agents = [engine.add_adapter(read_adapter(Path(file))) for file in json.loads(adapters)]
        few = engine.forward(decode=[(sequence, agent) for agent in agents]).decoder
        many = engine.forward(decode=[(sequence, agent) for agent in agents * 8]).decoder
    return {"apart": distance(many, np.tile(few, (8, 1))), "deviation": float(few.std())}


def test_the_scheduler_grows_with_the_graph(directory: Path) -> None:
    # ggml aborts where a graph has more nodes than the scheduler's tables.
    ranks = {f"R{rank}": rank for rank in (8, 24, 40)}
    found = in_subprocess(many_adapters, *with_agents(tiny_llama(directory, name="ranks"), directory / "ranks", ranks))
    assert found["apart"] <= (TOLERANCE if REAL else SUMMED_OTHERWISE) * found["deviation"]


def cancelled(device: str, base: str, layers: str) -> dict[str, Any]:
    """A long prompt on the device, stopped on the way and given again."""
    options: dict[str, Any] = {"n_ctx": 1024, "n_ubatch": 16, "gpu_layers": json.loads(layers), **EXACT}
    with Engine(Path(base), device=device, **options) as engine:
        sequence = engine.cells.create()
        start = time.perf_counter()
        whole = engine.forward(encode=[(sequence, TOKENS)], decode=[(sequence, None)]).decoder
        took = time.perf_counter() - start
        cache = engine.kv_bytes(sequence)
        stopped, tries = False, 0
        while not stopped and tries < 5:  # on a busy machine the request may come too late
            engine.cells.truncate(sequence, 0)
            timer = threading.Timer(took / 4, engine.cancel)
            timer.start()
            try:
                engine.forward(encode=[(sequence, TOKENS)])
            except CancelledError:
                stopped = True
            timer.join()
            engine.clear_cancel()
            tries += 1
        done, used = engine.cells.length(sequence), engine.cells.n_used
        again = engine.forward(encode=[(sequence, TOKENS[done:])], decode=[(sequence, None)]).decoder
        return {
            "stopped": stopped,
            "done": done,
            "used": used,
            "logits": bool(np.array_equal(again, whole)),
            "cache": engine.kv_bytes(sequence) == cache,
        }


@pytest.mark.parametrize("layers", [None, 2])
def test_cancel_stops_between_steps_and_what_follows_is_as_without(llama: tuple[str, str], layers: int | None) -> None:
    found = in_subprocess(cancelled, llama[0], json.dumps(layers))
    assert found["stopped"]
    assert found["done"] < len(TOKENS)
    assert found["done"] % 16 == 0  # whole steps
    assert found["used"] == found["done"]
    assert found["logits"]
    assert found["cache"]


def lacking(device: str, base: str, adapters: str, operation: str) -> dict[str, Any]:
    """The engine on a device that says it lacks an operation: how it computes, and what it says of an agent's row."""

    def supports(_: Device, op: int) -> bool:
        return load().ggml_op_desc(op) != operation.encode()

    Device.supports = supports  # type: ignore[method-assign]
    with Engine(Path(base), device=device, **SIZES, **EXACT) as engine:  # type: ignore[arg-type]
        sequence = engine.cells.create()
        engine.forward(encode=[(sequence, TOKENS[:PROMPT])], decode=[(sequence, None)])
        agent = engine.add_adapter(read_adapter(Path(json.loads(adapters)[0])))
        said = ""
        try:
            engine.forward(encode=[(sequence, TOKENS[:1])], decode=[(sequence, agent)])
        except IcarusError as error:
            said = str(error)
        return {
            "executor": type(engine._graphs).__name__,
            "said": said,
            "length": engine.cells.length(sequence),
            "used": engine.cells.n_used,
        }


def test_what_a_device_lacks_goes_to_the_scheduler_or_is_told(llama: tuple[str, str]) -> None:
    found = in_subprocess(lacking, *llama, "SWIGLU")
    assert found == {"executor": "ScheduledGraphs", "said": "", "length": PROMPT + 1, "used": PROMPT + 1}
    found = in_subprocess(lacking, *llama, "MUL_MAT_ID")
    assert "does not compute MUL_MAT_ID. Give --device cpu" in found["said"]
    assert (found["executor"], found["length"], found["used"]) == ("CachedGraphs", PROMPT, PROMPT)


def refusals(device: str, base: str) -> list[str]:
    """What the engine says to what the device cannot do."""
    said = []
    for options in ({"gpu_layers": 9}, {"n_ctx": 1 << 30}, {"n_ctx": 1 << 30, "gpu_layers": 4}, {"gpu_layers": 0}):
        try:
            Engine(Path(base), device=device, **options).close()  # type: ignore[arg-type]
        except IcarusError as error:
            said.append(str(error))
        else:
            said.append("")
    return said


def test_what_a_device_cannot_hold_is_refused(directory: Path, llama: tuple[str, str]) -> None:
    huge = rewritten(Path(llama[0]), directory / "huge.gguf", {"llama.context_length": 1 << 30})
    layers, auto, asked, none = in_subprocess(refusals, str(huge))
    assert "--gpu-layers is 9; this base has 0 to 4" in layers
    assert f"for a cache of {1 << 30} tokens" in auto
    assert "4 of 4 layers on" in asked
    assert "MiB are free" in asked
    assert none == ""


@pytest.mark.slow
@pytest.mark.parametrize("layers", [None, 16])
def test_smollm2_with_its_agents(smollm2: Path, layers: int | None) -> None:
    import icarus_models

    folder = Path(icarus_models.__file__).parent / "adapters"
    files = [str(folder / f"{name}.gguf") for name in ("coder", "reviewer")]
    found = in_subprocess(against_cpu, str(smollm2), json.dumps(files), json.dumps({"gpu_layers": layers}))
    assert found["plain"] <= (TOLERANCE if REAL else 0)
    assert found["adapted"] <= TOLERANCE
    assert REAL or found["cache"]
