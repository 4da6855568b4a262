"""The random adapters are the same weights in the engine and in llama.cpp, where a LoRA acts on every row."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from icarus_local.bench.adapters import random_adapter, write_random_adapter
from icarus_local.engine.adapter_file import Adapter, read_adapter
from icarus_local.engine.engine import Engine
from icarus_local.engine.oracle import LlamaContext, LlamaModel
from icarus_local.errors import ModelFileError
from tests.gguf_files import rewritten
from tests.tiny import Tiny, n_vocab

TOKENS = np.random.default_rng(3).integers(0, n_vocab(), 40).tolist()


@pytest.fixture(scope="module")
def adapter(tiny: Tiny) -> Adapter:
    with Engine(tiny.path, n_ctx=256) as engine:
        return random_adapter(engine.base, rank=8, seed=1)


@pytest.fixture(scope="module")
def file(tiny: Tiny, adapter: Adapter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapters") / "random.gguf"
    write_random_adapter(path, adapter, "llama")
    return path


def logits(path: Path, adapter: Path | None = None) -> np.ndarray:
    model = LlamaModel(path)
    with LlamaContext(model, 256, 1, kv_type="f32") as context:
        if adapter is not None:
            context.use(model.add_adapter(adapter))
        found = context.prefill(TOKENS)
    model.close()
    return found


def test_the_engine_reads_back_what_was_written(adapter: Adapter, file: Path) -> None:
    read = read_adapter(file)
    assert read.family_id == adapter.family_id
    assert read.pairs.keys() == adapter.pairs.keys()
    for tensor, pair in adapter.pairs.items():
        assert np.array_equal(read.pairs[tensor].a, pair.a)
        assert np.array_equal(read.pairs[tensor].b, pair.b)


def test_llama_cpp_computes_the_base_with_the_products_added(
    tiny: Tiny, adapter: Adapter, file: Path, tmp_path: Path
) -> None:
    weights = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(tiny.path).tensors}
    # Larger than what they round by, so that a scale that is not 1 would show.
    merged = {name: weights[name] + pair.b @ pair.a for name, pair in adapter.pairs.items()}
    reference = logits(rewritten(tiny.path, tmp_path / "merged.gguf", tensors=merged))
    bare, found = logits(tiny.path), logits(tiny.path, file)
    moved = float(np.abs(reference - bare).max())
    # llama.cpp multiplies in F16 here; half of the scale, or twice, would be off by half of what the adapter does.
    assert float(np.abs(found - reference).max()) < 0.05 * moved


def test_an_adapter_can_be_taken_off_and_put_on_again(tiny: Tiny, file: Path) -> None:
    model = LlamaModel(tiny.path)
    adapter = model.add_adapter(file)
    with LlamaContext(model, 256, 1) as context:
        rows = []
        for use in (None, adapter, None, adapter):
            context.use(use)
            context.truncate(0)
            rows.append(context.prefill(TOKENS, last_only=True))
    model.close()
    assert np.array_equal(rows[0], rows[2])
    assert np.array_equal(rows[1], rows[3])
    assert not np.array_equal(rows[0], rows[1])


def test_libllama_refuses_what_is_no_adapter(tiny: Tiny) -> None:
    model = LlamaModel(tiny.path)
    with pytest.raises(ModelFileError, match="libllama cannot load it over"):
        model.add_adapter(tiny.path)
    model.close()
