"""A two-layer random Llama for every test, and recipes of toy runs on the tiny GGUF."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import LlamaConfig, LlamaForCausalLM

from icarus_models.recipe import Recipe
from icarus_models.reference import add_lora
from tests.tiny import Tiny

TOY = {
    "agent": "coder",
    "rank": 4,
    "alpha": 8.0,
    "learning_rate": 0.02,
    "batch": 2,
    "max_steps": 12,
    "save_steps": 5,
    "precision": "fp32",
}


def tiny_llama() -> LlamaForCausalLM:
    """A random Llama with grouped heads; seeded, fp32, eval."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


def with_random_lora(seed: int = 1) -> PeftModel:
    """The tiny Llama with a LoRA whose B is not zero, so that it changes the function."""
    return randomised(add_lora(tiny_llama(), rank=4, alpha=8, seed=seed), seed)


def randomised(model: PeftModel, seed: int = 1) -> PeftModel:
    """The model with lora_B drawn from `seed`."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    return model


@pytest.fixture
def agent() -> PeftModel:
    """A tiny agent with a random LoRA."""
    return with_random_lora()


@dataclass(frozen=True)
class Toy:
    """A base, and what toy runs on it are made of."""

    base: Path
    folder: Path

    @property
    def data(self) -> Path:
        """Eight records."""
        return self.folder / "train.jsonl"

    def recipe(self, out: str = "run", **changes: Any) -> Recipe:
        """A toy run's recipe; its folder is `out`."""
        places = {"data": self.data, "heldout": self.data, "out": self.folder / out}
        return Recipe(**{**TOY, **places, **changes})


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Toys are too small for several, which only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def _torch_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Dequantised bases go to no folder of a person's, and each is made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ICARUS_HOME", str(tmp_path_factory.mktemp("icarus")))
        yield


@pytest.fixture
def toy(tmp_path: Path, tiny: Tiny, _torch_cache: None) -> Toy:
    """A toy on the tiny GGUF."""
    made = Toy(tiny.path, tmp_path)
    records = [
        {"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "ab" * (1 + i % 3)}]}
        for i in range(8)
    ]
    made.data.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return made
