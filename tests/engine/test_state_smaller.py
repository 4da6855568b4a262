"""States that are saved in a smaller type than the cache's: what they hold, what is refused, and what saving costs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from icarus_local.engine.engine import Engine
from icarus_local.engine.state import State, check_saved_as, load_state, save_state, take_state, write_state
from icarus_local.errors import RequestError, StateError
from icarus_local.ggml.library import TYPE_Q8_0
from tests.engine.test_kv_types import log_probabilities
from tests.engine.test_state import encoded, refused
from tests.gguf_files import in_type
from tests.tiny import Tiny

FLOATS = {"f16": np.float16, "f32": np.float32}
PAIRS = [("f32", "f16"), ("f32", "q8_0"), ("f16", "q8_0")]


@pytest.fixture
def open_engine(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Engine]]:
    monkeypatch.setenv("ICARUS_HOME", str(tmp_path / "home"))
    engines = []

    def opened(kv_type: str) -> Engine:
        engines.append(Engine(tiny.path, n_ctx=512, kv_type=kv_type, n_threads=1, device="cpu"))
        return engines[-1]

    yield opened
    for engine in engines:
        engine.close()


def values(engine: Engine, sequence: int) -> dict[str, npt.NDArray[np.float32]]:
    rows = engine.kv_rows(sequence)
    return {name: row.view(FLOATS[engine.kv_type]).astype(np.float32) for name, row in rows.items()}


def header_of(path: Path) -> dict[str, Any]:
    with safe_open(path, "numpy") as file:
        return json.loads(file.metadata()["icarus"])  # type: ignore[no-any-return]


@pytest.mark.parametrize(("kv_type", "saved_as"), PAIRS)
def test_what_is_restored_is_what_the_smaller_type_holds(
    open_engine: Callable[[str], Engine], tmp_path: Path, kv_type: str, saved_as: str
) -> None:
    engine = open_engine(kv_type)
    sequence = encoded(engine)
    whole = save_state(engine, sequence, tmp_path / "whole")
    smaller = save_state(engine, sequence, tmp_path / "smaller", saved_as)
    share = {"f16": 2, "q8_0": 34 / 32}[saved_as] / np.dtype(FLOATS[kv_type]).itemsize
    # Beside the rows there are ids and a header.
    assert smaller / whole == pytest.approx(share, abs=0.05)
    assert header_of(tmp_path / "smaller")["saved_as"] == saved_as
    assert "saved_as" not in header_of(tmp_path / "whole")
    restored = load_state(engine, tmp_path / "smaller")
    assert restored.saved_as == saved_as
    assert load_state(engine, tmp_path / "whole").saved_as is None
    assert np.array_equal(engine.cells.tokens(restored.sequence), engine.cells.tokens(sequence))
    before, after = values(engine, sequence), values(engine, restored.sequence)
    for name, row in before.items():
        blocks, others = row.reshape(-1, 32), after[name].reshape(-1, 32)
        largest = np.abs(blocks).max(axis=1, keepdims=True)
        # Half of the smaller type's step, and of what rounding to the cache's type adds.
        bound = largest * (2**-11 if saved_as == "f16" else 1 / 254 + 2**-10)
        assert (np.abs(blocks - others) <= bound).all()
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    # Saved once more, nothing more is lost.
    save_state(engine, restored.sequence, tmp_path / "again", saved_as)
    again = values(engine, load_state(engine, tmp_path / "again").sequence)
    assert all(np.allclose(after[name], again[name], rtol=2**-9, atol=0) for name in after)


def test_rows_are_quantised_as_ggml_does(open_engine: Callable[[str], Engine], tmp_path: Path) -> None:
    engine = open_engine("f32")
    sequence = encoded(engine)
    save_state(engine, sequence, tmp_path / "s", "q8_0")
    with safe_open(tmp_path / "s", "numpy") as file:
        for name, row in values(engine, sequence).items():
            assert file.get_tensor(name).tobytes() == in_type(row, TYPE_Q8_0).tobytes()


def test_only_smaller_types_are_taken_and_nothing_is_written_else(
    open_engine: Callable[[str], Engine], tmp_path: Path
) -> None:
    for kv_type in ("f32", "f16"):
        engine = open_engine(kv_type)
        sequence = encoded(engine)
        for saved_as in ("f32", "f16", "q8_0", "q4_0", "none"):
            if (kv_type, saved_as) in PAIRS:
                check_saved_as(engine, saved_as)
                continue
            words = f"K and V of type {kv_type} cannot be saved as {saved_as}. Smaller types of it are .*q8_0"
            with pytest.raises(RequestError, match=words):
                check_saved_as(engine, saved_as)
            with pytest.raises(RequestError, match=words):
                save_state(engine, sequence, tmp_path / "s", saved_as)
    facts = take_state(engine, sequence)
    odd = State(facts.tokens, facts.rows, facts.base, {**facts.facts, "n_embd_kv": 80})
    with pytest.raises(RequestError, match="multiple of 32 values; this base's have 80"):
        write_state(odd, tmp_path / "s", "q8_0")
    quantised = State(facts.tokens, facts.rows, facts.base, {**facts.facts, "kv_type": "q8_0"})
    with pytest.raises(RequestError, match="They are saved as they are"):
        write_state(quantised, tmp_path / "s", "q4_0")
    assert not (tmp_path / "s").exists()


def test_values_that_do_not_fit_are_told(open_engine: Callable[[str], Engine], tmp_path: Path) -> None:
    engine = open_engine("f32")
    taken = take_state(engine, encoded(engine))
    for value in (1e6, np.inf, np.nan):
        rows = {name: row.copy() for name, row in taken.rows.items()}
        rows["v.1"].view(np.float32)[3, 4] = value
        for saved_as in ("f16", "q8_0"):
            with pytest.raises(StateError, match=f"a value of K or V is too large for {saved_as}"):
                write_state(State(taken.tokens, rows, taken.base, taken.facts), tmp_path / "s", saved_as)
    assert not (tmp_path / "s").exists()


def test_headers_that_promise_another_type_are_refused(open_engine: Callable[[str], Engine], tmp_path: Path) -> None:
    engine = open_engine("f16")
    path = tmp_path / "s"
    save_state(engine, encoded(engine), path, "q8_0")
    with safe_open(path, "numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header = header_of(path)
    for change, words in (
        ({"saved_as": "f16"}, "is damaged: it was saved as 'f16'"),
        ({"saved_as": ["q8_0"]}, r"is damaged: it was saved as \['q8_0'\]"),
        ({"saved_as": None}, "is damaged: it was saved as None"),
        ({"format": 1}, r"has another format version \(1 instead of 2\)"),
        ({"kv_type": "f32"}, "has another type of K and V"),
    ):
        save_file(tensors, path, metadata={"icarus": json.dumps(header | change)})
        refused(engine, path, words)
    del header["saved_as"]
    save_file(tensors, path, metadata={"icarus": json.dumps(header)})
    refused(engine, path, "has another format version")  # a version that reads no smaller types says the same
    save_file(tensors, path, metadata={"icarus": json.dumps(header | {"format": 1})})
    refused(engine, path, "it does not hold what its header says")


# -- figures ---------------------------------------------------------------------------------------------------------


def real(smollm2: Path, n_tokens: int) -> Engine:
    return Engine(smollm2, n_ctx=n_tokens, n_threads=1, device="cpu")


def filled(engine: Engine, n_tokens: int) -> int:
    """A sequence of random K and V: for times, what they are does not matter."""
    rng = np.random.default_rng(1)
    width = engine.base.hp.n_embd_kv
    rows = {
        f"{part}.{layer}": rng.standard_normal((n_tokens, width), np.float32).astype(np.float16).view(np.uint8)
        for layer in range(engine.base.hp.n_layer)
        for part in "kv"
    }
    return engine.restore(np.arange(n_tokens, dtype=np.int32), rows)


def longest_wait(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds that `work` takes in a thread, and the longest that this thread waited for the interpreter meanwhile."""
    thread, longest, start = threading.Thread(target=work), 0.0, time.perf_counter()
    thread.start()
    last = start
    while thread.is_alive():
        time.sleep(0.0005)
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    return last - start, longest


