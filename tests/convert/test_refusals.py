"""What cannot be exact on a shared cache is refused by name, before a byte is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

from icarus_convert.base import Base, read_base
from icarus_convert.cli import main
from icarus_convert.write import convert_adapter
from icarus_local.engine.adapter_file import MODULES
from icarus_local.errors import IcarusError
from tests.convert.folders import lora_tensors, write_folder
from tests.tiny import Tiny

Tensors = dict[str, np.ndarray]
Q0 = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture
def base(tiny: Tiny) -> Base:
    return read_base(tiny.path)


def refused(base: Base, folder: Path, out: Path, **options: Any) -> str:
    """The message of a refusal that left nothing behind."""
    with pytest.raises(IcarusError) as caught:
        convert_adapter(folder, base.path, out, **options)
    assert not list(out.parent.glob("*.gguf*")), "something was written"
    assert not list(out.parent.glob(".*")), "a part was left"
    return str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"use_dora": True}, ["use_dora", "DoRA"]),
        ({"modules_to_save": ["lm_head"]}, ["modules_to_save"]),
        ({"bias": "lora_only"}, ["bias", "lora_only"]),
        ({"peft_type": "IA3"}, ["peft_type", "IA3"]),
        ({"task_type": "SEQ_CLS"}, ["task_type"]),
        ({"init_lora_weights": "pissa"}, ["init_lora_weights", "pissa", "path_initial_model"]),
        ({"init_lora_weights": "pissa_niter_16"}, ["init_lora_weights"]),
        ({"init_lora_weights": "olora"}, ["olora"]),
        ({"init_lora_weights": "loftq"}, ["loftq"]),
        ({"init_lora_weights": "corda"}, ["corda"]),
        ({"init_lora_weights": "lora_ga"}, ["lora_ga"]),
        ({"init_lora_weights": {"a": 1}}, ["init_lora_weights"]),
        ({"fan_in_fan_out": True}, ["fan_in_fan_out"]),
        ({"trainable_token_indices": [3]}, ["trainable_token_indices"]),
        ({"lora_bias": True}, ["lora_bias"]),
        ({"target_parameters": ["experts.up"]}, ["target_parameters"]),
        ({"use_qalora": True}, ["use_qalora"]),
        ({"layer_replication": [[0, 2]]}, ["layer_replication"]),
        ({"a_setting_of_tomorrow": 1}, ["a_setting_of_tomorrow"]),
        ({"lora_alpha": 0}, ["lora_alpha", "0"]),
        ({"lora_alpha": -1}, ["lora_alpha"]),
        ({"lora_alpha": float("nan")}, ["lora_alpha", "nan"]),
        ({"lora_alpha": float("inf")}, ["lora_alpha"]),
        ({"lora_alpha": 10**400}, ["lora_alpha"]),
        ({"lora_alpha": None}, ["lora_alpha"]),
        ({"lora_alpha": "16"}, ["lora_alpha"]),
        ({"lora_alpha": True}, ["lora_alpha"]),
        ({"r": 0}, ["r of"]),
        ({"r": -4}, ["r of"]),
        ({"r": 8}, ["rank 4", "says 8"]),
        ({"alpha_pattern": {"q_proj": 0}}, ["lora_alpha", "q_proj"]),
        ({"rank_pattern": {"q_proj": 8}}, ["q_proj", "says 8"]),
        ({"rank_pattern": {"(": 8}}, ["regular expression"]),
        ({"rank_pattern": [1]}, ["rank_pattern"]),
        ({"use_rslora": "yes"}, ["use_rslora"]),
        ({"fine_tune_type": "lora", "lora_parameters": {"rank": 8}}, ["fine_tune_type"]),
    ],
    ids=str,
)
def test_settings(base: Base, tmp_path: Path, config: dict[str, Any], words: list[str]) -> None:
    folder = write_folder(tmp_path / "peft", lora_tensors(base, MODULES), config, run={})
    message = refused(base, folder, tmp_path / "out.gguf")
    for word in words:
        assert word in message


@pytest.mark.parametrize("key", ["r", "lora_alpha"])
def test_missing_scale(base: Base, tmp_path: Path, key: str) -> None:
    folder = write_folder(tmp_path / "peft", lora_tensors(base, MODULES), run={})
    config = json.loads((folder / "adapter_config.json").read_text())
    del config[key]
    (folder / "adapter_config.json").write_text(json.dumps(config))
    assert f"lacks {key}" in refused(base, folder, tmp_path / "out.gguf")


def with_tensor(name: str, *shape: int) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = np.ones(shape, np.float32)

    return change


def without_b(tensors: Tensors) -> None:
    del tensors[f"{Q0}.lora_B.weight"]


def not_finite(tensors: Tensors) -> None:
    tensors[f"{Q0}.lora_A.weight"][0, 0] = np.nan


def overflowing(tensors: Tensors) -> None:
    tensors[f"{Q0}.lora_B.weight"][0, 0] = 3e38


def too_wide(tensors: Tensors) -> None:
    tensors[f"{Q0}.lora_A.weight"] = np.ones((4, 96), np.float32)


def empty(tensors: Tensors) -> None:
    tensors.clear()


def as_mlx(tensors: Tensors) -> None:
    tensors.clear()
    tensors["model.layers.0.self_attn.q_proj.lora_a"] = np.ones((64, 4), np.float32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_tensor(f"{Q0}.lora_magnitude_vector", 64), ["lora_magnitude_vector", "DoRA"]),
        (with_tensor("base_model.model.model.norm.weight", 64), ["model.norm.weight", "norms"]),
        (with_tensor("base_model.model.lm_head.weight", 64, 64), ["lm_head.weight", "modules_to_save"]),
        (with_tensor("base_model.model.model.embed_tokens.lora_embedding_A", 4, 9), ["embeddings"]),
        (with_tensor(f"{Q0}.lora_B.bias", 64), ["lora_B.bias", "bias"]),
        (with_tensor("base_model.model.lm_head.lora_A.weight", 4, 64), ["lm_head"]),
        (without_b, ["q_proj", "no lora_B"]),
        (not_finite, ["q_proj", "finite"]),
        (overflowing, ["q_proj", "finite"]),
        (too_wide, ["q_proj", "96", "64", "somebody/tiny"]),
        (empty, ["nothing"]),
        (as_mlx, ["MLX"]),
    ],
)
def test_tensors(base: Base, tmp_path: Path, change: Callable[[Tensors], None], words: list[str]) -> None:
    tensors = lora_tensors(base, MODULES)
    change(tensors)
    folder = write_folder(tmp_path / "peft", tensors, run={})
    message = refused(base, folder, tmp_path / "out.gguf", assume_icarus=True)
    for word in words:
        assert word in message


@pytest.mark.parametrize("module", ["attn_k", "attn_v"])
def test_keys_and_values_are_listed_with_the_ways_that_are_right(base: Base, tmp_path: Path, module: str) -> None:
    folder = write_folder(tmp_path / "peft", lora_tensors(base, (*MODULES, module)), run={})
    message = refused(base, folder, tmp_path / "out.gguf", assume_icarus=True)
    assert f"model.layers.0.self_attn.{module[-1]}_proj" in message
    assert f"model.layers.1.self_attn.{module[-1]}_proj" in message
    assert "icarus-train" in message


def test_a_layer_that_the_base_lacks(base: Base, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "peft", lora_tensors(base, MODULES, n_layer=3), run={})
    message = refused(base, folder, tmp_path / "out.gguf")
    assert "model.layers.2." in message
    assert "2 layers" in message


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (None, ["icarus_run.json", "--assume-icarus"]),
        ({"method": "lora"}, ["ordinary", "--assume-icarus"]),
        ({"method": "sft"}, ["method"]),
        ({"method": ["icarus"]}, ["method"]),
        ({"format": 2}, ["format 2"]),
        ({"tokenizer_sha256": "00" * 32}, ["vocabulary"]),
        ({"base_family_id": "00" * 32}, ["another base", "000000000000"]),
        ({"template_sha256": "nonsense"}, ["template_sha256"]),
        ({"adapter_sha256": "00" * 32}, ["is not the file"]),
    ],
    ids=str,
)
def test_training(base: Base, tmp_path: Path, run: dict[str, Any] | None, words: list[str]) -> None:
    folder = write_folder(tmp_path / "peft", lora_tensors(base, MODULES), run=run)
    message = refused(base, folder, tmp_path / "out.gguf")
    for word in words:
        assert word in message


@pytest.mark.parametrize("run", [None, {"method": "lora"}])
def test_an_assumption_is_written_down(base: Base, tmp_path: Path, run: dict[str, Any] | None) -> None:
    folder = write_folder(tmp_path / "peft", lora_tensors(base, MODULES), run=run)
    adapter = convert_adapter(folder, base.path, tmp_path / "out.gguf", assume_icarus=True)
    assert adapter.assumed
    assert adapter.trained == ("unknown" if run is None else "ordinary")


def test_a_run_file_makes_it_icarus(base: Base, tmp_path: Path) -> None:
    run = {"base_family_id": base.family_id, "tokenizer_sha256": base.tokenizer_sha256}
    folder = write_folder(tmp_path / "peft", lora_tensors(base, MODULES), run=run)
    adapter = convert_adapter(folder, base.path, tmp_path / "out.gguf", name="coder", assume_icarus=True)
    assert (adapter.name, adapter.trained, adapter.assumed) == ("coder", "icarus", False)
    assert (adapter.template_sha256, adapter.tokenizer_sha256) == ("ab" * 32, base.tokenizer_sha256)
    assert (adapter.family_id, adapter.base_name) == (base.family_id, "tiny")


def test_swapped_and_strange_arguments(base: Base, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "peft", lora_tensors(base, MODULES), run={})
    (tmp_path / "work").mkdir()
    out = tmp_path / "work" / "out.gguf"
    done = convert_adapter(folder, base.path, tmp_path / "done.gguf").path
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for first, second, word in (
        (base.path, folder, "swapped"),
        (folder, folder, "swapped"),
        (folder, done, "is an adapter for tiny"),
        (folder, tmp_path / "missing.gguf", "not a file"),
        (folder, tmp_path / "model", "no weights"),
        (done, base.path, "converted already"),
        (tmp_path / "model", base.path, "whole model"),
        (tmp_path / "work", base.path, "no PEFT folder"),
        (tmp_path / "missing", base.path, "no folder"),
        (folder / "adapter_config.json", base.path, "is a file"),
    ):
        with pytest.raises(IcarusError, match=word):
            convert_adapter(first, second, out)
    assert not list(out.parent.iterdir())


def test_another_architecture(base: Base, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "mamba.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    folder = write_folder(tmp_path / "peft", lora_tensors(base, MODULES), run={})
    with pytest.raises(IcarusError, match="mamba"):
        convert_adapter(folder, tmp_path / "mamba.gguf", tmp_path / "out.gguf")


def test_nothing_is_overwritten_without_force(base: Base, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "peft", lora_tensors(base, MODULES), run={})
    out = tmp_path / "out.gguf"
    out.write_text("mine")
    with pytest.raises(IcarusError, match="--force"):
        convert_adapter(folder, base.path, out)
    assert out.read_text() == "mine"
    convert_adapter(folder, base.path, out, force=True)
    assert out.read_bytes()[:4] == b"GGUF"
    with pytest.raises(IcarusError, match="the base itself"):
        convert_adapter(folder, base.path, base.path, force=True)


def test_values_too_large_for_f16(base: Base, tmp_path: Path) -> None:
    tensors = lora_tensors(base, MODULES)
    tensors[f"{Q0}.lora_A.weight"][0, 0] = 1e6
    folder = write_folder(tmp_path / "peft", tensors, run={})
    assert "--outtype f32" in refused(base, folder, tmp_path / "out.gguf", outtype="f16")


def test_pickled_weights(base: Base, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "peft", lora_tensors(base, MODULES), run={})
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "safe_serialization" in refused(base, folder, tmp_path / "out.gguf")


def test_the_command(base: Base, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "peft", lora_tensors(base, MODULES))
    arguments = ["adapter", str(folder), "--base", str(base.path), "-o", str(tmp_path / "coder.gguf")]
    refusal = CliRunner().invoke(main, arguments)
    assert refusal.exit_code == 1
    assert refusal.stderr.startswith("icarus-convert: ")
    assert "Traceback" not in refusal.stderr
    assert not refusal.stdout
    done = CliRunner().invoke(main, [*arguments, "--assume-icarus"])
    assert done.exit_code == 0, done.stderr
    assert "coder, 10 weights of rank 4" in done.stdout
    assert "assumed" in done.stderr
