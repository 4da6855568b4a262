"""A Hugging Face folder as a base is the base that its GGUF is: family, vocabulary, sizes and places."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from icarus_convert import base_folder
from icarus_convert.base import read_base
from icarus_convert.cli import main
from icarus_convert.write import convert_adapter
from icarus_local.engine.adapter_file import MODULES
from icarus_local.errors import IcarusError
from tests.convert.folders import lora_tensors, write_folder
from tests.convert.hf_models import converted, edit, save
from tests.gguf_files import quantised
from tests.relatives import VARIANTS, relative_model, write_gguf


@pytest.mark.parametrize(
    "variant", ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "granite", "olmo3", "qwen3moe"]
)
def test_it_is_the_base_of_its_gguf(variant: str, tmp_path: Path) -> None:
    model = relative_model(variant)
    folder = save(tmp_path / "model", model=model)
    ours = read_base(folder)
    # That of our converter, of a quantisation of it, and of a file that this project's converter had no part in.
    gguf = converted(folder, tmp_path / "model.gguf", "--outtype", "f32")
    write_gguf(tmp_path / "other.gguf", VARIANTS[variant].architecture, model)
    small = quantised(gguf, tmp_path / "small.gguf", "Q8_0")
    for path in (gguf, small, tmp_path / "other.gguf"):
        theirs = read_base(path)
        assert ours.family_id == theirs.family_id
        assert ours.tokenizer_sha256 == theirs.tokenizer_sha256
        assert ours.places == theirs.places
    assert replace(ours, path=gguf) == replace(read_base(gguf), name=ours.name)


@pytest.mark.parametrize("tensor", ["model.layers.1.input_layernorm.weight", "model.norm.weight"])
def test_a_norm_that_differs_is_another_family(tensor: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "gemma3")
    before = read_base(folder).family_id
    tensors = load_file(folder / "model.safetensors")
    tensors[tensor] = tensors[tensor] + np.float32(0.001)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert read_base(folder).family_id != before


def test_an_adapter_for_a_folder_runs_on_its_gguf(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    gguf = converted(folder, tmp_path / "model.gguf")
    peft = write_folder(tmp_path / "peft", lora_tensors(read_base(gguf), MODULES))
    a, b = (
        convert_adapter(peft, base, tmp_path / f"{base.name}.adapter.gguf", name="a", assume_icarus=True)
        for base in (folder, gguf)
    )
    assert a.path.read_bytes() == b.path.read_bytes()
    result = CliRunner().invoke(main, ["verify", str(a.path), "--base", str(gguf), "--threads", "1"])
    assert result.exit_code == 0, result.output
    options = ["--assume-icarus", "--outtype", "f16", "-o", str(tmp_path / "f16.gguf")]
    result = CliRunner().invoke(main, ["adapter", str(peft), "--base", str(folder), *options])
    assert result.exit_code == 0
    assert "could not be measured" in result.stderr


def test_the_matrices_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path / "model")
    encoded = base_folder.Planned.encoded
    shapes = []

    def seen(self: base_folder.Planned) -> np.ndarray:
        shapes.append(self.shape)
        return encoded(self)

    monkeypatch.setattr(base_folder.Planned, "encoded", seen)
    read_base(folder)
    assert shapes
    assert all(len(shape) == 1 for shape in shapes)


def test_folders_that_are_none(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    with pytest.raises(IcarusError, match="is a folder"):
        read_base(tmp_path)
    peft = write_folder(tmp_path / "peft", lora_tensors(read_base(folder), (*MODULES, "attn_v")))
    with pytest.raises(IcarusError, match="GGUF"):
        convert_adapter(peft, folder, tmp_path / "out.gguf", drop_kv=True)
    edit(folder / "config.json", architectures=["MambaForCausalLM"], model_type="mamba")
    with pytest.raises(IcarusError, match=r"(?i)mamba"):
        read_base(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(IcarusError, match=r"config\.json"):
        read_base(folder)
    assert not (tmp_path / "out.gguf").exists()
