"""`icarus-convert base`: every architecture computes what transformers computes, bit for bit as llama.cpp does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from icarus_local.engine.base import BaseFile
from icarus_local.engine.engine import Engine
from icarus_local.engine.oracle import Oracle
from icarus_local.text.tokenizer import Tokenizer
from tests.convert.hf_models import converted, save, tiny_tokenizer
from tests.engine.side_by_side import assert_llama_decodes_bits
from tests.relatives import VARIANTS, relative_model, write_gguf
from tests.test_relatives import EXACT, GELU_TABLE, TOKENS, transformers_logits

N_CTX = {"phi3-longrope-short": 512}
# Two copies of one rule rounded in float32 and in float64 are two models to a hash.
OTHER_ROUNDING = {"llama3"}

Make = Callable[[str], tuple[Any, Path, Path]]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A variant's model, folder and GGUF; in shards, so that no tensor's place can be taken for granted."""

    @cache
    def made(variant: str) -> tuple[Any, Path, Path]:
        directory, model = tmp_path_factory.mktemp(variant), relative_model(variant)
        folder = save(directory / "model", model=model, max_shard_size="150KB")
        assert len(list(folder.glob("*.safetensors"))) > 1
        return model, folder, converted(folder, directory / "out.gguf")

    return made


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_torchs_and_llama_decodes(make: Make, variant: str) -> None:
    model, _, path = make(variant)
    n_ctx = N_CTX.get(variant, 768)
    expected = transformers_logits(model)
    with Engine(path, n_ctx=n_ctx, kv_type="f32", n_threads=1) as engine:
        ours = engine.forward(encode=[(engine.cells.create(), TOKENS)], encoder_logits=True).encoder
    difference = float(np.abs(ours - expected).max())
    print(f"{variant}: {difference:.1e}, logits' deviation {expected.std():.2f}")
    assert difference <= (GELU_TABLE if variant.startswith("gemma") else EXACT)
    with Engine(path, n_ctx=n_ctx, repack=False, n_threads=1) as engine, Oracle(path, n_ctx, 1) as oracle:
        assert_llama_decodes_bits(engine, oracle, TOKENS, n_prompt=76, n_single=12, n_dual=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_the_family_of_other_converters(make: Make, variant: str, tmp_path: Path) -> None:
    model, _, path = make(variant)
    other = tmp_path / "other.gguf"
    write_gguf(other, VARIANTS[variant].architecture, model)
    ours, theirs = BaseFile(path), BaseFile(other)
    assert (ours.family_id == theirs.family_id) == (variant not in OTHER_ROUNDING)
    ours.close()
    theirs.close()


def test_llama_3s_factors_are_those_of_float32(make: Make) -> None:
    # llama.cpp's converter computes them with torch, whose float32 is the reference here.
    import torch

    model, _, path = make("llama3")
    rope = model.config.rope_parameters
    frequencies = 1.0 / (rope["rope_theta"] ** (torch.arange(0, 16, 2, dtype=torch.float32) / 16))
    low, high, factor, old = 1.0, 4.0, rope["factor"], rope["original_max_position_embeddings"]
    expected = []
    for frequency in frequencies:
        length = 2 * torch.pi / frequency
        smooth = (old / length - low) / (high - low)
        between = 1 / ((1 - smooth) / factor + smooth)
        expected.append(1.0 if length < old / high else factor if length > old / low else float(between))
    found = next(t for t in gguf.GGUFReader(path).tensors if t.name == "rope_freqs.weight")
    assert np.array_equal(found.data, np.array(expected, np.float32))


def test_ids_and_template_are_transformers(make: Make) -> None:
    _, _, path = make("llama")
    reference, tokenizer = tiny_tokenizer(), Tokenizer(path)
    for text in ("hello world, the 123 lights\n\n  x", "Ünïcödé 你好 😀", "<|im_start|>"):
        assert reference.decode(tokenizer.encode(text)) == text
    for text in ("hello world, the 123 lights\n\n  x", "Ünïcödé 你好 😀"):
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False)
    assert tokenizer.template_source == reference.chat_template
    assert tokenizer.token_text(tokenizer.eos) == reference.eos_token
    assert not tokenizer.adds_bos
    assert tokenizer.is_end_of_generation(2)
    tokenizer.close()


def values(path: Path) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


def kinds(path: Path) -> dict[str, str]:
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}


