"""`icarus-convert verify` proves a right file and fails on a wrong one, by the proof that is for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner, Result

from icarus_convert import against_peft, probe
from icarus_convert import verify as verify_module
from icarus_convert.base import read_base
from icarus_convert.cli import main
from icarus_convert.verify import Proof, verify
from icarus_convert.write import convert_adapter
from icarus_local.engine.adapter_file import MODULES
from tests.agents import add_agents
from tests.convert.folders import lora_tensors, write_folder, write_run
from tests.gguf_files import quantised, rewritten
from tests.relatives import relative
from tests.tiny import Tiny


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Dequantised bases go where the test does."""
    monkeypatch.setenv("ICARUS_HOME", str(tmp_path / "home"))
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["verify", *map(str, arguments), "--threads", "1"])


def proofs(*arguments: Any, **options: Any) -> dict[str, Proof]:
    return {proof.name.strip(): proof for proof in verify(*arguments, n_threads=1, **options)}


def failed(found: dict[str, Proof]) -> set[str]:
    return {name for name, proof in found.items() if proof.failed}


def pair(tiny: Tiny, directory: Path, **options: Any) -> tuple[Path, Path]:
    """A PEFT folder, and what it was converted to."""
    folder = write_folder(directory / "peft", lora_tensors(read_base(tiny.path), MODULES), run={})
    return folder, convert_adapter(folder, tiny.path, directory / "a.gguf", **options).path


@pytest.mark.parametrize("outtype", ["f32", "f16"])
def test_a_right_file(tiny: Tiny, home: Path, outtype: str) -> None:
    folder, adapter = pair(tiny, home, outtype=outtype)
    tiny.model.save_pretrained(str(home / "hf"))
    for extra in ([], ["--hf-base", home / "hf"]):
        result = run(adapter, "--base", tiny.path, "--peft", folder, *extra)
        assert result.exit_code == 0, result.output
        for words in ("tensors landed", "20 of 20", "logits move", "cache unchanged", "not PEFT's ordinary forward"):
            assert words in result.stdout
        assert "FAILED" not in result.stdout


def test_other_architectures_and_quantised_bases(home: Path) -> None:
    for variant, kind in (("qwen2", "F32"), ("phi3", "F32"), ("qwen2", "Q8_0")):
        tiny = relative(variant, home)
        base = tiny.path if kind == "F32" else quantised(tiny.path, home / f"{kind}.gguf", kind)
        peft = add_agents(tiny.model, {"A": 0.3})
        directory = home / f"{variant}-{kind}"
        peft.save_pretrained(str(directory))
        write_run(directory / "A", {}) if (directory / "A").is_dir() else write_run(directory, {})
        adapter = convert_adapter(directory, base, home / f"{variant}-{kind}.gguf").path
        tiny.model.save_pretrained(str(home / variant))
        found = proofs(adapter, base, peft=directory, hf_base=home / variant)
        assert not failed(found), found
        assert "bound 0.001)" in found["two streams"].detail if kind == "F32" else "times that of the base"


def test_what_was_dropped_is_not_missed(tiny: Tiny, home: Path) -> None:
    tensors = lora_tensors(read_base(tiny.path), (*MODULES, "attn_k", "attn_v"))
    folder = write_folder(home / "peft", tensors)
    adapter = convert_adapter(folder, tiny.path, home / "a.gguf", drop_kv=True).path
    assert not failed(proofs(adapter, tiny.path, peft=folder))


def changed(adapter: Path, target: Path, tensor: str, factor: float) -> Path:
    values = {t.name: np.array(t.data) for t in gguf.GGUFReader(adapter).tensors}
    return rewritten(adapter, target, tensors={tensor: values[tensor] * np.float32(factor)})


def test_numbers_that_are_not_the_sources(tiny: Tiny, home: Path) -> None:
    folder, adapter = pair(tiny, home)
    wrong = changed(adapter, home / "wrong.gguf", "blk.1.ffn_up.weight.lora_b", 1.001)
    assert failed(proofs(wrong, tiny.path, peft=folder)) == {"numbers of the source"}
    result = run(wrong, "--base", tiny.path, "--peft", folder)
    assert result.exit_code == 1
    assert "blk.1.ffn_up.weight.lora_b" in result.stdout
    assert result.stderr.splitlines()[-1].startswith(f"icarus-convert: {wrong} is not proved: numbers of the source")


