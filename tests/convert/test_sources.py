"""Every layout that people have gives the same file as the plain PEFT folder of the same numbers, or a refusal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import save_file

from icarus_convert.base import Base, read_base
from icarus_convert.cli import main
from icarus_convert.write import convert_adapter
from icarus_local.engine import adapter_file as keys
from icarus_local.engine.adapter_file import MODULES, Adapter
from icarus_local.errors import IcarusError
from tests.convert.folders import CONFIG, lora_tensors, write_folder, write_run
from tests.gguf_files import rewritten
from tests.tiny import Tiny, llama_cpp_logits

Tensors = dict[str, np.ndarray]
PREFIX = "base_model.model."


@pytest.fixture
def base(tiny: Tiny) -> Base:
    return read_base(tiny.path)


@pytest.fixture
def tensors(base: Base) -> Tensors:
    return lora_tensors(base, MODULES)


@pytest.fixture
def plain(base: Base, tensors: Tensors, tmp_path: Path) -> Adapter:
    folder = write_folder(tmp_path / "plain", tensors)
    return convert_adapter(folder, base.path, tmp_path / "plain.gguf", assume_icarus=True)


def same(ours: Adapter, theirs: Adapter) -> bool:
    assert ours.pairs.keys() == theirs.pairs.keys()
    return all(
        np.array_equal(pair.a, theirs.pairs[tensor].a) and np.array_equal(pair.b, theirs.pairs[tensor].b)
        for tensor, pair in ours.pairs.items()
    )


def refused(folder: Path, base: Base, out: Path, **options: Any) -> str:
    with pytest.raises(IcarusError) as caught:
        convert_adapter(folder, base.path, out, **{"assume_icarus": True, **options})
    assert not out.exists()
    assert not list(out.parent.glob(".*.part"))
    return str(caught.value)


def as_config(path: Path, config: dict[str, Any] | None = None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps(CONFIG if config is None else config))
    return path


def to_torch(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in tensors.items()}


# -- names -------------------------------------------------------------------------------------------------------------

STYLES: dict[str, Callable[[str], str]] = {
    "without PEFT's prefix": lambda name: name.removeprefix(PREFIX),
    "the prefix twice": lambda name: PREFIX + name,
    "in DDP": lambda name: f"module.{name}",
    "compiled": lambda name: f"_orig_mod.{name}",
    "a whole state dict": lambda name: name.replace(".weight", ".default.weight"),
    "another adapter's": lambda name: name.replace(".weight", ".coder-2.weight"),
    "without weight": lambda name: name.removesuffix(".weight"),
    "down and up": lambda name: name.replace("lora_A", "lora_down").replace("lora_B", "lora_up"),
    "a model that sees": lambda name: name.replace("model.layers", "model.language_model.layers"),
    "an older one": lambda name: name.replace("model.layers", "language_model.model.layers"),
}


@pytest.mark.parametrize("style", STYLES)
def test_names(style: str, base: Base, tensors: Tensors, plain: Adapter, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "peft", {STYLES[style](name): values for name, values in tensors.items()})
    assert same(convert_adapter(folder, base.path, tmp_path / "out.gguf", assume_icarus=True), plain)


def test_two_adapters_in_one_file(base: Base, tensors: Tensors, tmp_path: Path) -> None:
    both = {name.replace(".weight", f".{who}.weight"): v for name, v in tensors.items() for who in ("a", "b")}
    message = refused(write_folder(tmp_path / "peft", both), base, tmp_path / "out.gguf")
    assert "several adapters: a, b" in message


# -- torch's zip -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bin_is_read_exactly(base: Base, tensors: Tensors, tmp_path: Path, dtype: torch.dtype) -> None:
    values = {name: value.to(dtype) for name, value in to_torch(tensors).items()}
    torch.save(values, as_config(tmp_path / "bin") / "adapter_model.bin")
    exact = write_folder(tmp_path / "peft", {name: value.float().numpy() for name, value in values.items()})
    ours, theirs = (
        convert_adapter(folder, base.path, tmp_path / f"{folder.name}.gguf", assume_icarus=True)
        for folder in (tmp_path / "bin", exact)
    )
    assert same(ours, theirs)


def test_a_run_file_vouches_for_a_bin_by_its_hash(base: Base, tensors: Tensors, tmp_path: Path) -> None:
    folder = as_config(tmp_path / "bin")
    torch.save(to_torch(tensors), folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").write_bytes((folder / "adapter_model.bin").read_bytes())
    write_run(folder, {})  # the hash of whatever bears that name
    (folder / "adapter_model.safetensors").unlink()
    assert convert_adapter(folder, base.path, tmp_path / "out.gguf").trained == "icarus"
    torch.save(to_torch({name: 2 * values for name, values in tensors.items()}), folder / "adapter_model.bin")
    assert "is not the file" in refused(folder, base, tmp_path / "other.gguf", force=True)


def test_the_old_format_is_refused_with_the_way_forward(base: Base, tensors: Tensors, tmp_path: Path) -> None:
    folder = as_config(tmp_path / "bin")
    torch.save(to_torch(tensors), folder / "adapter_model.bin", _use_new_zipfile_serialization=False)
    message = refused(folder, base, tmp_path / "out.gguf")
    assert "adapter_model.bin" in message
    assert "safe_serialization=True" in message


# -- shards ------------------------------------------------------------------------------------------------------------


def sharded(path: Path, tensors: Tensors) -> Path:
    as_config(path)
    names = sorted(tensors)
    weight_map = {name: f"adapter_model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(names)}
    for shard in set(weight_map.values()):
        save_file({name: tensors[name] for name in names if weight_map[name] == shard}, path / shard)
    (path / "adapter_model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


def test_shards(base: Base, tensors: Tensors, plain: Adapter, tmp_path: Path) -> None:
    folder = sharded(tmp_path / "shards", tensors)
    assert same(convert_adapter(folder, base.path, tmp_path / "out.gguf", assume_icarus=True), plain)


def test_shards_that_are_not_as_the_index_says(base: Base, tensors: Tensors, tmp_path: Path) -> None:
    folder, out = sharded(tmp_path / "shards", tensors), tmp_path / "out.gguf"
    index = folder / "adapter_model.safetensors.index.json"
    right = json.loads(index.read_text())["weight_map"]
    name, other = min(right), max(right)

    def message(weight_map: Any) -> str:
        index.write_text(json.dumps({"weight_map": weight_map}))
        return refused(folder, base, out)

    assert name in message({**right, name: right[other]})
    assert "of-00003.safetensors" in message({**right, name: "adapter_model-00003-of-00003.safetensors"})
    for odd in ("../plain/adapter_model.safetensors", "/etc/passwd", "..", "", "a\0b", 3, None):
        assert "no file beside it" in message({**right, name: odd})
    assert "weight_map" in message([])
    (folder / right[name]).unlink()
    assert "1 are missing" in message(right)


# -- several adapters --------------------------------------------------------------------------------------------------


def test_one_of_several(base: Base, tensors: Tensors, plain: Adapter, tmp_path: Path) -> None:
    folder = tmp_path / "several"
    write_folder(folder / "coder", tensors)
    write_folder(folder / "reviewer", lora_tensors(base, MODULES, seed=1))
    assert "coder, reviewer" in refused(folder, base, tmp_path / "out.gguf")
    assert "no adapter 'other'" in refused(folder, base, tmp_path / "out.gguf", adapter="other")
    assert "no adapter '../plain'" in refused(folder, base, tmp_path / "out.gguf", adapter="../plain")
    for name in ("coder", "reviewer"):
        options = {"adapter": name, "assume_icarus": True}
        adapter = convert_adapter(folder, base.path, tmp_path / f"{name}.gguf", **options)  # type: ignore[arg-type]
        assert same(adapter, plain) == (name == "coder")
    # PEFT writes the default one into the folder itself, and trainers leave checkpoints beside it.
    write_folder(folder, lora_tensors(base, MODULES, seed=2))
    write_folder(folder / "checkpoint-50", tensors)
    default = convert_adapter(folder, base.path, tmp_path / "default.gguf", assume_icarus=True)
    assert not same(default, plain)
    options = {"adapter": "checkpoint-50", "assume_icarus": True}
    assert same(convert_adapter(folder, base.path, tmp_path / "c.gguf", **options), plain)  # type: ignore[arg-type]


def test_the_only_one_inside_is_taken(base: Base, tensors: Tensors, plain: Adapter, tmp_path: Path) -> None:
    write_folder(tmp_path / "outer" / "inner", tensors)
    assert same(convert_adapter(tmp_path / "outer", base.path, tmp_path / "out.gguf", assume_icarus=True), plain)


# -- MLX ---------------------------------------------------------------------------------------------------------------

MLX_CONFIG: dict[str, Any] = {
    "model": "mlx-community/tiny-4bit",
    "fine_tune_type": "lora",
    "num_layers": 2,
    "lora_parameters": {"rank": 4, "scale": 1.5, "dropout": 0.0, "keys": ["self_attn.q_proj"]},
}


def as_mlx(path: Path, tensors: Tensors, config: dict[str, Any] = MLX_CONFIG) -> Path:
    as_config(path, config)
    renamed = {}
    for name, values in tensors.items():
        module = name.removeprefix(PREFIX).removesuffix(".weight")
        renamed[module.replace("lora_A", "lora_a").replace("lora_B", "lora_b")] = np.ascontiguousarray(values.T)
    save_file(renamed, path / "adapters.safetensors")
    return path


def test_mlx(base: Base, tensors: Tensors, plain: Adapter, tmp_path: Path) -> None:
    # 1.5 is alpha / r of the plain folder.
    folder = as_mlx(tmp_path / "mlx", tensors)
    assert same(convert_adapter(folder, base.path, tmp_path / "out.gguf", assume_icarus=True), plain)
    assert "icarus_run.json" in refused(folder, base, tmp_path / "other.gguf", assume_icarus=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fine_tune_type": "dora"}, ["fine_tune_type", "dora"]),
        ({"fine_tune_type": "full"}, ["fine_tune_type", "full"]),
        ({"use_dora": True}, ["dora"]),
        ({"lora_parameters": None}, ["lora_parameters"]),
        ({"lora_parameters": {"rank": 4}}, ["scale", "None"]),
        ({"lora_parameters": {"rank": 4, "scale": 0}}, ["scale"]),
        ({"lora_parameters": {"rank": 4, "scale": float("nan")}}, ["scale", "nan"]),
        ({"lora_parameters": {"rank": 4, "scale": True}}, ["scale"]),
        ({"lora_parameters": {"rank": 4, "scale": 2.0, "alpha": 16}}, ["alpha"]),
        ({"lora_parameters": {"rank": 8, "scale": 2.0}}, ["rank 4", "8"]),
        ({"lora_parameters": {"rank": "4", "scale": 2.0}}, ["rank"]),
    ],
    ids=str,
)
def test_mlx_that_is_not_exact(
    base: Base, tensors: Tensors, tmp_path: Path, change: dict[str, Any], words: list[str]
) -> None:
    message = refused(as_mlx(tmp_path / "mlx", tensors, {**MLX_CONFIG, **change}), base, tmp_path / "out.gguf")
    for word in words:
        assert word in message


def test_mlx_with_keys_and_values(base: Base, tmp_path: Path) -> None:
    folder = as_mlx(tmp_path / "mlx", lora_tensors(base, (*MODULES, "attn_v")))
    assert "model.layers.0.self_attn.v_proj" in refused(folder, base, tmp_path / "out.gguf")
    (folder / "adapters.safetensors").unlink()
    assert "adapters.safetensors" in refused(folder, base, tmp_path / "out.gguf")
    save_file({"model.layers.0.self_attn.q_proj.m": np.ones(4, np.float32)}, folder / "adapters.safetensors")
    assert "DoRA" in refused(folder, base, tmp_path / "out.gguf")


# -- Unsloth -----------------------------------------------------------------------------------------------------------


def test_the_base_of_an_unsloth_adapter_is_asked_for_by_name(
    base: Base, tensors: Tensors, plain: Adapter, tmp_path: Path
) -> None:
    """PEFT's layout with the name of a 4-bit repack; nothing of it is fetched."""
    config = {
        "base_model_name_or_path": "unsloth/tiny-bnb-4bit",
        "auto_mapping": {"base_model_class": "LlamaForCausalLM", "unsloth_fixed": True},
        "loftq_config": {},
        "use_rslora": False,
    }
    folder = write_folder(tmp_path / "unsloth", tensors, config)
    without = CliRunner().invoke(main, ["adapter", str(folder), "-o", str(tmp_path / "out.gguf"), "--assume-icarus"])
    assert without.exit_code == 1
    assert "unsloth/tiny-bnb-4bit" in without.stderr
    assert "--base" in without.stderr
    assert same(convert_adapter(folder, base.path, tmp_path / "out.gguf", assume_icarus=True), plain)


