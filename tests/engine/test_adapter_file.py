"""An adapter file is read whole and right, or refused by name; a damaged one never crashes the process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icarus_local.engine import adapter_file as keys
from icarus_local.engine.adapter_file import MODULES, Adapter, LoraPair, Part, Place, check_fits, read_adapter
from icarus_local.errors import AdapterError
from tests.tiny import Tiny

FAMILY = "f0" * 32
Q = "blk.0.attn_q.weight"
SHAPES = {
    f"blk.{layer}.{module}.weight": (64, 32 if module == "attn_q" else 64) for layer in range(2) for module in MODULES
}
PLACES = {name: Place(n_in, n_out, (Part(name, 0, n_out),)) for name, (n_in, n_out) in SHAPES.items()}
KEYS: dict[str, Any] = {
    keys.KEY_TYPE: "adapter",
    keys.KEY_ADAPTER_TYPE: "lora",
    keys.KEY_ALPHA: 0.0,
    keys.KEY_NAME: "coder",
    keys.KEY_VERSION: 1,
    keys.KEY_FAMILY: FAMILY,
    keys.KEY_BASE_NAME: "tiny",
    keys.KEY_TRAINED: "icarus",
    keys.KEY_ASSUMED: False,
    keys.KEY_MODULES: sorted(MODULES),
    keys.KEY_TEMPLATE: "aa" * 32,
    keys.KEY_TOKENIZER: "bb" * 32,
}


def matrices(rank: int = 3) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    tensors = {}
    for name, (n_in, n_out) in SHAPES.items():
        tensors[f"{name}.lora_a"] = random.normal(size=(rank, n_in)).astype(np.float32)
        tensors[f"{name}.lora_b"] = random.normal(size=(n_out, rank)).astype(np.float32)
    return tensors


def write(path: Path, changes: dict[str, Any] | None = None, tensors: dict[str, np.ndarray] | None = None) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {**KEYS, **(changes or {})}.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
    for name, values in (matrices() if tensors is None else tensors).items():
        kinds = {
            np.dtype(np.uint8): gguf.GGMLQuantizationType.Q8_0,
            np.dtype(np.uint16): gguf.GGMLQuantizationType.BF16,
        }
        kind = kinds.get(values.dtype)
        writer.add_tensor(name, values, raw_shape=values.shape if kind else None, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf")
    adapter = read_adapter(path)
    assert (adapter.path, adapter.name, adapter.family_id, adapter.base_name) == (path, "coder", FAMILY, "tiny")
    assert (adapter.trained, adapter.assumed) == ("icarus", False)
    assert (adapter.template_sha256, adapter.tokenizer_sha256) == ("aa" * 32, "bb" * 32)
    assert adapter.rank == 3
    assert adapter.n_bytes == sum(values.nbytes for values in matrices().values())
    assert adapter.pairs.keys() == SHAPES.keys()
    for name, pair in adapter.pairs.items():
        np.testing.assert_array_equal(pair.a, matrices()[f"{name}.lora_a"])
        np.testing.assert_array_equal(pair.b, matrices()[f"{name}.lora_b"])
        assert pair.a.dtype == pair.b.dtype == np.float32
        assert not pair.a.flags.writeable
    check_fits(adapter, FAMILY, PLACES)


def test_identity_is_the_content(tmp_path: Path) -> None:
    first, copy = read_adapter(write(tmp_path / "a.gguf")), read_adapter(write(tmp_path / "b.gguf"))
    other = read_adapter(write(tmp_path / "a.gguf", {keys.KEY_NAME: "reviewer"}))
    assert first.sha256 == copy.sha256 != other.sha256


@pytest.mark.parametrize(("alpha", "scale"), [(0.0, 1.0), (None, 1.0), (6.0, 2.0), (1.5, 0.5)])
def test_scale_is_llama_cpps(tmp_path: Path, alpha: float | None, scale: float) -> None:
    adapter = read_adapter(write(tmp_path / "a.gguf", {keys.KEY_ALPHA: alpha}))
    for name, pair in adapter.pairs.items():
        np.testing.assert_allclose(pair.b, scale * matrices()[f"{name}.lora_b"], rtol=1e-6)


def test_f16_bf16_and_rank_one(tmp_path: Path) -> None:
    tensors = matrices(rank=1)
    half = {name: values.astype(np.float16) for name, values in tensors.items()}
    brain = {name: (values.view(np.uint32) >> 16).astype(np.uint16) for name, values in tensors.items()}
    for stored, bound in ((half, 2**-10), (brain, 2**-7)):
        adapter = read_adapter(write(tmp_path / "a.gguf", tensors=stored))
        assert adapter.rank == 1
        for name, pair in adapter.pairs.items():
            np.testing.assert_allclose(pair.a, tensors[f"{name}.lora_a"], rtol=bound, atol=1e-6)
            np.testing.assert_allclose(pair.b, tensors[f"{name}.lora_b"], rtol=bound, atol=1e-6)
        check_fits(adapter, FAMILY, PLACES)


def test_unknown_hashes_are_empty(tmp_path: Path) -> None:
    adapter = read_adapter(write(tmp_path / "a.gguf", {keys.KEY_TEMPLATE: None, keys.KEY_TOKENIZER: None}))
    assert adapter.template_sha256 == adapter.tokenizer_sha256 == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({keys.KEY_TYPE: "model"}, ["not an adapter"]),
        ({keys.KEY_TYPE: None}, ["not an adapter"]),
        ({keys.KEY_ADAPTER_TYPE: "control"}, ["control"]),
        ({keys.KEY_VERSION: None}, ["plain LoRA", "icarus-convert"]),
        ({keys.KEY_VERSION: 2}, ["format version 2"]),
        ({keys.KEY_VERSION: "1"}, [keys.KEY_VERSION]),
        ({keys.KEY_FAMILY: None}, [keys.KEY_FAMILY]),
        ({keys.KEY_FAMILY: "x"}, [keys.KEY_FAMILY]),
        ({keys.KEY_TRAINED: None}, [keys.KEY_TRAINED]),
        ({keys.KEY_TRAINED: "well"}, [keys.KEY_TRAINED, "well"]),
        ({keys.KEY_TRAINED: "ordinary"}, ["ordinary", "--assume-icarus"]),
        ({keys.KEY_TRAINED: "unknown"}, ["unknown", "--assume-icarus"]),
        ({keys.KEY_ASSUMED: 1}, [keys.KEY_ASSUMED]),
        ({keys.KEY_ALPHA: float("nan")}, [keys.KEY_ALPHA]),
        ({keys.KEY_ALPHA: "1"}, [keys.KEY_ALPHA]),
        ({keys.KEY_MODULES: ["attn_q"]}, [keys.KEY_MODULES]),
        ({keys.KEY_MODULES: None}, [keys.KEY_MODULES]),
        ({keys.KEY_MODULES: [1, 2]}, [keys.KEY_MODULES]),
        ({keys.KEY_TEMPLATE: "AA" * 32}, [keys.KEY_TEMPLATE]),
        ({keys.KEY_ALORA: [5]}, ["invocation"]),
    ],
    ids=str,
)
def test_keys_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(AdapterError) as caught:
        read_adapter(write(tmp_path / "a.gguf", changes))
    for word in (*words, "a.gguf"):
        assert word in str(caught.value)


@pytest.mark.parametrize("trained", ["ordinary", "unknown"])
def test_assumed_is_read_and_kept(tmp_path: Path, trained: str) -> None:
    adapter = read_adapter(write(tmp_path / "a.gguf", {keys.KEY_TRAINED: trained, keys.KEY_ASSUMED: True}))
    assert (adapter.trained, adapter.assumed) == (trained, True)


MATRIX = np.ones((3, 64), np.float32)


def with_pair(name: str) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors.update({f"{name}.lora_a": MATRIX, f"{name}.lora_b": np.ones((8, 3), np.float32)})


def with_tensor(name: str, values: np.ndarray) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors.update({name: values})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_pair("blk.1.attn_k.weight"), ["blk.1.attn_k.weight", "K or V", "cache would be wrong"]),
        (with_pair("blk.1.attn_v.weight"), ["blk.1.attn_v.weight", "K or V", "cache would be wrong"]),
        (with_pair("token_embd.weight"), ["token_embd", "embeddings"]),
        (with_pair("output.weight"), ["output.weight", "head"]),
        (with_pair("blk.0.ffn_gate_exps.weight"), ["ffn_gate_exps"]),
        (with_pair("blk.x.attn_q.weight"), ["blk.x.attn_q"]),
        (with_pair("blk.0.attn_q.bias"), ["attn_q.bias"]),
        (with_tensor("blk.0.attn_norm.weight", np.ones(64, np.float32)), ["attn_norm", "norm"]),
        (with_tensor("output_norm.weight", np.ones(64, np.float32)), ["output_norm", "norm"]),
        (with_tensor(Q, MATRIX), [Q, "neither"]),
        (lambda tensors: tensors.pop(f"{Q}.lora_a"), [Q, "no lora_a"]),
        (lambda tensors: tensors.pop(f"{Q}.lora_b"), [Q, "no lora_b"]),
        (lambda tensors: tensors.clear(), ["nothing"]),
        (with_tensor(f"{Q}.lora_a", np.ones((4, 64), np.float32)), [Q, "rank 4", "rank 3"]),
        (with_tensor(f"{Q}.lora_a", np.ones((2, 3, 64), np.float32)), [Q, "no matrix"]),
        (with_tensor(f"{Q}.lora_a", MATRIX * np.float32("inf")), [Q, "finite"]),
        (with_tensor(f"{Q}.lora_b", np.full((32, 3), np.nan, np.float32)), [Q, "finite"]),
        (with_tensor(f"{Q}.lora_a", np.ones((3, 64), np.int32)), [Q, "quantised"]),
    ],
)
def test_tensors_are_refused_by_name(tmp_path: Path, change: Callable[[Any], Any], words: list[str]) -> None:
    tensors = matrices()
    change(tensors)
    with pytest.raises(AdapterError) as caught:
        read_adapter(write(tmp_path / "a.gguf", tensors=tensors))
    for word in (*words, "a.gguf"):
        assert word in str(caught.value)


def test_a_scale_that_overflows(tmp_path: Path) -> None:
    tensors = matrices()
    tensors[f"{Q}.lora_b"][0, 0] = 1e38
    with pytest.raises(AdapterError, match="finite"):
        read_adapter(write(tmp_path / "a.gguf", {keys.KEY_ALPHA: 1e6}, tensors))


def test_what_is_no_adapter(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "empty.gguf").touch()
    for path, words in (
        (tiny.path, "base model"),
        (tmp_path / "text.gguf", "not a GGUF"),
        (tmp_path / "empty.gguf", "not a GGUF"),
        (tmp_path / "missing.gguf", "not a file"),
        (tmp_path, "not a file"),
    ):
        with pytest.raises(AdapterError, match=words):
            read_adapter(path)


def fits(adapter: Adapter, family: str = FAMILY, **changes: Any) -> str:
    with pytest.raises(AdapterError) as caught:
        check_fits(dataclasses.replace(adapter, **changes), family, PLACES)
    return str(caught.value)


def test_what_does_not_fit(tmp_path: Path) -> None:
    adapter = read_adapter(write(tmp_path / "a.gguf"))
    other = fits(adapter, family="0" * 64)
    assert "is for another base (tiny" in other
    assert "any quantisation" in other
    assert "nothing" in fits(adapter, pairs={})
    pair = adapter.pairs[Q]
    assert "blk.9.attn_q.weight" in fits(adapter, pairs={**adapter.pairs, "blk.9.attn_q.weight": pair})
    narrow = LoraPair(pair.a[:, :32], pair.b)
    assert f"{Q} is adapted from 32 to 32" in fits(adapter, pairs={**adapter.pairs, Q: narrow})
    tall = LoraPair(pair.a, pair.b[:16])
    assert f"{Q} is adapted from 64 to 16" in fits(adapter, pairs={**adapter.pairs, Q: tall})
    fused = {"blk.0.attn_qkv.weight": Place(64, 32, (Part(Q, 0, 16),))}
    b = pair.b.copy()
    b[16:] = 0
    q_only = dataclasses.replace(adapter, pairs={"blk.0.attn_qkv.weight": LoraPair(pair.a, b)})
    check_fits(q_only, FAMILY, fused)
    b[31, 2] = 1e-9
    with pytest.raises(AdapterError, match="rows of K or V"):
        check_fits(q_only, FAMILY, fused)
    torn = LoraPair(pair.a, pair.b[:, :2])
    assert "ranks 3 and 2" in fits(adapter, pairs={**adapter.pairs, Q: torn})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("whole") / "a.gguf").read_bytes()


SETTINGS = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=6),
    within=st.sampled_from([64, 1200, 2600, 1 << 20]),
)
def test_flipped_bytes(whole: bytes, tmp_path: Path, flips: list[tuple[int, int]], within: int) -> None:
    data = bytearray(whole)
    for place, bits in flips:
        data[place % min(within, len(data))] ^= bits
    path = tmp_path / "flipped.gguf"
    path.write_bytes(data)
    try:
        adapter = read_adapter(path)
    except AdapterError:
        return
    # What is still valid has finite matrices; whether it fits is for the base to say.
    assert all(np.isfinite(pair.a).all() and np.isfinite(pair.b).all() for pair in adapter.pairs.values())
    try:
        check_fits(adapter, FAMILY, PLACES)
    except AdapterError:
        return


@SETTINGS
@given(length=st.integers(0, 1 << 20))
def test_truncation(whole: bytes, tmp_path: Path, length: int) -> None:
    path = tmp_path / "cut.gguf"
    # The last tensor's padding to the alignment may go.
    path.write_bytes(whole[: length % (len(whole) - 32)])
    with pytest.raises(AdapterError):
        read_adapter(path)
