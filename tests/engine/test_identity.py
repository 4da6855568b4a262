"""The family id is one for all quantisations of a model and differs between models; the content id is the file's."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from icarus_local.engine import identity
from icarus_local.engine.identity import content_id, family_id
from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile
from icarus_local.ggml.library import load_llama
from tests.tiny import Tiny, tiny_llama

QUANTISATIONS = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7}  # enum llama_ftype


def family_of(path: Path) -> str:
    with GgufFile(path) as file:
        return family_id(file)


def quantised(source: Path, target: Path, ftype: int, requantise: bool = False) -> Path:
    llama = load_llama()
    params = llama.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = ftype, 1, requantise
    assert llama.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params)) == 0
    return target


def rewritten(source: Path, target: Path, **changes: Any) -> Path:
    """A copy with keys (`llama__rope__freq_base=…`) or tensors (`tensor=(name, array)`) changed; None drops a key."""
    reader = gguf.GGUFReader(source)
    tensor = changes.pop("tensor", (None, None))
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = keys.pop(field.name, field.contents())
        if value is not None:
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, value, field.types[0], sub_type)
    for name, value in keys.items():
        writer.add_key_value(name, value, gguf.GGUFValueType.FLOAT32)
    for item in reader.tensors:
        writer.add_tensor(item.name, tensor[1] if item.name == tensor[0] else item.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize("kind", QUANTISATIONS)
def test_one_family_over_all_quantisations(tiny: Tiny, tmp_path: Path, kind: str) -> None:
    path = quantised(tiny.path, tmp_path / f"{kind}.gguf", QUANTISATIONS[kind])
    assert path.read_bytes() != tiny.path.read_bytes()
    assert family_of(path) == family_of(tiny.path)


@pytest.mark.slow
def test_one_family_over_quantisations_of_the_real_base(smollm2: Path, tmp_path: Path) -> None:
    for kind in ("Q8_0", "Q4_0"):
        path = quantised(smollm2, tmp_path / f"{kind}.gguf", QUANTISATIONS[kind], requantise=True)
        assert family_of(path) == family_of(smollm2)


def test_what_a_family_is(tiny: Tiny, tmp_path: Path) -> None:
    ours = family_of(tiny.path)
    assert family_of(rewritten(tiny.path, tmp_path / "same.gguf", general__name="another name")) == ours
    # A default that is left out is the same model.
    assert family_of(rewritten(tiny.path, tmp_path / "left_out.gguf", llama__rope__freq_base=None)) == ours
    assert family_of(rewritten(tiny.path, tmp_path / "template.gguf", tokenizer__chat_template="x")) == ours
    norm = 1 + np.arange(64, dtype=np.float32) / 1e6
    tokens = [f"t{i}" for i in range(273)]
    others = [
        tiny_llama(tmp_path, seed=1, name="other_weights").path,
        tiny_llama(tmp_path, n_layer=3, name="three_layers").path,
        rewritten(tiny.path, tmp_path / "rope.gguf", llama__rope__freq_base=10001.0),
        rewritten(tiny.path, tmp_path / "eps.gguf", llama__attention__layer_norm_rms_epsilon=1e-5),
        rewritten(tiny.path, tmp_path / "heads.gguf", llama__attention__head_count_kv=1),
        rewritten(tiny.path, tmp_path / "tokens.gguf", tokenizer__ggml__tokens=tokens),
        rewritten(tiny.path, tmp_path / "types.gguf", tokenizer__ggml__token_type=[1] * 273),
        rewritten(tiny.path, tmp_path / "norm.gguf", tensor=("blk.1.ffn_norm.weight", norm)),
        rewritten(tiny.path, tmp_path / "scale.gguf", llama__attention__scale=0.5),
    ]
    families = [ours, *map(family_of, others)]
    assert len(set(families)) == len(families)


@pytest.mark.parametrize("key", ["embedding_length", "attention.head_count", "block_count"])
def test_a_file_without_a_key_is_refused(tiny: Tiny, tmp_path: Path, key: str) -> None:
    path = rewritten(tiny.path, tmp_path / "lacks.gguf", **{f"llama.{key}": None})
    with pytest.raises(ModelFileError, match=key):
        family_of(path)


def test_tokens_that_are_no_texts(tiny: Tiny, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "numbers.gguf", "llama")
    for key in ("embedding_length", "attention.head_count", "block_count"):
        writer.add_uint32(f"llama.{key}", 4)
    writer.add_array("tokenizer.ggml.tokens", [1, 2])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.tokens"):
        family_of(tmp_path / "numbers.gguf")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ICARUS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_content_id_is_the_tensors(tiny: Tiny, tmp_path: Path, home: Path) -> None:
    ours = content_id(tiny.path)
    assert content_id(rewritten(tiny.path, tmp_path / "name.gguf", general__name="another")) == ours
    changed = np.zeros((64, 64), np.float32)
    assert content_id(rewritten(tiny.path, tmp_path / "x.gguf", tensor=("blk.0.attn_q.weight", changed))) != ours
    assert content_id(quantised(tiny.path, tmp_path / "q8.gguf", QUANTISATIONS["Q8_0"])) != ours


def test_content_id_is_remembered_until_the_file_changes(
    tiny: Tiny, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "base.gguf"
    path.write_bytes(tiny.path.read_bytes())
    first = content_id(path)
    hashed: list[Path] = []
    real = identity._hash_tensors
    monkeypatch.setattr(identity, "_hash_tensors", lambda path: (hashed.append(path), real(path))[1])
    assert content_id(path) == first
    assert hashed == []
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))
    assert content_id(path) != first
    assert hashed == [path]


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 5000, '{"x": 1}'])
def test_a_damaged_memory_costs_a_hashing_only(tiny: Tiny, home: Path, text: str) -> None:
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "content_ids.json").write_text(text)
    assert len(content_id(tiny.path)) == 64


def test_content_id_of_nothing(tmp_path: Path, home: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read"):
        content_id(tmp_path / "missing.gguf")
    assert not home.exists()