# -- a llama.cpp LoRA --------------------------------------------------------------------------------------------------


def llama_cpp_lora(plain: Adapter, path: Path, alpha: float = 6.0, **changes: Any) -> Path:
    """As convert_lora_to_gguf.py writes it: alpha in a key, and nothing folded."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_string("general.name", "Somebody's LoRA")
    writer.add_float32("adapter.lora.alpha", alpha)
    writer.add_array("a.list.of.texts", ["one", "two", "ü"])
    tensors = {}
    for tensor, pair in plain.pairs.items():
        tensors[f"{tensor}.lora_a"] = pair.a.astype(np.float16)
        tensors[f"{tensor}.lora_b"] = (pair.b / 1.5).astype(np.float32)
    for name, values in {**tensors, **changes}.items():
        if values is not None:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_lora_is_marked_and_its_tensors_stay(base: Base, plain: Adapter, tmp_path: Path) -> None:
    path, out = llama_cpp_lora(plain, tmp_path / "lora.gguf"), tmp_path / "out.gguf"
    assert "--assume-icarus" in refused(path, base, out, assume_icarus=False)
    adapter = convert_adapter(path, base.path, out, assume_icarus=True)
    before, after = gguf.GGUFReader(path), gguf.GGUFReader(out)
    assert [(t.name, t.tensor_type, t.data.tobytes()) for t in before.tensors] == [
        (t.name, t.tensor_type, t.data.tobytes()) for t in after.tensors
    ]
    kept = {name: field.contents() for name, field in before.fields.items() if not name.startswith("GGUF.")}
    marked = {name: field.contents() for name, field in after.fields.items() if not name.startswith("GGUF.")}
    assert kept.items() <= marked.items() or all(marked[name] == value for name, value in kept.items())
    assert {name for name in marked if name not in kept} == {
        keys.KEY_VERSION,
        keys.KEY_FAMILY,
        keys.KEY_BASE_NAME,
        keys.KEY_TRAINED,
        keys.KEY_ASSUMED,
        keys.KEY_MODULES,
    }
    assert (adapter.name, adapter.trained, adapter.assumed) == ("Somebody's LoRA", "unknown", True)
    # alpha / r comes out as in the folder: 6 / 4.
    for tensor, pair in adapter.pairs.items():
        assert np.allclose(pair.b, plain.pairs[tensor].b, rtol=1e-6)
        assert np.array_equal(pair.a, plain.pairs[tensor].a.astype(np.float16).astype(np.float32))
    tokens = [5, 77, 130, 200, 261]
    assert np.array_equal(llama_cpp_logits(base.path, tokens, path), llama_cpp_logits(base.path, tokens, out))
    named = convert_adapter(path, base.path, tmp_path / "named.gguf", assume_icarus=True, name="coder")
    assert named.name == "coder"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"blk.0.attn_k.weight.lora_a": np.ones((4, 64), np.float32)}, ["attn_k", "K or V"]),
        ({"blk.0.attn_norm.weight": np.ones(64, np.float32)}, ["attn_norm", "norm"]),
        ({"output.weight.lora_a": np.ones((4, 64), np.float32)}, ["output.weight", "head"]),
        ({"blk.0.attn_q.weight.lora_a": np.ones((4, 96), np.float32)}, ["attn_q", "96"]),
        ({"blk.0.attn_q.weight.lora_a": np.ones((5, 64), np.float32)}, ["attn_q", "rank"]),
        ({"blk.0.attn_q.weight.lora_b": None}, ["attn_q", "no lora_b"]),
        ({"blk.0.attn_q.weight.lora_b": np.full((64, 4), np.nan, np.float32)}, ["attn_q", "finite"]),
        ({"blk.9.attn_q.weight.lora_a": np.ones((4, 64), np.float32)}, ["blk.9.attn_q"]),
    ],
    ids=str,
)
def test_a_gguf_lora_that_does_not_fit(
    base: Base, plain: Adapter, tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    path = llama_cpp_lora(plain, tmp_path / "lora.gguf", **changes)
    message = refused(path, base, tmp_path / "out.gguf")
    for word in (*words, "lora.gguf"):
        assert word in message
    assert ".part" not in message
    assert "marked" not in message
    arguments = ["adapter", str(path), "--base", str(base.path), "--assume-icarus", "--dry-run"]
    assert CliRunner().invoke(main, arguments).stderr.strip() == f"icarus-convert: {message}"


def test_the_plan_of_a_gguf_lora(base: Base, plain: Adapter, tmp_path: Path) -> None:
    path = llama_cpp_lora(plain, tmp_path / "lora.gguf")
    before = sorted(tmp_path.rglob("*"))
    arguments = ["adapter", str(path), "--base", str(base.path), "--assume-icarus", "--dry-run"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.stderr
    assert sum("stays as it is" in line for line in result.stdout.splitlines()) == len(plain.pairs)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_a_gguf_lora_cannot_be(base: Base, plain: Adapter, tmp_path: Path) -> None:
    path, out = llama_cpp_lora(plain, tmp_path / "lora.gguf"), tmp_path / "out.gguf"
    assert "converted already" in refused(plain.path, base, out)
    assert "qwen2" in refused(rewritten(path, tmp_path / "q.gguf", {"general.architecture": "qwen2"}), base, out)
    assert "--outtype" in refused(path, base, out, outtype="f16")
    assert "--drop-kv" in refused(path, base, out, drop_kv=True)
    assert "--adapter" in refused(path, base, out, adapter="coder")
    with pytest.raises(IcarusError, match="what is to be converted"):
        convert_adapter(path, base.path, path, assume_icarus=True, force=True)
    # The keys are those of what was in the file before.
    again = shutil.copy(path, tmp_path / "again.gguf")
    assert convert_adapter(Path(again), base.path, out, assume_icarus=True).family_id == base.family_id
