"""Output types and their cost, K and V dropped and what that costs, and the plan that writes nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner, Result

from icarus_convert.base import read_base
from icarus_convert.cli import main
from icarus_convert.probe import distance
from icarus_convert.write import convert_adapter
from icarus_local.engine.adapter_file import MODULES, Adapter, read_adapter
from icarus_local.errors import IcarusError
from tests.convert.folders import lora_tensors, write_folder
from tests.gguf_files import rewritten
from tests.relatives import relative
from tests.tiny import Tiny, llama_cpp_logits

TOKENS = [5, 77, 130, 200, 261, 12, 40]


def run(folder: Path, tiny: Tiny, *options: str) -> Result:
    return CliRunner().invoke(main, ["adapter", str(folder), "--base", str(tiny.path), "--threads", "1", *options])


def folder_of(tiny: Tiny, directory: Path, rank: int = 4, modules: tuple[str, ...] = MODULES, **config: Any) -> Path:
    return write_folder(directory / "peft", lora_tensors(read_base(tiny.path), modules, rank), {"r": rank, **config})


def types(path: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {"lora_a": set(), "lora_b": set()}
    for tensor in gguf.GGUFReader(path).tensors:
        found[tensor.name.rpartition(".")[2]].add(tensor.tensor_type.name)
    return found


def error(ours: Adapter, exact: Adapter) -> float:
    return max(
        float(np.abs(getattr(pair, part) - getattr(exact.pairs[tensor], part)).max())
        for tensor, pair in ours.pairs.items()
        for part in "ab"
    )


@pytest.mark.parametrize("rank", [32, 4])
def test_q8_0_where_rows_fill_its_blocks(tiny: Tiny, tmp_path: Path, rank: int) -> None:
    folder = folder_of(tiny, tmp_path, rank)
    exact, ours = (
        convert_adapter(folder, tiny.path, tmp_path / f"{kind}.gguf", outtype=kind, assume_icarus=True)
        for kind in ("f32", "q8_0")
    )
    assert types(ours.path) == {"lora_a": {"Q8_0"}, "lora_b": {"Q8_0" if rank == 32 else "F16"}}
    largest = max(float(np.abs(pair.a).max()) for pair in exact.pairs.values())
    largest = max(largest, *(float(np.abs(pair.b).max()) for pair in exact.pairs.values()))
    assert 0 < error(ours, exact) <= largest / 254 + largest * 2.0**-11
    # llama.cpp reads the type as the engine does.
    a, b = (llama_cpp_logits(tiny.path, TOKENS, adapter.path) for adapter in (exact, ours))
    assert np.abs(a - b).max() < 0.2 < np.abs(a - llama_cpp_logits(tiny.path, TOKENS)).max()


def test_the_cost_of_a_type_is_printed(tiny: Tiny, tmp_path: Path) -> None:
    folder = folder_of(tiny, tmp_path, 32)
    found = {}
    for kind in ("f32", "f16", "q8_0"):
        result = run(folder, tiny, "-o", str(tmp_path / f"{kind}.gguf"), "--outtype", kind, "--assume-icarus")
        assert result.exit_code == 0, result.stderr
        match = re.search(rf"{kind} against f32: largest difference (\S+),", result.stdout)
        assert (match is None) == (kind == "f32")
        found[kind] = float(match[1]) if match else 0.0
    assert 0 < found["f16"] < 0.1 * found["q8_0"] < 0.1


def test_values_too_large_for_a_type(tiny: Tiny, tmp_path: Path) -> None:
    tensors = lora_tensors(read_base(tiny.path), MODULES, 32)
    tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"][0, 0] = 1e7
    folder = write_folder(tmp_path / "peft", tensors, {"r": 32})
    for kind in ("f16", "q8_0"):
        with pytest.raises(IcarusError, match=rf"blk\.0\.attn_q.*{kind}.*--outtype f32"):
            convert_adapter(folder, tiny.path, tmp_path / "out.gguf", outtype=kind, assume_icarus=True)
    assert [path.name for path in tmp_path.iterdir()] == ["peft"]


def test_dropped_keys_and_values(tiny: Tiny, tmp_path: Path) -> None:
    folder = folder_of(tiny, tmp_path, modules=(*MODULES, "attn_k", "attn_v"))
    out = tmp_path / "out.gguf"
    result = run(folder, tiny, "-o", str(out), "--drop-kv")
    assert result.exit_code == 0, result.stderr
    assert "attn_k, attn_v were left out" in result.stderr
    assert re.search(r"against the whole adapter.*KL \S+ nats, same first choice \d+%", result.stdout)
    written = convert_adapter(folder, tiny.path, out, drop_kv=True, force=True)
    assert written.dropped_kv == ("attn_k", "attn_v")
    assert written.assumed
    assert written.trained == "unknown"
    plain = write_folder(tmp_path / "plain", lora_tensors(read_base(tiny.path), MODULES))
    assert (
        convert_adapter(plain, tiny.path, tmp_path / "p.gguf", assume_icarus=True).pairs.keys() == written.pairs.keys()
    )
    refusal = run(plain, tiny, "-o", str(tmp_path / "q.gguf"), "--drop-kv")
    assert refusal.exit_code == 1
    assert "Leave --drop-kv out" in refusal.stderr


@pytest.mark.parametrize("value", [["attn_q"], ["attn_k", "\x1b[2J"], "attn_k", 3, [1, 2]], ids=repr)
def test_a_file_that_names_others_as_dropped(tiny: Tiny, tmp_path: Path, value: Any) -> None:
    out = convert_adapter(folder_of(tiny, tmp_path), tiny.path, tmp_path / "a.gguf", assume_icarus=True).path
    wrong = rewritten(out, tmp_path / "wrong.gguf", {"icarus.dropped_kv": value})
    with pytest.raises(IcarusError, match=r"icarus\.dropped_kv"):
        read_adapter(wrong)


def test_the_whole_adapter_is_measured_as_peft_applies_it(tiny: Tiny, tmp_path: Path) -> None:
    """Against which `--drop-kv` measures: every row of K and V where PEFT has it, in fused projections too."""
    import copy

    import torch
    from peft import PeftModel

    from icarus_convert import measure
    from icarus_convert.prepare import prepare

    original = measure.ordinary_logits
    for model in (tiny, relative("phi3", tmp_path), relative("qwen2", tmp_path)):
        directory = tmp_path / f"{model.path.stem}-kv"
        base = read_base(model.path)
        if base.hp.arch.fused:
            random, config = np.random.default_rng(0), model.model.config
            prefix = "base_model.model.model.layers.1.self_attn.qkv_proj.lora_"
            n_out = config.hidden_size * 2
            tensors = {
                f"{prefix}A.weight": random.normal(0, 0.2, (4, 64)).astype(np.float32),
                f"{prefix}B.weight": random.normal(0, 0.2, (n_out, 4)).astype(np.float32),
            }
        else:
            tensors = lora_tensors(base, (*MODULES, "attn_k", "attn_v"))
        folder = write_folder(
            directory,
            tensors,
            {
                "target_modules": [
                    "q_proj",
                    "k_proj",
                    "v_proj",
                    "o_proj",
                    "gate_proj",
                    "up_proj",
                    "down_proj",
                    "qkv_proj",
                ]
            },
        )
        prepared = prepare(folder, model.path, drop_kv=True)
        seen = {}

        def remember(*arguments: Any, seen: dict[str, Any] = seen) -> Any:
            seen["logits"] = original(*arguments)
            seen["tokens"] = arguments[2]
            return seen["logits"]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(measure, "ordinary_logits", remember)
            written = convert_adapter(folder, model.path, directory / "out.gguf", drop_kv=True)
            ours, alone = measure.cost_of_dropping(prepared, written, 1)
        peft = PeftModel.from_pretrained(copy.deepcopy(model.model), str(folder)).eval()
        with torch.no_grad():
            theirs = peft(torch.tensor([seen["tokens"]])).logits[0].numpy()
        # Flash attention casts F32 K and V to F16.
        assert distance(theirs, seen["logits"]).largest < 0.03
        assert ours.largest > 0.1
        assert alone.largest > 0.1


def test_the_plan_writes_nothing(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tiny, tmp_path, modules=(*MODULES, "attn_v"), alpha_pattern={"down_proj": 20})
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    result = run(folder, tiny, "--dry-run", "--drop-kv")
    assert result.exit_code == 0, result.stderr
    assert sorted(tmp_path.rglob("*")) == before
    lines = result.stdout.splitlines()
    for tensor in lora_tensors(read_base(tiny.path), (*MODULES, "attn_v")):
        assert sum(line.strip().startswith(tensor) for line in lines) == 1
    down = next(line for line in lines if "layers.1.mlp.down_proj.lora_B" in line)
    assert "[64, 4] -> blk.1.ffn_down.weight.lora_b, rank 4, times 5" in down
    assert "rope" in next(line for line in lines if "layers.0.self_attn.q_proj.lora_B" in line)
    assert "nowhere" in next(line for line in lines if "layers.0.self_attn.v_proj.lora_A" in line)
    refusal = run(folder, tiny, "--dry-run")
    assert refusal.exit_code == 1
    assert "v_proj" in refusal.stderr


def test_the_file_is_named_after_its_source(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tiny, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run(folder, tiny, "--assume-icarus").exit_code == 0
    assert (tmp_path / "peft.gguf").is_file()
    assert run(folder, tiny, "--assume-icarus", "--name", "coder").exit_code == 0
    assert (tmp_path / "coder.gguf").is_file()
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(main, ["adapter", ".", "--base", str(tiny.path), "--assume-icarus"])
    assert result.exit_code == 0, result.stderr
    assert (folder / "peft.gguf").is_file()


@pytest.mark.parametrize(
    "name", ["with space.gguf", "ümläut–日本.gguf", "'quote\".gguf", "-dash.gguf", "new\nline.gguf"]
)
def test_paths_of_any_characters(tiny: Tiny, tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / f"peft {name}", lora_tensors(read_base(tiny.path), MODULES))
    result = run(folder, tiny, "-o", str(tmp_path / name), "--assume-icarus")
    assert result.exit_code == 0, result.stderr
    assert CliRunner().invoke(main, ["inspect", str(tmp_path / name)]).exit_code == 0


def test_an_interrupt_leaves_nothing(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, work = folder_of(tiny, tmp_path), tmp_path / "work"
    work.mkdir()

    def interrupted(*_arguments: Any) -> None:
        assert list(work.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr("icarus_convert.write.read_adapter", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert_adapter(folder, tiny.path, work / "out.gguf", assume_icarus=True)
    assert not list(work.iterdir())
