"""A saved state gives back the same bytes of K and V, or a reason; it never poisons what is there."""

from __future__ import annotations

import random
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from icarus_local.bench.adapters import random_adapter
from icarus_local.engine.content import content_id
from icarus_local.engine.engine import Engine
from icarus_local.engine.state import load_state, save_state, take_state, write_state
from icarus_local.errors import ContextFullError, IcarusError, StateError
from tests.gguf_files import quantised, rewritten
from tests.kills import Killed
from tests.relatives import relative
from tests.tiny import Tiny, tiny_llama

TOKENS = random.Random(4).choices(range(3, 250), k=130)


@pytest.fixture
def engine(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setenv("ICARUS_HOME", str(tmp_path / "home"))
    with Engine(tiny.path, n_ctx=512, n_threads=1, device="cpu") as engine:
        yield engine


def encoded(engine: Engine, n: int = 120) -> int:
    sequence = engine.cells.create()
    engine.forward(encode=[(sequence, TOKENS[:n])])
    return sequence


@pytest.mark.parametrize("variant", ["llama", "gemma3", "phi3-longrope"])
@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0"])
def test_a_restored_sequence_is_the_one_that_was_saved(variant: str, kv_type: str, tmp_path: Path) -> None:
    base = relative(variant, tmp_path).path
    if kv_type == "q8_0" and variant == "llama":
        base = tiny_llama(tmp_path, hidden=128, name="wide").path
    elif kv_type == "q8_0" and variant == "phi3-longrope":
        pytest.skip("its heads are too narrow for this type")
    with Engine(base, n_ctx=512, kv_type=kv_type, n_threads=1, device="cpu") as engine:
        agent = engine.add_adapter(random_adapter(engine.base, 8, seed=0))
        sequence = encoded(engine)
        logits = engine.forward(decode=[(sequence, agent)]).decoder
        kv = engine.kv_bytes(sequence)
        n_bytes = save_state(engine, sequence, tmp_path / "state.safetensors")
        # Used cells and token ids, and next to nothing else.
        assert len(kv) + 120 * 4 < n_bytes < len(kv) + 120 * 4 + (64 << 10)
    with Engine(base, n_ctx=512, kv_type=kv_type, n_threads=1, device="cpu") as engine:
        agent = engine.add_adapter(random_adapter(engine.base, 8, seed=0))
        other = encoded(engine, 7)
        before, native = engine.kv_bytes(other), engine.native_s
        restored = load_state(engine, tmp_path / "state.safetensors").sequence
        assert engine.native_s == native  # nothing was computed
        assert engine.cells.tokens(restored).tolist() == TOKENS[:120]
        assert engine.kv_bytes(restored) == kv
        assert engine.kv_bytes(other) == before
        assert np.array_equal(engine.forward(decode=[(restored, agent)]).decoder, logits)


def test_cells_that_do_not_follow_each_other(engine: Engine, tmp_path: Path) -> None:
    first, second = encoded(engine, 3), encoded(engine)
    kv = engine.kv_bytes(second)
    save_state(engine, second, tmp_path / "s")
    third = encoded(engine, 5)
    engine.cells.drop(first)
    engine.cells.truncate(second, 50)
    restored = load_state(engine, tmp_path / "s").sequence
    assert np.any(np.diff(engine.cells.cells(restored)) != 1)
    assert engine.kv_bytes(restored) == kv
    assert engine.cells.length(third) == 5


def test_what_is_written_is_what_was_taken_whatever_the_engine_does_meanwhile(engine: Engine, tmp_path: Path) -> None:
    sequence = encoded(engine)
    kv = engine.kv_bytes(sequence)
    state = take_state(engine, sequence)
    engine.cells.truncate(sequence, 10)
    engine.forward(encode=[(sequence, TOKENS[50:130])])
    assert engine.kv_bytes(sequence)[: len(kv)] != kv
    writer = threading.Thread(target=write_state, args=(state, tmp_path / "s"))
    writer.start()
    engine.forward(encode=[(sequence, TOKENS[:5])])
    writer.join()
    restored = load_state(engine, tmp_path / "s").sequence
    assert engine.kv_bytes(restored) == kv
    assert engine.cells.tokens(restored).tolist() == TOKENS[:120]


def test_a_copy_that_memory_does_not_hold_is_not_made(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icarus_local.engine.state.host_memory", lambda: 1000)
    with pytest.raises(StateError, match="a copy of the KV state takes 0 MiB and 0 MiB are free"):
        save_state(engine, encoded(engine), tmp_path / "s")
    assert not (tmp_path / "s").exists()


def refused(engine: Engine, path: Path, words: str, kind: type[IcarusError] = StateError) -> None:
    used = engine.cells.n_used
    with pytest.raises(kind, match=words):
        load_state(engine, path)
    assert engine.cells.n_used == used


def test_what_differs_is_said(engine: Engine, tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "s"
    save_state(engine, encoded(engine), path)
    refused(engine, tmp_path / "none", "there is no state")
    (tmp_path / "empty").touch()
    refused(engine, tmp_path / "empty", "is damaged")
    refused(engine, tiny.path, "is damaged")
    with Engine(quantised(tiny.path, tmp_path / "q.gguf", "Q8_0"), n_ctx=256, device="cpu") as other:
        refused(other, path, "is of another base, or another quantisation of it")
    with Engine(tiny.path, n_ctx=256, kv_type="f32", device="cpu") as other:
        refused(other, path, r"has another type of K and V \(f16 instead of f32\)")
    with Engine(tiny.path, n_ctx=256, device="cpu") as other:
        encoded(other)
        encoded(other, 60)
        refused(other, path, "holds 120 tokens and 76 are free", ContextFullError)
    longrope = relative("phi3-longrope-short", tmp_path).path
    with Engine(longrope, n_ctx=512, device="cpu") as short, Engine(longrope, n_ctx=768, device="cpu") as long:
        save_state(short, encoded(short), tmp_path / "short")
        refused(long, tmp_path / "short", "another --n-ctx changes them")


def test_a_base_whose_keys_changed_is_the_same_and_another_is_not(engine: Engine, tiny: Tiny, tmp_path: Path) -> None:
    assert content_id(rewritten(tiny.path, tmp_path / "keys.gguf", {"general.name": "other"})) == content_id(tiny.path)
    bias = {"blk.0.attn_q.bias": np.full(64, 1e-9, np.float32)}
    assert content_id(rewritten(tiny.path, tmp_path / "bias.gguf", tensors=bias)) != content_id(tiny.path)
    # What is remembered is a file as it was.
    copy = tmp_path / "copy.gguf"
    shutil.copy(tiny.path, copy)
    before = content_id(copy)
    shutil.copy(quantised(tiny.path, tmp_path / "q.gguf", "Q8_0"), copy)
    assert content_id(copy) != before
    (tmp_path / "home" / "cache" / "content-ids.json").write_text("[]")
    assert content_id(tiny.path) == before


def test_files_are_the_owners_and_nothing_is_left_beside(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "states"
    folder.mkdir()
    save_state(engine, encoded(engine), folder / "s")
    assert [file.name for file in folder.iterdir()] == ["s"]
    if sys.platform != "win32":
        assert (folder / "s").stat().st_mode & 0o777 == 0o600
    with pytest.raises(StateError, match="cannot be written"):
        save_state(engine, encoded(engine), folder / "none" / "s")


@pytest.mark.parametrize("kv_type", [None, "q8_0"])
def test_1000_flipped_bytes_and_100_cuts_are_refused_or_harmless(
    engine: Engine, tmp_path: Path, kv_type: str | None
) -> None:
    rng = random.Random(7)
    sequence = encoded(engine, 30)
    kv = engine.kv_bytes(sequence)
    save_state(engine, sequence, tmp_path / "s", kv_type)
    whole, path = (tmp_path / "s").read_bytes(), tmp_path / "broken"
    restored = load_state(engine, tmp_path / "s").sequence
    saved = engine.kv_bytes(restored)
    engine.cells.drop(restored)
    header = int.from_bytes(whole[:8], "little") + 8
    places = [*(rng.randrange(len(whole)) for _ in range(500)), *(rng.randrange(header) for _ in range(500))]
    broken = [whole[:i] + bytes([whole[i] ^ rng.randrange(1, 256)]) + whole[i + 1 :] for i in places]
    broken += [whole[: rng.randrange(len(whole))] for _ in range(100)]
    harmless = 0
    for data in broken:
        path.write_bytes(data)
        try:
            restored = load_state(engine, path).sequence
        except StateError:
            continue
        harmless += 1
        assert engine.kv_bytes(restored) == saved
        engine.cells.drop(restored)
    # Such as white space of the header.
    assert harmless < 50
    assert engine.kv_bytes(sequence) == kv
    assert engine.cells.n_used == 30


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
def test_killed_200_times_while_saving_a_state_is_whole(engine: Engine, tiny: Tiny, tmp_path: Path) -> None:
    rng, path = random.Random(3), tmp_path / "states" / "s"
    path.parent.mkdir()
    lengths, unfinished = set(), set()
    with (
        Engine(tiny.path, n_ctx=1024, n_threads=1, device="cpu") as reader,
        Killed("tests.engine.killed", str(tiny.path), str(path)) as killed,
    ):
        for _ in range(200):
            killed.after(rng.uniform(0, 0.02))
            restored = load_state(reader, path).sequence
            lengths.add(reader.cells.length(restored))
            reader.cells.drop(restored)
            unfinished |= {file.name for file in path.parent.iterdir()} - {"s"}
    assert lengths == {900, 901}
    # The kills did meet it while it wrote.
    assert len(unfinished) > 20
