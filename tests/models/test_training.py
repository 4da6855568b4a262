"""A toy run: the loss falls, resuming gives the same weights, and the run folder is what the converter expects."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

from icarus_local.errors import IcarusError
from icarus_models import training
from icarus_models.records import Sample
from icarus_models.trainer import IcarusTrainer, collate, heldout_loss, two_stream_loss
from icarus_models.training import RUN_FILE, Places, Recipe, train

from .conftest import tiny_llama, with_random_lora
from .test_records import Bytes

RECIPE = Recipe(agent="coder", rank=4, alpha=8, learning_rate=0.02, batch=2, max_steps=12, max_tokens=256)


class ToyTokenizer(Bytes):
    """Bytes modulo the tiny model's vocabulary."""

    controls: ClassVar[dict[str, int]] = {"<|im_start|>": 126, "<|im_end|>": 127}
    eos = 127
    template_source = None
    sha256 = "toy"

    def __init__(self, path: Path) -> None:
        self.path = path

    def encode(self, text: str) -> list[int]:
        return [byte % 120 for byte in text.encode()]

    def close(self) -> None:
        pass


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    base = tmp_path / "base"
    tiny_llama().save_pretrained(base)
    records = [
        {"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "ab" * (1 + i % 3)}]}
        for i in range(8)
    ]
    data = tmp_path / "train.jsonl"
    data.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    use_toys(monkeypatch)
    return Places(base, data, data, data, tmp_path / "run")


def use_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy base has no GGUF, so neither vocabulary nor family."""
    monkeypatch.setattr(training, "Tokenizer", ToyTokenizer)
    monkeypatch.setattr(training, "_family", lambda places: "ab" * 32)


def quiet(line: str) -> None:
    pass


def test_a_run_learns_and_leaves_a_whole_folder(places: Places) -> None:
    told: list[str] = []
    adapter = train(RECIPE, places, told.append)
    facts: dict[str, Any] = json.loads((adapter / RUN_FILE).read_text(encoding="utf-8"))
    assert facts["format"] == 1
    assert facts["method"] == "icarus"
    assert facts["base_family_id"] == "ab" * 32
    assert facts["losses"]["heldout_trained"] < 0.5 * facts["losses"]["heldout_base"]
    assert facts["steps"] == {"planned": 12, "done": 12, "stopped_by_time": False}
    assert facts["tokenizer_sha256"] == "toy"
    assert facts["versions"]["torch"]
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    assert sorted(config["target_modules"]) == ["down_proj", "gate_proj", "o_proj", "q_proj", "up_proj"]
    weights = load_file(adapter / "adapter_model.safetensors")
    assert len(weights) == 2 * 2 * 5
    assert not any("k_proj" in name or "v_proj" in name for name in weights)
    assert any("step 10/12" in line for line in told)
    with pytest.raises(IcarusError, match="finished"):
        train(RECIPE, places, quiet)


def test_resuming_gives_the_same_weights(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_file(train(RECIPE, places, quiet) / "adapter_model.safetensors")

    class KilledError(Exception):
        pass

    def dies(*_: Any, **__: Any) -> None:
        raise KilledError

    again = dataclasses.replace(places, out=places.out.with_name("again"))
    monkeypatch.setattr("icarus_models.trainer.Progress.on_save", dies, raising=False)
    with pytest.raises(KilledError):
        train(RECIPE, again, quiet, save_steps=5)
    monkeypatch.undo()
    use_toys(monkeypatch)
    with pytest.raises(IcarusError, match="--resume"):
        train(RECIPE, again, quiet, save_steps=5)
    with pytest.raises(IcarusError, match="another recipe"):
        train(dataclasses.replace(RECIPE, rank=8), again, quiet, resume=True, save_steps=5)
    told: list[str] = []
    resumed = load_file(train(RECIPE, again, told.append, resume=True, save_steps=5) / "adapter_model.safetensors")
    assert any("step 10/12" in line for line in told)
    assert not any("step 5/12" in line for line in told)
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name


def test_a_run_stops_in_time(places: Places) -> None:
    adapter = train(RECIPE, places, quiet, max_minutes=1e-9)
    facts = json.loads((adapter / RUN_FILE).read_text(encoding="utf-8"))
    assert facts["steps"] == {"planned": 12, "done": 1, "stopped_by_time": True}
    adapter = train(RECIPE, places, quiet, resume=True)
    facts = json.loads((adapter / RUN_FILE).read_text(encoding="utf-8"))
    assert facts["steps"] == {"planned": 12, "done": 12, "stopped_by_time": False}
    with pytest.raises(IcarusError, match="finished"):
        train(RECIPE, places, quiet, resume=True)


def test_padding_does_not_change_the_loss() -> None:
    model = with_random_lora()
    samples = [Sample([1, 2, 3, 4, 5], [2, 3, 4], [4, 5, 6]), Sample([7, 8], [1], [9])]
    with torch.no_grad():
        together = float(two_stream_loss(model, collate(samples)))
        alone = sum(float(two_stream_loss(model, collate([sample]))) for sample in samples)
    assert together == pytest.approx(alone, abs=1e-4)
    assert heldout_loss(model, samples) == pytest.approx(alone / 4, abs=1e-4)


def test_every_token_of_a_run_weighs_the_same() -> None:
    model = with_random_lora()
    trainer = object.__new__(IcarusTrainer)
    trainer._tokens_per_batch = 2.0
    short, long = Sample([7, 8], [1], [9]), Sample([1, 2, 3, 4, 5], [2, 3, 4], [4, 5, 6])
    with torch.no_grad():
        for sample in (short, long):
            batch = collate([sample])
            assert float(trainer.compute_loss(model, batch)) == pytest.approx(float(two_stream_loss(model, batch)) / 2)
        # A mean would make one token of the short answer weigh as much as three of the long one.
        together = float(trainer.compute_loss(model, collate([short, long])))
        alone = sum(float(trainer.compute_loss(model, collate([sample]))) for sample in (short, long))
    assert together == pytest.approx(alone, abs=1e-4)
