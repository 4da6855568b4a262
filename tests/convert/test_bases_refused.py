"""`icarus-convert base`: what cannot be converted exactly is refused in one line, and nothing is left behind."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from icarus_convert.hf_safetensors import read_header
from icarus_local.errors import IcarusError, ModelFileError
from tests.convert.hf_models import edit, run, save

INDEX = "model.safetensors.index.json"
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of whole models, to be copied; "sharded" is a Llama in several files."""
    made: dict[str, Path] = {}

    def get(variant: str) -> Path:
        if variant not in made:
            path = tmp_path_factory.mktemp(variant) / "model"
            how = {"max_shard_size": "200KB"} if variant == "sharded" else {}
            made[variant] = save(path, "llama" if variant == "sharded" else variant, **how)
        return made[variant]

    return get


def refused(folder: Path | str, tmp_path: Path, *options: str) -> str:
    """The one line that the command ends with, after which there is nothing that was not there."""
    before = sorted(path.name for path in tmp_path.iterdir())
    result = run(folder, tmp_path / "out.gguf", *options)
    assert result.exit_code == 1, result.output
    lines = [line for line in result.output.splitlines() if not line.endswith("tensors written")]
    assert len(lines) == 1, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    return lines[0]


def config(**changes: Any) -> Change:
    return lambda folder: edit(folder / "config.json", **changes)


def tensors(change: Callable[[dict[str, Any]], object]) -> Change:
    def apply(folder: Path) -> None:
        values = load_file(folder / "model.safetensors")
        change(values)
        save_file(values, folder / "model.safetensors")

    return apply


def added_token(**changes: Any) -> Change:
    def apply(folder: Path) -> None:
        tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        tokenizer["added_tokens"][-1].update(changes)
        edit(folder / "tokenizer.json", added_tokens=tokenizer["added_tokens"])

    return apply


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


