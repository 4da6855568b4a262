"""`icarus-convert inspect`: what it says of each kind of file is what is in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

from icarus_convert.base import read_base
from icarus_convert.cli import main
from icarus_convert.write import convert_adapter
from icarus_local.engine.adapter_file import MODULES
from tests.convert.folders import lora_tensors, write_folder
from tests.gguf_files import quantised, rewritten
from tests.relatives import relative
from tests.tiny import Tiny


def inspected(path: Path) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["inspect", str(path), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def shown(path: Path) -> list[str]:
    result = CliRunner().invoke(main, ["inspect", str(path)])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def adapter_of(tiny: Tiny, directory: Path, modules: tuple[str, ...] = MODULES, **options: Any) -> Path:
    folder = write_folder(directory / "peft", lora_tensors(read_base(tiny.path), modules), options.pop("config", None))
    out = directory / "adapter.gguf"
    return convert_adapter(folder, tiny.path, out, assume_icarus=True, **options).path


def test_a_base(tiny: Tiny, tmp_path: Path) -> None:
    facts = inspected(tiny.path)
    assert (facts["kind"], facts["architecture"], facts["name"]) == ("base", "llama", "tiny")
    assert facts["types"] == {"f32": {"tensors": 21, "bytes": sum(p.numel() * 4 for p in tiny.model.parameters())}}
    assert facts["sizes"]["layers"] == 2
    assert facts["sizes"]["kv_heads"] == 2
    assert facts["sizes"]["context"] == 1024
    assert facts["template"]
    assert facts["runs"]
    assert facts["family_id"] == read_base(tiny.path).family_id
    other = inspected(quantised(tiny.path, tmp_path / "q8.gguf", "Q8_0"))
    assert other["family_id"] == facts["family_id"]
    assert other["content_id"] != facts["content_id"]
    assert set(other["types"]) == {"f32", "q8_0"}
    lines = shown(tmp_path / "q8.gguf")
    assert any(line.split()[:1] == ["q8_0"] for line in lines)
    assert not inspected(rewritten(tiny.path, tmp_path / "n.gguf", {"tokenizer.chat_template": None}))["template"]


def test_a_base_that_does_not_run_here_is_shown(tiny: Tiny, tmp_path: Path) -> None:
    facts = inspected(rewritten(tiny.path, tmp_path / "odd.gguf", {"general.architecture": "mamba"}))
    assert facts["architecture"] == "mamba"
    assert not facts["runs"]
    assert "mamba" in facts["why_not"]


def test_an_adapter(tiny: Tiny, tmp_path: Path) -> None:
    path = adapter_of(tiny, tmp_path, config={"use_rslora": True})
    facts = inspected(path)
    assert (facts["kind"], facts["base"]["name"], facts["runs"]) == ("adapter", "tiny", True)
    assert facts["base"]["family_id"] == read_base(tiny.path).family_id
    assert facts["modules"] == {module: {"weights": 2, "ranks": {"4": 2}} for module in sorted(MODULES)}
    assert facts["training"] == {"trained": "unknown", "assumed": True, "dropped_kv": []}
    assert (facts["kv_safe"], facts["kv_reasons"], facts["scale"]) == (True, [], "in lora_b")
    values = lora_tensors(read_base(tiny.path), MODULES)
    largest = max(np.abs(v).max() for name, v in values.items() if "lora_B" in name) * 6 / 2
    assert facts["largest"]["lora_b"]["value"] == pytest.approx(largest, rel=1e-6)
    assert any("adapter" in line for line in shown(path))


def test_what_was_dropped_is_shown(tiny: Tiny, tmp_path: Path) -> None:
    path = adapter_of(tiny, tmp_path, (*MODULES, "attn_k", "attn_v"), drop_kv=True)
    assert inspected(path)["training"]["dropped_kv"] == ["attn_k", "attn_v"]
    assert any("attn_k, attn_v" in line for line in shown(path))


def plain_lora(path: Path, tensors: dict[str, Any]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 16.0)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("tensor", "word"),
    [
        ("blk.0.attn_k.weight.lora_a", "K or V"),
        ("blk.0.attn_v.weight.lora_b", "K or V"),
        ("blk.0.attn_norm.weight", "norm"),
        ("output_norm.weight", "norm"),
        ("token_embd.weight.lora_a", "embeddings"),
        ("output.weight.lora_a", "head"),
        ("blk.0.attn_q.weight", "neither"),
    ],
)
def test_a_plain_lora_is_not_safe_and_why(tmp_path: Path, tensor: str, word: str) -> None:
    facts = inspected(plain_lora(tmp_path / "lora.gguf", {tensor: np.ones((4, 64), np.float32)}))
    assert facts["kv_safe"] is False
    assert tensor.removesuffix(".lora_a").removesuffix(".lora_b") in facts["kv_reasons"][0]
    assert word in facts["kv_reasons"][0]
    assert facts["scale"] == "alpha 16, divided by each rank"
    assert not facts["runs"]
    assert "plain LoRA" in facts["why_not"]


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    values = {"blk.0.attn_q.weight.lora_a": np.full((4, 64), np.nan, np.float32)}
    path = plain_lora(tmp_path / "lora.gguf", values)
    assert inspected(path)["largest"]["lora_a"]["value"] is None
    assert shown(path)


def test_fused_tensors_are_said_to_need_their_base(tmp_path: Path) -> None:
    tiny = relative("phi3", tmp_path)
    values = {"blk.0.attn_qkv.weight.lora_a": np.ones((4, 64), np.float32)}
    assert "fused" in inspected(plain_lora(tmp_path / "lora.gguf", values))["kv_reasons"][0]
    assert inspected(tiny.path)["runs"]


def test_folders(tiny: Tiny, tmp_path: Path) -> None:
    base = read_base(tiny.path)
    write_folder(tmp_path / "kv", lora_tensors(base, (*MODULES, "attn_k")), run={"method": "lora"})
    facts = inspected(tmp_path / "kv")
    assert facts["kv_safe"] is False
    assert facts["kv_reasons"][0].startswith("model.layers.0.self_attn.k_proj")
    assert facts["training"]["trained"] == "ordinary"
    assert facts["modules"]["k_proj"] == {"weights": 2, "ranks": {"4": 2}}
    for name in "ab":
        write_folder(tmp_path / "several" / name, lora_tensors(base, MODULES))
    (tmp_path / "several" / "b" / "adapter_model.safetensors").write_bytes(b"nothing")
    adapters = inspected(tmp_path / "several")["adapters"]
    assert set(adapters) == {"a", "b"}
    assert adapters["a"]["kv_safe"]
    assert "safetensors" in adapters["b"]["why_not"]
    assert shown(tmp_path / "several")


def test_a_name_is_one_line_on_a_terminal(tiny: Tiny, tmp_path: Path) -> None:
    path = rewritten(tiny.path, tmp_path / "n.gguf", {"general.name": "a\x1b[2J\nb\u202e"})
    text = "\n".join(shown(path))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "a\\x1b[2J\\x0ab" in text


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + b"\xff" * 40, b"hello", b"\x80\x02}q\x00."])
def test_what_is_nothing_gets_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    for path in (tmp_path / "x.gguf", tmp_path / "missing.gguf", tmp_path):
        result = CliRunner().invoke(main, ["inspect", str(path)])
        assert result.exit_code == 1
        assert result.stderr.startswith("icarus-convert: ")
        assert result.stderr.count("\n") == 1
        assert not result.stdout