@pytest.mark.slow
def test_how_long_a_state_takes(smollm2: Path, tmp_path: Path) -> None:
    """The engine's thread copies; writing leaves it the interpreter. `pytest -k how_long_a_state_takes -s`."""
    with real(smollm2, 4096) as engine:
        sequence = filled(engine, 4096)
        path = tmp_path / "s"
        write_state(take_state(engine, sequence), path)  # the base's content id is remembered from here on
        for saved_as in (None, "q8_0"):
            start = time.perf_counter()
            state = take_state(engine, sequence)
            taken = time.perf_counter() - start
            written, waited = longest_wait(lambda: write_state(state, path, saved_as))  # noqa: B023
            start = time.perf_counter()
            engine.cells.drop(sequence)
            sequence = load_state(engine, path).sequence
            loaded = time.perf_counter() - start
            print(
                f"4,096 tokens, {saved_as or 'as they are'}: {path.stat().st_size / 1e6:.0f} MB, copied in "
                f"{taken * 1e3:.0f} ms, written in {written * 1e3:.0f} ms (another thread waited {waited * 1e3:.1f} ms "
                f"at most), loaded in {loaded * 1e3:.0f} ms"
            )
            assert taken < 1
            assert waited < 0.1


@pytest.mark.slow
def test_what_saving_as_q8_0_loses(smollm2: Path, text_tokens: list[int], tmp_path: Path) -> None:
    """Kullback-Leibler divergence of the base's predictions over 24 tokens after 400 were restored."""
    predictions = []
    for saved_as in (None, "q8_0"):
        with real(smollm2, 1024) as engine:
            sequence = engine.cells.create()
            engine.forward(encode=[(sequence, text_tokens[:400])])
            save_state(engine, sequence, tmp_path / "s", saved_as)
            restored = load_state(engine, tmp_path / "s").sequence
            steps = [
                engine.forward(encode=[(restored, [token])], encoder_logits=True).encoder
                for token in text_tokens[400:424]
            ]
            predictions.append(log_probabilities(np.concatenate(steps)))
    p, q = predictions
    loss = float((np.exp(p) * (p - q)).sum(axis=-1).mean())
    same = float((p.argmax(axis=-1) == q.argmax(axis=-1)).mean())
    print(f"saved as q8_0: mean divergence {loss:.4f}, the same likeliest token at {same:.0%}")
    assert 0 < loss < 0.02
