"""Every architecture against every kind of adapter: the two-stream reference's logits, or a refusal without a file.

The reference is PyTorch's on the PEFT model itself, so whatever PEFT does with rsLoRA and patterns is what counts.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from click.testing import CliRunner, Result
from peft import LoraConfig, PeftModel, get_peft_model

from icarus_convert.cli import main
from icarus_convert.probe import probe_engine, walk
from icarus_local.engine.adapter_file import read_adapter
from icarus_models.reference import ordinary_logits, two_stream_logits
from tests.convert.folders import write_run
from tests.relatives import VARIANTS, relative_model, write_gguf
from tests.tiny import Tiny, n_vocab

ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3", "phi3"]
TIED = ("qwen2", "qwen3", "gemma3")
BOUND = 1e-3
FAR = 0.1  # what an ordinary LoRA, or a scale forgotten, differs by at least
# ggml's CPU takes GELU from a table of F16, which moves logits by 0.003. Where gates are large, and the LoRA on them as
# well, GELU is 0 or the identity, and there is no table.
LARGE = 1e5
TOKENS = np.random.default_rng(4).integers(3, n_vocab(), 72).tolist()  # over two of Gemma's windows

SEPARATE = ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FUSED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
ACCEPTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "patterns": {
        "rank_pattern": {"o_proj": 7, r".*\.1\.mlp\.down_proj": 3},
        "alpha_pattern": {"down_proj": 11, "layers.0.self_attn.o_proj": 1},
    },
    "rslora and patterns": {"use_rslora": True, "rank_pattern": {"o_proj": 7}, "alpha_pattern": {"down_proj": 11}},
    "some layers": {"layers_to_transform": [1]},
}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tiny]:
    @cache
    def made(variant: str) -> Tiny:
        model, path = relative_model(variant), tmp_path_factory.mktemp(variant) / f"{variant}.gguf"
        for name, parameter in model.named_parameters():
            if variant == "gemma3" and ".gate_proj." in name:
                parameter.data *= LARGE
        write_gguf(path, VARIANTS[variant].architecture, model)
        return Tiny(model, path)

    return made


def adapted(model: Any, targets: Any, zero_kv: bool = True, **settings: Any) -> PeftModel:
    """A copy of `model` with a random LoRA; rows of K and V in a fused projection are zero."""
    config = LoraConfig(r=4, lora_alpha=6, target_modules=targets, task_type="CAUSAL_LM", **settings)
    peft = get_peft_model(copy.deepcopy(model), config)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in peft.named_parameters():
        if ".lora_A." in name or ".lora_B." in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.15
            if model.config.model_type == "gemma3_text" and ".gate_proj.lora_B" in name:
                parameter.data *= LARGE
            if zero_kv and ".qkv_proj.lora_B" in name:
                parameter.data[model.config.hidden_size :] = 0
    return peft.eval()


def convert(peft: PeftModel, tiny: Tiny, directory: Path, *options: str) -> tuple[Path, Result]:
    peft.save_pretrained(str(directory / "peft"), save_embedding_layers=False)
    write_run(directory / "peft", {})
    (directory / "out").mkdir()
    out = directory / "out" / "adapter.gguf"
    arguments = ["adapter", str(directory / "peft"), "--base", str(tiny.path), "-o", str(out), *options]
    return out, CliRunner().invoke(main, arguments)


def logits_of(tiny: Tiny, adapter: Path) -> npt.NDArray[np.float32]:
    with probe_engine(tiny.path, 1, len(TOKENS)) as engine:
        return walk(engine, TOKENS, engine.add_adapter(read_adapter(adapter))).logits


def references(peft: PeftModel) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    ids = torch.tensor([TOKENS])
    with torch.no_grad():
        two, ordinary = (
            how(peft, ids, torch.ones_like(ids))[0].numpy() for how in (two_stream_logits, ordinary_logits)
        )
    return two, ordinary


@pytest.mark.parametrize("case", ACCEPTED)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_is_accepted_is_the_two_stream_reference(
    architecture: str, case: str, make: Callable[[str], Tiny], tmp_path: Path
) -> None:
    tiny = make(architecture)
    peft = adapted(tiny.model, FUSED if architecture == "phi3" else SEPARATE, **ACCEPTED[case])
    out, result = convert(peft, tiny, tmp_path)
    assert result.exit_code == 0, result.stderr
    ours, (theirs, ordinary) = logits_of(tiny, out), references(peft)
    difference = float(np.abs(ours - theirs).max())
    print(f"{architecture}, {case}: {difference:.1e}, logits' deviation {theirs.std():.2f}")
    assert difference <= BOUND
    assert float(np.abs(ours - ordinary).max()) > FAR


@pytest.mark.parametrize("case", ["rslora", "patterns"])
def test_the_bound_would_see_a_scale_that_was_forgotten(case: str, make: Callable[[str], Tiny], tmp_path: Path) -> None:
    tiny = make("qwen2")
    peft = adapted(tiny.model, SEPARATE, **ACCEPTED[case])
    peft.save_pretrained(str(tmp_path / "peft"), save_embedding_layers=False)
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    config |= {"use_rslora": False, "alpha_pattern": {}}
    (tmp_path / "peft" / "adapter_config.json").write_text(json.dumps(config))
    out = tmp_path / "out.gguf"
    arguments = ["adapter", str(tmp_path / "peft"), "--base", str(tiny.path), "-o", str(out), "--assume-icarus"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert float(np.abs(logits_of(tiny, out) - references(peft)[0]).max()) > FAR


def refused(result: Result, out: Path, *words: str) -> None:
    assert result.exit_code == 1, result.output
    assert not list(out.parent.iterdir()), "something was left"
    assert not result.stdout
    assert result.stderr.startswith("icarus-convert: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr, result.stderr


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_linear_is_refused(architecture: str, make: Callable[[str], Tiny], tmp_path: Path) -> None:
    tiny = make(architecture)
    out, result = convert(adapted(tiny.model, "all-linear", zero_kv=False), tiny, tmp_path)
    refused(result, out, "qkv_proj" if architecture == "phi3" else "k_proj", "--drop-kv", "icarus-train")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_keys_and_values_are_refused(architecture: str, make: Callable[[str], Tiny], tmp_path: Path) -> None:
    tiny = make(architecture)
    targets = ["qkv_proj"] if architecture == "phi3" else ["q_proj", "v_proj"]
    out, result = convert(adapted(tiny.model, targets, zero_kv=False), tiny, tmp_path)
    refused(result, out, targets[-1], "icarus-train")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dora_is_refused(architecture: str, make: Callable[[str], Tiny], tmp_path: Path) -> None:
    tiny = make(architecture)
    out, result = convert(adapted(tiny.model, ["o_proj", "down_proj"], use_dora=True), tiny, tmp_path)
    refused(result, out, "use_dora", "magnitude")


@pytest.mark.parametrize("saved", ["lm_head", "embed_tokens", "norm"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_modules_to_save_are_refused(
    architecture: str, saved: str, make: Callable[[str], Tiny], tmp_path: Path
) -> None:
    tiny = make(architecture)
    out, result = convert(adapted(tiny.model, ["o_proj", "down_proj"], modules_to_save=[saved]), tiny, tmp_path)
    refused(result, out, "modules_to_save")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fused_projections(architecture: str, make: Callable[[str], Tiny], tmp_path: Path) -> None:
    """Split where the architecture fuses them, refused by name where it does not."""
    tiny, fused = make(architecture), make("phi3")
    peft = adapted(fused.model, ["qkv_proj", "gate_up_proj"])
    if architecture == "phi3":
        out, result = convert(peft, tiny, tmp_path)
        assert result.exit_code == 0, result.stderr
        assert set(read_adapter(out).pairs) == {f"blk.{i}.{m}.weight" for i in range(3) for m in ("attn_qkv", "ffn_up")}
        assert float(np.abs(logits_of(tiny, out) - references(peft)[0]).max()) <= BOUND
    else:
        out, result = convert(peft, tiny, tmp_path)
        refused(result, out, "_proj", f"architecture {architecture}")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_lora_on_the_head_is_refused(architecture: str, make: Callable[[str], Tiny], tmp_path: Path) -> None:
    """A tied one above all: it is the embeddings, which K and V are computed from."""
    tiny = make(architecture)
    assert tiny.model.config.tie_word_embeddings == (architecture in TIED)
    out, result = convert(adapted(tiny.model, ["o_proj", "lm_head"]), tiny, tmp_path)
    refused(result, out, "lm_head")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dropping_keys_and_values_is_what_two_streams_read(
    architecture: str, make: Callable[[str], Tiny], tmp_path: Path
) -> None:
    """The decoder's own K and V go nowhere, so the reference of the whole adapter is that of what is left of it."""
    tiny = make(architecture)
    targets = FUSED if architecture == "phi3" else [*SEPARATE, "k_proj", "v_proj"]
    peft = adapted(tiny.model, targets, zero_kv=False)
    out, result = convert(peft, tiny, tmp_path, "--drop-kv", "--threads", "1")
    assert result.exit_code == 0, result.stderr
    assert "KL" in result.stdout
    assert float(np.abs(logits_of(tiny, out) - references(peft)[0]).max()) <= BOUND
    assert read_adapter(out).dropped_kv == (("attn_qkv[k,v]",) if architecture == "phi3" else ("attn_k", "attn_v"))
