"""The family id is one for all quantisations of a model and differs between models."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from icarus_local.engine.identity import family_id
from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile
from tests.gguf_files import quantised, rewritten
from tests.tiny import Tiny, tiny_llama


def family_of(path: Path) -> str:
    with GgufFile(path) as file:
        return family_id(file)


@pytest.mark.parametrize("kind", ["F16", "Q4_0", "Q4_1", "Q8_0"])
def test_one_family_over_all_quantisations(tiny: Tiny, tmp_path: Path, kind: str) -> None:
    path = quantised(tiny.path, tmp_path / f"{kind}.gguf", kind)
    assert path.read_bytes() != tiny.path.read_bytes()
    assert family_of(path) == family_of(tiny.path)


@pytest.mark.slow
def test_one_family_over_quantisations_of_the_real_base(smollm2: Path, tmp_path: Path) -> None:
    for kind in ("Q8_0", "Q4_0"):
        path = quantised(smollm2, tmp_path / f"{kind}.gguf", kind)
        assert family_of(path) == family_of(smollm2)


def test_what_a_family_is(tiny: Tiny, tmp_path: Path) -> None:
    ours = family_of(tiny.path)
    assert family_of(rewritten(tiny.path, tmp_path / "same.gguf", {"general.name": "another name"})) == ours
    # A default that is left out is the same model.
    assert family_of(rewritten(tiny.path, tmp_path / "left_out.gguf", {"llama.rope.freq_base": None})) == ours
    assert family_of(rewritten(tiny.path, tmp_path / "template.gguf", {"tokenizer.chat_template": "x"})) == ours
    norm = 1 + np.arange(64, dtype=np.float32) / 1e6
    tokens = [f"t{i}" for i in range(273)]
    others = [
        tiny_llama(tmp_path, seed=1, name="other_weights").path,
        tiny_llama(tmp_path, n_layer=3, name="three_layers").path,
        rewritten(tiny.path, tmp_path / "rope.gguf", {"llama.rope.freq_base": 10001.0}),
        rewritten(tiny.path, tmp_path / "eps.gguf", {"llama.attention.layer_norm_rms_epsilon": 1e-5}),
        rewritten(tiny.path, tmp_path / "heads.gguf", {"llama.attention.head_count_kv": 1}),
        rewritten(tiny.path, tmp_path / "tokens.gguf", {"tokenizer.ggml.tokens": tokens}),
        rewritten(tiny.path, tmp_path / "types.gguf", {"tokenizer.ggml.token_type": [1] * 273}),
        rewritten(tiny.path, tmp_path / "norm.gguf", tensors={"blk.1.ffn_norm.weight": norm}),
        rewritten(tiny.path, tmp_path / "factor.gguf", {"llama.rope.scaling.factor": 2.0}),
        rewritten(tiny.path, tmp_path / "old_factor.gguf", {"llama.rope.scale_linear": 2.0}),
        rewritten(tiny.path, tmp_path / "scale.gguf", {"llama.attention.scale": 0.5}),
    ]
    families = [ours, *map(family_of, others)]
    assert len(set(families)) == len(families)


@pytest.mark.parametrize("key", ["embedding_length", "attention.head_count", "block_count"])
def test_a_file_without_a_key_is_refused(tiny: Tiny, tmp_path: Path, key: str) -> None:
    path = rewritten(tiny.path, tmp_path / "lacks.gguf", {f"llama.{key}": None})
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
