"""What a step cannot do without, counted by hand on the tiny base, and how far a step is from it."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from icarus_local.bench import peaks
from icarus_local.bench.peaks import Peaks, measure_peaks
from icarus_local.bench.roofline import Work, floor, roofline, work_of_steps
from icarus_local.cli.main import main
from icarus_local.engine.base import BaseFile
from icarus_local.engine.devices import cpu
from icarus_local.engine.engine import Engine
from icarus_local.ggml.context import Context
from icarus_local.ggml.library import TYPE_F32
from tests.gguf_files import quantised
from tests.tiny import Tiny, n_vocab, tiny_llama

# Of the tiny base: 2 layers, 64 wide, 4 heads of which 2 have K and V, an MLP of 128.
BODY = 2 * 64 * 64 + 3 * 64 * 128  # values of Q, O and the MLP of a layer
KV = 2 * 64 * 32
HEAD = 64 * n_vocab()
LORA = 8 * (2 * (64 + 64) + 3 * (64 + 128))  # values of rank 8 on a layer
CELLS, PER_TOKEN = 100, 2 * 2 * 32 * 2
ATTENTION = 4 * 64 * CELLS


def test_bytes_and_operations_of_each_kind_of_step(tiny: Tiny) -> None:
    with closing(BaseFile(tiny.path)) as file:
        work = work_of_steps(file, CELLS, PER_TOKEN, rank=8)
    cache, weights = CELLS * PER_TOKEN, 4 * (2 * BODY + 2 * KV + HEAD)
    assert work["one row"] == Work(weights + cache, 2 * (2 * BODY + 2 * KV + HEAD) + 2 * ATTENTION)
    decoder = 2 * (2 * BODY + HEAD + 2 * LORA) + 2 * ATTENTION
    # The encoder row ends with the last layer's K and V.
    encoder = 2 * (BODY + 2 * KV) + ATTENTION
    assert work["dual step"] == Work(weights + cache + 8 * LORA, encoder + decoder)
    assert work["swap"] == Work(weights - 8 * KV + cache + 8 * LORA, decoder)
    assert work["prefill"] == Work(4 * (BODY + 2 * KV) + cache // 2, CELLS * (2 * (BODY + 2 * KV) + ATTENTION // 2))


def test_a_layer_with_a_window_sees_no_more_than_that(tiny: Tiny) -> None:
    scores, cell = 4 * 64, 2 * 2 * 32  # operations, and bytes of K and V, of a row for a cell in one layer
    with closing(BaseFile(tiny.path)) as file:
        plain = work_of_steps(file, CELLS, PER_TOKEN, rank=8)
        file.hp = replace(file.hp, window=30, windowed=(True, False))
        work = work_of_steps(file, CELLS, PER_TOKEN, rank=8)
        file.hp = replace(file.hp, window=CELLS, windowed=(True, True))
        assert work_of_steps(file, CELLS, PER_TOKEN, rank=8) == plain
    for step, rows in (("one row", 1), ("dual step", 2), ("swap", 1)):
        assert plain[step].n_bytes - work[step].n_bytes == 70 * cell
        assert plain[step].n_ops - work[step].n_ops == rows * 70 * scores
    # In a prompt of 100 a row sees 50 cells on average; in a window of 30 up to 30 of them, 25.5 and rounded up.
    assert plain["prefill"].n_ops - work["prefill"].n_ops == CELLS * (50 - 26) * scores
    assert plain["prefill"].n_bytes - work["prefill"].n_bytes == (50 - 26) * cell


def test_the_peak_is_of_the_memory_that_the_engine_multiplies_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = tiny_llama(tmp_path, n_layer=1, hidden=256, n_ff=256, tied=True)
    q4_0 = quantised(wide.path, tmp_path / "q4_0.gguf", "Q4_0")
    monkeypatch.setattr(peaks, "SIDE", 256)
    monkeypatch.setattr(peaks, "_bandwidth", lambda _: (1e10, 2e10))
    allocate, memories = peaks._allocate, []

    def watched(context: Context, buffer_type: int, stack: ExitStack) -> None:
        memories.append(buffer_type)
        allocate(context, buffer_type, stack)

    monkeypatch.setattr(peaks, "_allocate", watched)
    for repack in (True, False):
        with Engine(q4_0, n_ctx=256, n_threads=1, device="cpu", repack=repack) as engine:
            if repack and not engine.base.placement.repacked:
                pytest.skip("this CPU repacks no Q4_0")
            memories.clear()
            found = roofline(engine, 100, 8, 1).peaks
            repacked = engine.base.placement.repack_buffer_type
            # The matrix, then its inputs, which the CPU reads where they lie.
            assert memories == [repacked if repack else cpu().buffer_type, cpu().buffer_type]
        assert (found.weight_type, found.repacked) == ("q4_0", repack)
        assert found.ops_s > 0


def test_the_floor_is_the_slower_of_memory_and_arithmetic() -> None:
    rates = Peaks(copy_bytes_s=50.0, read_bytes_s=100.0, ops_s=10.0, weight_type="f32")
    by_memory = floor("one row", Work(1000, 20), rates, measured_s=15.0)
    assert (by_memory.floor_s, by_memory.times) == (10.0, 1.5)
    by_arithmetic = floor("prefill", Work(100, 200), rates, measured_s=30.0)
    assert (by_arithmetic.floor_s, by_arithmetic.times) == (20.0, 1.5)


def test_peaks_are_those_of_a_computer() -> None:
    rates = measure_peaks(TYPE_F32, 1)
    assert 1e8 < rates.copy_bytes_s < 1e13
    assert 1e8 < rates.read_bytes_s < 1e13
    assert 1e8 < rates.ops_s < 1e14
    assert (rates.weight_type, rates.repacked) == ("f32", False)


def test_the_command_says_how_it_measured(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icarus_local.bench.roofline.measure_peaks", lambda *_: Peaks(1e10, 2e10, 1e11, "f32"))
    arguments = ["bench", "roofline", "--base", str(tiny.path), "--context", "100", "--repeats", "1"]
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 0, shown.output
    for words in ("10.0 GB/s copied", "20.0 GB/s read", "100 billion operations", "dual step", "x floor"):
        assert words in shown.output
    found = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert [step["step"] for step in found["floors"]] == ["prefill", "one row", "dual step", "swap"]
    for step in found["floors"]:
        assert step["times"] == pytest.approx(step["measured_s"] / step["floor_s"])