def test_another_scale_than_pefts(tiny: Tiny, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The converter itself wrong, in file and comparison alike: PyTorch tells."""
    monkeypatch.setattr("icarus_convert.lora_config.LoraConfig.scale", lambda *_: 1.0)
    folder, adapter = pair(tiny, home)
    assert failed(proofs(adapter, tiny.path, peft=folder)) == {"two streams"}


def test_rows_in_another_order(tiny: Tiny, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icarus_convert.mapping.permute_rows", lambda rows, _: rows)
    folder, adapter = pair(tiny, home)
    assert failed(proofs(adapter, tiny.path, peft=folder)) == {"two streams"}


def test_an_adapter_applied_the_ordinary_way(tiny: Tiny, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a runtime would show that let the adapter write the cache."""
    from icarus_convert.ordinary import ordinary_logits

    folder, adapter = pair(tiny, home)
    right = probe.walk

    def ordinary(engine: Any, tokens: list[int], agent: int | None) -> probe.Walk:
        seen = right(engine, tokens, agent)
        if agent is None:
            return seen
        return probe.Walk(ordinary_logits(tiny.path, adapter, tokens, 1), b"other" + seen.kv[5:])

    monkeypatch.setattr(verify_module, "walk", ordinary)
    assert failed(proofs(adapter, tiny.path, peft=folder)) == {"cache unchanged", "two streams"}


def test_an_adapter_that_does_nothing(tiny: Tiny, home: Path) -> None:
    tensors = lora_tensors(read_base(tiny.path), MODULES)
    zeros = {name: v * 0 if "lora_B" in name else v for name, v in tensors.items()}
    folder = write_folder(home / "peft", zeros)
    adapter = convert_adapter(folder, tiny.path, home / "a.gguf", assume_icarus=True).path
    found = proofs(adapter, tiny.path)
    assert failed(found) == {"logits move"}
    assert "only zeros" in found["attn_q"].detail


def test_modules_that_the_engine_would_leave_out(tiny: Tiny, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that drops the MLP's pairs as it takes an adapter."""
    from dataclasses import replace

    from icarus_local.engine.engine import Engine

    _, adapter = pair(tiny, home)
    add = Engine.add_adapter

    def careless(self: Engine, adapter: Any) -> int:
        pairs = {name: p for name, p in adapter.pairs.items() if "ffn_up" not in name}
        some = pairs or {name: replace(p, b=p.b * 0) for name, p in adapter.pairs.items()}
        return add(self, replace(adapter, pairs=some))

    monkeypatch.setattr(Engine, "add_adapter", careless)
    assert failed(proofs(adapter, tiny.path)) == {"ffn_up"}


def test_a_base_that_rounds_too_much_says_so(tiny: Tiny, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against_peft, "BOUND", 1e6)
    folder, adapter = pair(tiny, home)
    found = proofs(adapter, tiny.path, peft=folder)
    assert failed(found) == {"not PEFT's ordinary forward"}
    assert "F32" in found["not PEFT's ordinary forward"].detail


def test_refusals(tiny: Tiny, home: Path) -> None:
    folder, adapter = pair(tiny, home)
    other = relative("qwen2", home).path
    for arguments, word in (
        ([adapter, "--base", other], "another base"),
        ([tiny.path, "--base", tiny.path], "base model"),
        ([adapter, "--base", home / "missing.gguf"], "not a file"),
        ([adapter, "--base", tiny.path, "--peft", home / "home"], "folder"),
        ([adapter, "--base", tiny.path, "--peft", folder, "--hf-base", folder], "config.json"),
    ):
        result = run(*arguments)
        assert result.exit_code == 1, result.output
        assert word in result.stderr.splitlines()[-1]
        assert "Traceback" not in result.stderr
