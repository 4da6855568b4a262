"""How far a step is from what the machine allows: bytes over measured bandwidth, operations over a measured peak."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from icarus_local.bench.adapters import random_adapter
from icarus_local.bench.peaks import Peaks, measure_peaks
from icarus_local.engine.base import BaseFile
from icarus_local.engine.engine import Engine
from icarus_local.engine.placement import Placement
from icarus_local.engine.plan import adapter_bytes
from icarus_local.engine.weights import EXPERTS, HEAD, MATRIX, Weight
from icarus_local.ggml.library import load

PREFILL, ROW, DUAL, SWAP = "prefill", "one row", "dual step", "swap"
_N_UBATCH = 512  # rows of a step of the prefill
_STEPS = 5  # measured in a row, of which each round takes the median


@dataclass(frozen=True, slots=True)
class Work:
    """What a step cannot do without: bytes of weights, adapter and cache to read, and operations."""

    n_bytes: int
    n_ops: int


@dataclass(frozen=True, slots=True)
class Floor:
    """A step's measured time beside the least that the machine needs for it, in seconds.

    Attributes:
        memory_s, arithmetic_s: for its bytes, and for its operations. floor_s: the longer one.
        times: measured_s over floor_s.
    """

    step: str
    n_bytes: int
    n_ops: int
    memory_s: float
    arithmetic_s: float
    floor_s: float
    measured_s: float
    times: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """The floors of all kinds of step at one length of context."""

    n_context: int
    rank: int
    peaks: Peaks
    floors: tuple[Floor, ...]


def roofline(engine: Engine, n_context: int, rank: int, repeats: int) -> Roofline:
    """Measures the machine, then the steps; the engine holds one token more than `n_context`, all on the CPU."""
    with closing(BaseFile(engine.base.path)) as file:
        work = work_of_steps(file, n_context, engine.kv_bytes_per_token, rank)
        kind, buffer_type = _main_kind(file, engine.base.placement)
        peaks = measure_peaks(kind, engine.n_threads, buffer_type)
    seconds = _measured(engine, n_context, rank, repeats)
    floors = tuple(floor(step, work[step], peaks, seconds[step]) for step in work)
    return Roofline(n_context, rank, peaks, floors)


def floor(step: str, work: Work, peaks: Peaks, measured_s: float) -> Floor:
    """What a step took, beside what it must take."""
    memory, arithmetic = work.n_bytes / peaks.bytes_s, work.n_ops / peaks.ops_s
    least = max(memory, arithmetic)
    return Floor(step, work.n_bytes, work.n_ops, memory, arithmetic, least, measured_s, measured_s / least)


def work_of_steps(file: BaseFile, n_context: int, kv_bytes_per_token: int, rank: int) -> dict[str, Work]:
    """What a prefill of `n_context` tokens, and a step after it, cannot do without.

    Weights are read once for all rows of a step. A row sees `n_context` cells, in the prefill half of them on average;
    in layers with a window that many at most. Experts count by the share that a row chooses.
    """
    hp, last = file.hp, file.hp.n_layer - 1
    n_bytes, values = Counter[str](), Counter[str]()
    for weight in file.weights.values():
        if weight.use in (MATRIX, EXPERTS):
            part = _part(weight, last)
            n_bytes[part] += _share(file, weight, _weight_bytes(file, weight))
            values[part] += _share(file, weight, math.prod(weight.shape))
    seen = [min(n_context, hp.window) if windowed else n_context for windowed in hp.windowed]
    mean_seen = [cells - cells * cells // (2 * n_context) for cells in seen]  # over the rows of the prefill
    cell, lora = kv_bytes_per_token // hp.n_layer, adapter_bytes(hp, rank)
    cache = cell * sum(seen)
    scores = 4 * hp.n_embd_q  # operations of a row for each cell that a layer sees: scores, and sums of V
    # An encoder row ends with the last layer's K and V.
    encoder = 2 * (values["body"] + values["kv"]) + scores * sum(seen[:last])
    decoder = 2 * (values["body"] + values["last"] + values["head"]) + scores * sum(seen) + 2 * lora // 4
    row = 2 * values.total() + scores * sum(seen)
    ubatches = math.ceil(n_context / _N_UBATCH)
    prefill = n_context * (2 * (values["body"] + values["kv"]) + scores * sum(mean_seen[:last]))
    return {
        PREFILL: Work(ubatches * (n_bytes["body"] + n_bytes["kv"] + cell * sum(mean_seen)), prefill),
        ROW: Work(n_bytes.total() + cache, row),
        DUAL: Work(n_bytes.total() + cache + lora, encoder + decoder),
        SWAP: Work(n_bytes.total() - n_bytes["kv"] + cache + lora, decoder),
    }


def _part(weight: Weight, last: int) -> str:
    """Which rows a matrix multiplies: those of the head, of K and V, of the last layer behind these, or all."""
    if weight.name == HEAD:
        return "head"
    if weight.name.split(".")[-2] in ("attn_k", "attn_v"):
        return "kv"
    return "last" if weight.layer == last else "body"


def _share(file: BaseFile, weight: Weight, n: int) -> int:
    return n * file.hp.n_expert_used // file.hp.n_expert if weight.use == EXPERTS else n


def _weight_bytes(file: BaseFile, weight: Weight) -> int:
    row = int(load().ggml_row_size(file.file.tensors[weight.source].type, weight.shape[0]))
    return row * math.prod(weight.shape[1:])


def _main_kind(file: BaseFile, placement: Placement) -> tuple[int, int]:
    """ggml type and buffer type of most values of the base's matrices: what decides which kernel multiplies them."""
    values = Counter[tuple[int, int]]()
    for weight in file.weights.values():
        if weight.use in (MATRIX, EXPERTS):
            kind = (file.file.tensors[weight.source].type, placement.buffer_type_of(weight))
            values[kind] += math.prod(weight.shape)
    return values.most_common(1)[0][0]


def _measured(engine: Engine, n_context: int, rank: int, repeats: int) -> dict[str, float]:
    """Median seconds of each kind of step."""
    tokens = np.random.default_rng(0).integers(0, engine.base.hp.n_vocab, n_context + 1).tolist()
    prompt, after = tokens[:-1], tokens[-1:]
    sequence, agent = engine.cells.create(), engine.add_adapter(random_adapter(engine.base, rank, 0))
    speaker = [(sequence, agent)]
    steps: dict[str, Callable[[], object]] = {
        ROW: lambda: engine.forward(encode=[(sequence, after)], encoder_logits=True),
        DUAL: lambda: engine.forward(encode=[(sequence, after)], decode=speaker),
        SWAP: lambda: engine.forward(decode=speaker),
    }
    seconds: dict[str, list[float]] = {step: [] for step in (PREFILL, *steps)}
    engine.forward(encode=[(sequence, prompt[:64])])
    for _ in range(repeats):
        engine.cells.truncate(sequence, 0)
        seconds[PREFILL].append(_seconds(lambda: engine.forward(encode=[(sequence, prompt)])))
        for step, work in steps.items():
            taken = []
            for _ in range(_STEPS):
                taken.append(_seconds(work))
                engine.cells.truncate(sequence, n_context)
            seconds[step].append(statistics.median(taken))
    engine.cells.drop(sequence)
    engine.remove_adapter(agent)
    return {step: statistics.median(taken) for step, taken in seconds.items()}


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