def test_types(tmp_path: Path) -> None:
    import torch

    model = relative_model("qwen3moe").to(torch.bfloat16)
    folder = save(tmp_path / "model", model=model)
    auto = converted(folder, tmp_path / "auto.gguf")
    found = kinds(auto)
    assert found["blk.0.attn_q.weight"] == found["blk.2.ffn_down_exps.weight"] == found["output.weight"] == "BF16"
    assert {kind for name, kind in found.items() if "norm" in name or "ffn_gate_inp" in name} == {"F32"}
    wide = values(converted(folder, tmp_path / "f32.gguf", "--outtype", "f32"))
    for name, bits in values(auto).items():
        mine = bits.view(np.uint16).astype(np.uint32) << 16 if found[name] == "BF16" else bits.view(np.uint32)
        assert np.array_equal(mine.reshape(-1), wide[name].view(np.uint32).reshape(-1)), name
    again = save(tmp_path / "again", model=model.float())
    back = converted(again, tmp_path / "bf16.gguf", "--outtype", "bf16")
    assert all(np.array_equal(bits, values(auto)[name]) for name, bits in values(back).items())
    half = values(converted(folder, tmp_path / "f16.gguf", "--outtype", "f16"))
    exact = relative_model("llama")
    rounded = values(converted(save(tmp_path / "exact", model=exact), tmp_path / "r.gguf", "--outtype", "bf16"))
    theirs = exact.model.layers[1].mlp.up_proj.weight.to(torch.bfloat16).view(torch.int16).numpy()
    assert np.array_equal(rounded["blk.1.ffn_up.weight"].view(np.int16), theirs)
    assert half["blk.1.attn_k.weight"].dtype == np.float16
    assert np.array_equal(half["blk.1.attn_k.weight"], wide["blk.1.attn_k.weight"].astype(np.float16))


def test_experts_that_lie_stacked_are_the_same(make: Make, tmp_path: Path) -> None:
    import shutil

    from safetensors.numpy import save_file

    model, folder, path = make("qwen3moe")
    stacked = tmp_path / "stacked"
    stacked.mkdir()
    for file in folder.glob("*.json"):
        if "index" not in file.name:
            shutil.copy(file, stacked)
    save_file({key: value.numpy() for key, value in model.state_dict().items()}, stacked / "model.safetensors")
    other = converted(stacked, tmp_path / "out.gguf")
    assert all(np.array_equal(array, values(other)[name]) for name, array in values(path).items())


@pytest.mark.parametrize("kind", ["Q8_0", "q4_k", "Q4_1", "IQ4_NL"])
def test_quantised(make: Make, kind: str, tmp_path: Path) -> None:
    _, folder, path = make("llama")
    out = converted(folder, tmp_path / "out.gguf", "--quantize", kind, "--threads", "1")
    assert out.stat().st_size < path.stat().st_size
    ours, theirs = BaseFile(path), BaseFile(out)
    assert ours.family_id == theirs.family_id
    ours.close()
    theirs.close()
    assert [file.name for file in tmp_path.iterdir()] == ["out.gguf"]


def test_a_text_model_inside_another(make: Make, tmp_path: Path) -> None:
    """Gemma 3 with eyes: its language model alone, in both layouts that there are of it."""
    import json
    import shutil

    from safetensors.numpy import save_file

    model, folder, path = make("gemma3")
    config = json.loads((folder / "config.json").read_text())
    for prefix, vision in (
        ("language_model.model.", "vision_tower.x"),
        ("model.language_model.", "model.vision_tower.x"),
    ):
        outer = tmp_path / prefix
        outer.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(folder / name, outer)
        whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config}
        (outer / "config.json").write_text(json.dumps(whole))
        tensors = {
            key.replace("model.", prefix, 1): v.numpy() for key, v in model.state_dict().items() if "head" not in key
        }
        save_file({**tensors, vision: np.ones(3, np.float32)}, outer / "model.safetensors")
        other = converted(outer, tmp_path / f"{prefix}gguf")
        assert all(np.array_equal(array, values(other)[name]) for name, array in values(path).items())


@pytest.mark.parametrize(
    "variant", ["llama3", "llama-yarn", "gemma3", "phi3-longrope", "phi3-partial", "qwen2", "olmo2"]
)
def test_configurations_of_older_files(make: Make, variant: str, tmp_path: Path) -> None:
    """`rope_theta` and `rope_scaling`, as transformers wrote them before version 5, and no layer types."""
    import json
    import shutil

    _, folder, path = make(variant)
    older = Path(shutil.copytree(folder, tmp_path / "model"))
    config = json.loads((older / "config.json").read_text())
    rope = config.pop("rope_parameters")
    if "sliding_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    config["rope_theta"] = rope.pop("rope_theta")
    config["partial_rotary_factor"] = rope.pop("partial_rotary_factor", 1.0)
    kind = rope.pop("rope_type")
    if variant == "phi3-longrope":
        # It stands beside the factors' section there.
        assert rope.pop("original_max_position_embeddings") == config["original_max_position_embeddings"]
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    config.pop("layer_types", None)
    (older / "config.json").write_text(json.dumps(config))
    assert converted(older, tmp_path / "out.gguf", "--name", "model").read_bytes() == path.read_bytes()
