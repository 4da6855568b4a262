"""Losses: every token weighs the same, packed rows do not see each other, checkpointing changes no gradient."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from icarus_models import reference
from icarus_models.checkpointing import checkpoint_layers
from icarus_models.losses import LOSSES, Loss, collate, distillation_loss, mean_loss
from icarus_models.records import Sample
from icarus_models.reference import ordinary_logits, places_within_samples, trunk_inputs, two_stream_logits
from icarus_models.trainer import LoraTrainer
from tests.agents import add_agents
from tests.relatives import relative_model

from .conftest import with_random_lora

METHODS = ("icarus", "lora")
SAMPLES = [
    Sample([1, 2, 3, 4, 5, 6, 7], [2, 3, 6], [4, 5, 6]),
    Sample([7, 8], [1], [9]),
    Sample([20, 21, 22, 23, 24], [0, 4], [21, 30]),
]


def summed(loss: Loss, model: PeftModel, rows: list[list[Sample]]) -> float:
    with torch.no_grad():
        return float(loss(model, collate(rows)))


@pytest.mark.parametrize("method", METHODS)
def test_padding_does_not_change_the_loss(method: str) -> None:
    model, loss = with_random_lora(), LOSSES[method]
    alone = sum(summed(loss, model, [[sample]]) for sample in SAMPLES)
    assert summed(loss, model, [[sample] for sample in SAMPLES]) == pytest.approx(alone, abs=1e-5)
    assert mean_loss(loss, model, SAMPLES, batch=2) == pytest.approx(alone / 6, abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_packed_samples_do_not_see_each_other(method: str) -> None:
    model, loss = with_random_lora(), LOSSES[method]
    alone = [[sample] for sample in SAMPLES]
    packed = [[SAMPLES[0], SAMPLES[1]], [SAMPLES[2]]]
    assert summed(loss, model, packed) == pytest.approx(summed(loss, model, alone), abs=1e-5)
    assert summed(loss, model, [SAMPLES]) == pytest.approx(summed(loss, model, alone), abs=1e-5)


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "qwen3"])
def test_packing_where_layers_slide_or_norm_differently(name: str) -> None:
    model = add_agents(relative_model(name), {"random": 0.3})
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 200, (80,), generator=generator).tolist()
    samples = [Sample(ids[:45], [3, 44], [5, 6]), Sample(ids[45:], [0, 34], [7, 8])]
    for loss in LOSSES.values():
        apart = summed(loss, model, [[sample] for sample in samples])
        assert summed(loss, model, [samples]) == pytest.approx(apart, abs=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_a_leak_would_be_seen(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_random_lora()
    apart = summed(LOSSES[method], model, [[sample] for sample in SAMPLES])
    original: Callable[..., Tensor] = reference.decoder_mask

    def everything(rows: Tensor, attention_mask: Tensor, dtype: torch.dtype, window: int | None = None) -> Tensor:
        return original(rows, attention_mask.clamp(max=1), dtype, window)

    monkeypatch.setattr(reference, "decoder_mask", everything)
    assert abs(summed(LOSSES[method], model, [SAMPLES]) - apart) > 0.05


def test_places_restart_with_each_sample() -> None:
    mask = torch.tensor([[1, 1, 1, 2, 2, 3, 0, 0], [1, 1, 1, 1, 1, 1, 1, 0]])
    places = [[0, 1, 2, 0, 1, 0, 1, 2], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert places_within_samples(mask).tolist() == places
    assert trunk_inputs(with_random_lora().get_base_model(), mask)["position_ids"].tolist() == places


def test_the_ordinary_head_sees_the_wanted_rows() -> None:
    for name in ("gemma2", "qwen2"):  # the first caps its logits behind the head
        model = add_agents(relative_model(name), {"random": 0.3})
        ids = torch.arange(5, 25).repeat(2, 1)
        mask, positions = torch.ones_like(ids), torch.tensor([[3, 19], [0, -1]])
        with torch.no_grad():
            every, some = ordinary_logits(model, ids, mask), ordinary_logits(model, ids, mask, positions)
        assert some.shape[1] == 2
        for row, place in ((0, 0), (0, 1), (1, 0)):
            wanted = every[row, positions[row, place]]
            assert (some[row, place] - wanted).abs().max() < 2e-5
        assert not model.get_base_model().get_output_embeddings()._forward_pre_hooks


@pytest.mark.parametrize("method", METHODS)
def test_checkpointing_changes_no_gradient(method: str) -> None:
    plain, saving = with_random_lora(), with_random_lora()
    assert checkpoint_layers(saving) == 2
    gradients = []
    for model in (plain, saving):
        LOSSES[method](model.train(), collate([SAMPLES])).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
    for name, gradient in gradients[0].items():
        assert gradient is not None
        assert (gradient - gradients[1][name]).abs().max() < 1e-6, name


def test_transformers_own_checkpointing_takes_the_cache_away() -> None:
    model = with_random_lora()
    model.get_base_model().gradient_checkpointing_enable()
    # Rows and cells no longer fit. Where this passes one day, `checkpointing` can go.
    with pytest.raises(RuntimeError):
        LOSSES["icarus"](model.train(), collate([SAMPLES]))


def test_every_token_of_a_run_weighs_the_same() -> None:
    model = with_random_lora()
    trainer: Any = object.__new__(LoraTrainer)
    trainer._loss, trainer._tokens_per_batch, trainer._precision = LOSSES["icarus"], 2.0, torch.float32
    trainer.args = SimpleNamespace(device=torch.device("cpu"))
    trainer._batches = trainer._supervised = 0
    short, long = [SAMPLES[1]], [SAMPLES[0]]
    with torch.no_grad():
        for row in (short, long):
            whole = summed(LOSSES["icarus"], model, [row])
            assert float(trainer.compute_loss(model, collate([row]))) == pytest.approx(whole / 2)
        # A mean would make one token of the short answer weigh as much as three of the long one.
        together = float(trainer.compute_loss(model, collate([short, long])))
        alone = sum(float(trainer.compute_loss(model, collate([row]))) for row in (short, long))
    assert together == pytest.approx(alone, abs=1e-4)


def test_the_distance_to_a_teacher_is_that_of_its_ordinary_forward() -> None:
    student, teacher = with_random_lora(), with_random_lora(seed=2)
    batch = collate([[SAMPLES[0]], [SAMPLES[1]]])
    inputs = batch["input_ids"], batch["attention_mask"], batch["positions"]
    with torch.no_grad():
        given = float(distillation_loss(teacher)(student, batch))
        p = ordinary_logits(teacher, *inputs).log_softmax(-1)
        q = two_stream_logits(student, *inputs).log_softmax(-1)
    each = (p.exp() * (p - q)).sum(-1)
    assert given == pytest.approx(float(each[0].sum() + each[1, 0]), rel=1e-4)
    assert given > 0.1