Q = "model.layers.1.self_attn.q_proj.weight"
CASES: dict[str, tuple[str, Change, str]] = {
    "no config": ("llama", lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
    "config that is no JSON": ("llama", lambda folder: (folder / "config.json").write_text("{"), "is no JSON"),
    "adapter": ("llama", lambda folder: (folder / "adapter_config.json").write_text("{}"), "is a PEFT adapter"),
    "bitsandbytes": ("llama", config(quantization_config={"quant_method": "bitsandbytes"}), "already (bitsandbytes)"),
    "gptq": ("llama", config(quantization_config={"quant_method": "gptq", "bits": 4}), "already (gptq)"),
    "awq": ("llama", config(quantization_config={"quant_method": "awq"}), "already (awq)"),
    "pickled": ("llama", pickled, "Python pickles"),
    "no weights": ("llama", lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
    "no tokenizer": ("llama", lambda folder: (folder / "tokenizer.json").unlink(), "holds no tokenizer"),
    "no index": ("sharded", lambda folder: (folder / INDEX).unlink(), f"no {INDEX}"),
    "missing shard": ("sharded", lambda folder: min(folder.glob("model-*")).unlink(), "lacks the shard model-00001"),
    "unknown architecture": ("llama", config(architectures=["SmolLM3ForCausalLM"]), "'SmolLM3ForCausalLM'"),
    "no architecture": ("llama", config(architectures=None), "is of the architecture None"),
    "wrong shape": ("llama", tensors(lambda t: t.update({Q: t[Q][:-1]})), f"{Q} has the shape [63, 64]"),
    "wrong width": ("llama", config(intermediate_size=127), "by config.json [64, 127]"),
    "missing tensor": ("llama", tensors(lambda t: t.pop(Q)), f"lacks the tensor {Q}"),
    "extra tensor": ("llama", tensors(lambda t: t.update({f"{Q}_scale": t[Q]})), f"{Q}_scale, which has no place"),
    "extra layer": ("llama", config(num_hidden_layers=2), "model.layers.2."),
    "bias": ("llama", tensors(lambda t: t.update({"model.layers.0.mlp.up_proj.bias": t[Q][0]})), "up_proj.bias"),
    "missing head": ("llama", tensors(lambda t: t.pop("lm_head.weight")), "lacks the tensor lm_head.weight"),
    "tied head of its own": ("llama", config(tie_word_embeddings=True), "a head of its own"),
    "integers": ("llama", tensors(lambda t: t.update({Q: t[Q].astype(np.int32)})), "of the type I32"),
    "heads": ("llama", config(num_key_value_heads=3), "do not divide evenly"),
    "width as a text": ("llama", config(hidden_size="64"), "hidden_size is '64', not a whole number"),
    "flag as a width": ("llama", config(hidden_size=True), "hidden_size is True"),
    "no layers": ("llama", config(num_hidden_layers=0), "num_hidden_layers is 0"),
    "too many": ("llama", config(max_position_embeddings=1 << 40), "max_position_embeddings"),
    "epsilon": ("llama", config(rms_norm_eps=-1.0), "rms_norm_eps is -1.0"),
    "activation": ("llama", config(hidden_act="gelu"), "hidden_act is 'gelu'"),
    "dynamic rope": ("llama", config(rope_parameters={"rope_type": "dynamic", "factor": 2.0}), "'dynamic'"),
    "llama3 without a factor": (
        "llama3",
        config(rope_parameters={"rope_type": "llama3"}),
        "lacks rope_parameters.factor",
    ),
    "multimodal rope": ("qwen2", config(rope_parameters={"mrope_section": [1, 2]}), "mrope_section"),
    "yarn's own betas": (
        "llama",
        config(rope_parameters={"rope_type": "yarn", "factor": 4.0, "beta_fast": 16}),
        "YaRN's beta_fast is 16.0",
    ),
    "longrope elsewhere": ("llama", config(rope_parameters={"rope_type": "longrope"}), "'longrope'"),
    "long factors": (
        "phi3",
        config(rope_parameters={"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}),
        "no list of 8 factors",
    ),
    "mistral's window": ("mistral-head-dim", config(sliding_window=64), "a sliding window of 64"),
    "qwen's window": ("qwen2", config(use_sliding_window=True), "use_sliding_window"),
    "window layers": ("qwen3", config(layer_types=["sliding_attention"] * 3), "layers with a sliding window"),
    "gemma2's scale": ("gemma2", config(query_pre_attn_scalar=64), "query_pre_attn_scalar is 64"),
    "gemma2 without caps": ("gemma2", config(attn_logit_softcapping=None), "lacks attn_logit_softcapping"),
    "gemma2's pattern": ("gemma2", config(layer_types=["full_attention"] * 4), "in another order"),
    "bidirectional": ("gemma3", config(use_bidirectional_attention=True), "use_bidirectional_attention"),
    "weights not normed": ("qwen3moe", config(norm_topk_prob=False), "norm_topk_prob"),
    "dense layers": ("qwen3moe", config(mlp_only_layers=[0]), "mlp_only_layers"),
    "fewer experts": ("qwen3moe", config(num_local_experts=7), "mlp.gate.weight has the shape"),
    "biased olmo": ("olmo2", config(attention_bias=True), "attention_bias"),
    "partial rope": ("qwen2", config(partial_rotary_factor=0.5), "partial_rotary_factor"),
    "an end that is none": (
        "llama",
        lambda folder: edit(folder / "generation_config.json", eos_token_id=[2, 4000]),
        "ends at the token 4000",
    ),
    "tokenizer without a model": ("llama", lambda folder: (folder / "tokenizer.json").write_text("{}"), "no tokenizer"),
    "added token elsewhere": ("llama", added_token(id=900), "cannot have the id 900"),
    "added token before the first": ("llama", added_token(id=-1), "tokenizer"),
    "added token without a text": ("llama", added_token(content=None), "no tokenizer"),
    "damaged tokenizer": ("llama", lambda folder: edit(folder / "tokenizer.json", version="9"), "no tokenizer"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(kept: Callable[[str], Path], case: str, tmp_path: Path) -> None:
    variant, change, reason = CASES[case]
    folder = Path(shutil.copytree(kept(variant), tmp_path / "model"))
    change(folder)
    assert reason in refused(folder, tmp_path)


def test_arguments(kept: Callable[[str], Path], tmp_path: Path) -> None:
    folder, out = kept("llama"), tmp_path / "out.gguf"
    assert "there is no type Q4_9" in refused(folder, tmp_path, "--quantize", "Q4_9")
    assert "Q4_K_M" in refused(folder, tmp_path, "--quantize", "Q4_9")
    assert "there is no folder" in refused(tmp_path / "nowhere", tmp_path)
    assert "only those have revisions" in refused(folder, tmp_path, "--revision", "main")
    assert "is a file" in refused(folder / "config.json", tmp_path)
    out.write_text("precious")
    assert "exists already" in refused(folder, tmp_path)
    assert out.read_text() == "precious"
    assert run(folder, out, "--force").exit_code == 0
    assert "no folder" in run(folder, tmp_path / "no" / "out.gguf").output


def test_harmless_buffers_are_left_out(kept: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(kept("llama"), tmp_path / "model"))
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    tensors(lambda values: values.update(buffer))(folder)
    assert run(folder, tmp_path / "out.gguf").exit_code == 0


def test_values_too_large_for_f16(kept: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(kept("llama"), tmp_path / "model"))
    tensors(lambda values: values.update({Q: values[Q] * 1e7}))(folder)
    assert "too large for f16" in refused(folder, tmp_path, "--outtype", "f16")


def test_shards_must_be_what_the_index_says(kept: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(kept("sharded"), tmp_path / "model"))
    whole = json.loads((folder / INDEX).read_text())

    def with_map(change: Callable[[dict[str, Any]], object]) -> str:
        places = dict(whole["weight_map"])
        change(places)
        (folder / INDEX).write_text(json.dumps({"weight_map": places}))
        return refused(folder, tmp_path)

    assert "does not place there" in with_map(lambda places: places.pop(Q))
    assert "lacks the tensor ghost" in with_map(lambda places: places.update(ghost=places[Q]))
    for name in ("../model.safetensors", "/etc/passwd", 3, "x.bin"):
        assert "no file of this folder" in with_map(lambda places, name=name: places.update({Q: name}))  # type: ignore[misc]
    assert "has no weight_map" in with_map(lambda places: places.clear())


def test_an_interrupt_leaves_nothing(
    kept: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from icarus_convert import hf_base, hf_tensors

    calls = []

    def encoded(self: hf_tensors.Planned) -> Any:
        calls.append(self.name)
        if len(calls) == 5:
            assert list(tmp_path.glob(".out.gguf.*.part"))
            raise KeyboardInterrupt
        return original(self)

    original = hf_tensors.Planned.encoded
    monkeypatch.setattr(hf_tensors.Planned, "encoded", encoded)
    assert run(kept("llama"), tmp_path / "out.gguf").exit_code == 1
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hf_base, "quantize", full)
    assert "No space left on device" in refused(kept("llama"), tmp_path, "--quantize", "Q8_0")


def test_without_the_library(kept: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert "pip install 'icarus-local[convert]'" in refused(kept("llama"), tmp_path)


def safetensors_bytes(header: Any, data: bytes) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "short": b"\x00" * 7,
    "header beyond the file": struct.pack("<Q", 1 << 62) + b"{}",
    "no JSON": safetensors_bytes(b"{'a'}", b""),
    "a list": safetensors_bytes([], b""),
    "deep": safetensors_bytes(b"[" * 100000, b""),
    "twice": safetensors_bytes(b'{"a":%s,"a":%s}' % ((json.dumps(entry()).encode(),) * 2), b"\0" * 8),
    "unknown type": safetensors_bytes({"a": entry("F31")}, b"\0" * 8),
    "type of a list": safetensors_bytes({"a": entry(["F32"])}, b"\0" * 8),
    "negative shape": safetensors_bytes({"a": entry(shape=[-2])}, b"\0" * 8),
    "shape of flags": safetensors_bytes({"a": entry(shape=[True, 2])}, b"\0" * 8),
    "huge shape": safetensors_bytes({"a": entry(shape=[1 << 47, 1 << 47])}, b"\0" * 8),
    "many dimensions": safetensors_bytes({"a": entry(shape=[1] * 9, offsets=[0, 4])}, b"\0" * 4),
    "offsets past the end": safetensors_bytes({"a": entry(offsets=[8, 16])}, b"\0" * 8),
    "offsets backwards": safetensors_bytes({"a": entry(offsets=[8, 0])}, b"\0" * 8),
    "overlap": safetensors_bytes({"a": entry(), "b": entry(offsets=[4, 12])}, b"\0" * 12),
    "gap": safetensors_bytes({"a": entry(), "b": entry(offsets=[12, 20])}, b"\0" * 20),
    "cut": safetensors_bytes({"a": entry()}, b"\0" * 7),
    "more": safetensors_bytes({"a": entry()}, b"\0" * 9),
    "more keys": safetensors_bytes({"a": entry() | {"x": 1}}, b"\0" * 8),
    "no entry": safetensors_bytes({"a": 3}, b""),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers(case: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(HOSTILE[case])
    with pytest.raises(ModelFileError):
        read_header(path)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_changed_bytes_of_a_header(data: st.DataObject) -> None:
    import tempfile

    whole = bytearray(safetensors_bytes({"a": entry(), "b": entry("BF16", [2, 2], [8, 16])}, bytes(16)))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.safetensors"
        path.write_bytes(whole)
        try:
            found = read_header(path)
        except IcarusError:
            return
        assert all(tensor.offset + 4 * tensor.shape[0] <= len(whole) for tensor in found.values() if tensor.shape)
