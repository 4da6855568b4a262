"""What ggml would abort on is refused first, in one clear error, and changes nothing."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icarus_local.engine.engine import Engine
from icarus_local.errors import CancelledError, ContextFullError, IcarusError, ModelFileError, RequestError
from icarus_local.ggml.gguf import GgufFile
from tests.gguf_files import rewritten
from tests.tiny import Tiny

Change = dict[str, dict[str, Any]]


def _drop(name: str) -> Change:
    return {"tensors": {name: None}}


def _key(name: str, value: Any) -> Change:
    return {"keys": {name: value}}


def _tensor(name: str, data: Any) -> Change:
    return {"tensors": {name: data}}


BROKEN_BASES = {
    "a tensor is missing": (_drop("blk.1.ffn_up.weight"), "lacks the tensor blk.1.ffn_up.weight"),
    "a tensor has another shape": (
        _tensor("blk.0.attn_k.weight", np.zeros((8, 64), np.float32)),
        "blk.0.attn_k.weight has",
    ),
    "a norm is not F32": (
        _tensor("output_norm.weight", np.ones(64, np.float16)),
        "output_norm.weight is of the type f16",
    ),
    "a weight is of integers": (_tensor("blk.0.attn_q.weight", np.zeros((64, 64), np.int32)), "type i32"),
    "an unknown tensor": (
        _tensor("blk.0.attn_q_norm.weight", np.ones(16, np.float32)),
        "attn_q_norm.weight, which has no",
    ),
    "another architecture": (_key("general.architecture", "mamba"), "architecture 'mamba'"),
    "no layers": (_key("llama.block_count", 0), "block_count is 0"),
    "too many layers": (_key("llama.block_count", 3), "lacks the tensor blk.2"),
    "odd heads": (_key("llama.attention.head_count_kv", 3), "do not divide evenly"),
    "an epsilon of zero": (_key("llama.attention.layer_norm_rms_epsilon", 0.0), "epsilon is 0.0"),
    "an attention factor": (_key("llama.rope.scaling.attn_factor", 0.0), "rope.scaling.attn_factor is 0.0"),
    "token texts are missing": (_key("tokenizer.ggml.tokens", ["a", "b"]), "2 token texts and 273 embeddings"),
    "rope over more than a head": (_key("llama.rope.dimension_count", 64), "rope over 64 of 16"),
}


@pytest.mark.parametrize("case", BROKEN_BASES)
def test_a_broken_base_is_named(tiny: Tiny, tmp_path: Path, case: str) -> None:
    change, message = BROKEN_BASES[case]
    with pytest.raises(ModelFileError, match=message):
        Engine(rewritten(tiny.path, tmp_path / "broken.gguf", **change))


def test_the_rewriter_itself_breaks_nothing(tiny: Tiny, tmp_path: Path) -> None:
    Engine(rewritten(tiny.path, tmp_path / "whole.gguf")).close()


def test_no_file_no_gguf_and_cut_files(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="is not a file"):
        Engine(tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text("hello, this is no model at all")
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        Engine(tmp_path / "text.gguf")
    whole = tiny.path.read_bytes()
    cut = tmp_path / "cut.gguf"
    for n in (3, 10, 30, 300, 5000, len(whole) // 2, len(whole) - 40):
        cut.write_bytes(whole[:n])
        with pytest.raises(ModelFileError, match=r"cut|damaged|begins"):
            Engine(cut)


def test_header_counts_are_bounded_by_the_file(tiny: Tiny, tmp_path: Path) -> None:
    data = bytearray(tiny.path.read_bytes())
    data[8:16] = (2**40).to_bytes(8, "little")
    (tmp_path / "many.gguf").write_bytes(data)
    with pytest.raises(ModelFileError, match="more than its"):
        GgufFile(tmp_path / "many.gguf")


@pytest.fixture
def engine(tiny: Tiny) -> Iterator[Engine]:
    with Engine(tiny.path, n_ctx=256) as engine:
        yield engine


def test_wrong_requests_change_nothing(engine: Engine) -> None:
    sequence = engine.cells.create()
    engine.forward(encode=[(sequence, [1, 2, 3])])
    wrong: list[tuple[dict[str, Any], type[IcarusError], str]] = [
        ({"encode": [(sequence, [5, 100000])]}, RequestError, "token id 100000"),
        ({"encode": [(sequence, [-1])]}, RequestError, "token id -1"),
        ({"encode": [(sequence, [0.5])]}, RequestError, "whole numbers"),
        ({"encode": [(99, [1])]}, RequestError, "no sequence 99"),
        ({"encode": [(sequence, [1]), (sequence, [2])]}, RequestError, "named twice"),
        ({"decode": [(sequence, 4)]}, RequestError, "no adapter 4"),
        ({"decode": [(engine.cells.create(), None)]}, RequestError, "is empty"),
        ({"encode": [(sequence, [1] * 254)]}, ContextFullError, "256 tokens and 257 are needed"),
    ]
    for arguments, kind, message in wrong:
        with pytest.raises(kind, match=message):
            engine.forward(**arguments)
        assert engine.cells.tokens(sequence).tolist() == [1, 2, 3]
        assert engine.cells.n_used == 3


def test_arguments_are_checked(tiny: Tiny) -> None:
    with pytest.raises(RequestError, match="n_ctx is 4096"):
        Engine(tiny.path, n_ctx=4096)
    with pytest.raises(RequestError, match="KV type 'q9'"):
        Engine(tiny.path, kv_type="q9")
    with pytest.raises(RequestError, match="n_ubatch is 0"):
        Engine(tiny.path, n_ubatch=0)
    with pytest.raises(RequestError, match="0 threads"):
        Engine(tiny.path, n_threads=0)


def test_a_cache_larger_than_memory_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    huge = rewritten(tiny.path, tmp_path / "huge.gguf", {"llama.context_length": 1 << 30})
    with pytest.raises(IcarusError, match="MiB are free"):
        Engine(huge, n_ctx=1 << 30)


def test_paths_of_any_characters(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "mödel ﷽ 模.gguf"
    shutil.copy(tiny.path, path)
    Engine(path).close()


def test_cancel_stops_a_prefill_and_leaves_whole_steps(smollm2: Path, text_tokens: list[int]) -> None:
    with Engine(smollm2, n_ctx=1024, n_ubatch=256) as engine:
        sequence = engine.cells.create()
        cancelled_at = []

        def cancel() -> None:
            cancelled_at.append(time.perf_counter())
            engine.cancel()

        threading.Timer(0.15, cancel).start()
        with pytest.raises(CancelledError):
            engine.forward(encode=[(sequence, text_tokens[:700])])
        assert time.perf_counter() - cancelled_at[0] < 0.3
        kept = engine.cells.length(sequence)
        assert kept in (0, 256, 512)
        assert engine.cells.n_used == kept
        # What follows is as if nothing had happened.
        engine.forward(encode=[(sequence, text_tokens[kept:600])])
        after = engine.forward(decode=[(sequence, None)]).decoder
        engine.cells.truncate(sequence, 0)
        engine.forward(encode=[(sequence, text_tokens[:kept])])
        engine.forward(encode=[(sequence, text_tokens[kept:600])])
        assert np.array_equal(engine.forward(decode=[(sequence, None)]).decoder, after)
