"""What is minimised: sums over the supervised tokens, of ICaRus's decoder rows, an ordinary LoRA's, or a teacher's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from peft import PeftModel
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from icarus_models.records import Sample
from icarus_models.reference import ordinary_logits, two_stream_logits

IGNORED = -100
Batch = dict[str, Tensor]
# In nats, summed over the supervised tokens of a batch.
Loss = Callable[[PeftModel, Batch], Tensor]


def collate(rows: Sequence[Sequence[Sample]]) -> Batch:
    """Rows of one or several samples as `input_ids`, `attention_mask` [B, T], `positions`, `labels` [B, S], int64.

    The mask numbers the samples of a row from 1. Padding goes by it, never by a token id: SmolLM2's pad is its end of
    turn.
    """
    ids = [[token for sample in row for token in sample.ids] for row in rows]
    numbers = [[number for number, sample in enumerate(row, start=1) for _ in sample.ids] for row in rows]
    labels = [[label for sample in row for label in sample.labels] for row in rows]
    return {
        "input_ids": _padded(ids, 0),
        "attention_mask": _padded(numbers, 0),
        "positions": _padded([_positions(row) for row in rows], -1),
        "labels": _padded(labels, IGNORED),
    }


def _positions(row: Sequence[Sample]) -> list[int]:
    places: list[int] = []
    start = 0
    for sample in row:
        places.extend(start + position for position in sample.positions)
        start += len(sample.ids)
    return places


def _padded(lists: Sequence[list[int]], fill: int) -> Tensor:
    width = max(map(len, lists))
    return torch.tensor([[*values, *[fill] * (width - len(values))] for values in lists], dtype=torch.int64)


def two_stream_loss(model: PeftModel, batch: Batch) -> Tensor:
    """Cross entropy of ICaRus's decoder rows."""
    return _summed(two_stream_logits(model, *_inputs(batch)), batch)


def ordinary_loss(model: PeftModel, batch: Batch) -> Tensor:
    """Cross entropy of an ordinary LoRA, at the same tokens."""
    return _summed(ordinary_logits(model, *_inputs(batch)), batch)


LOSSES: dict[str, Loss] = {"icarus": two_stream_loss, "lora": ordinary_loss}


def distillation_loss(teacher: PeftModel) -> Loss:
    """The Kullback-Leibler divergence of ICaRus's decoder rows from an ordinary LoRA's."""

    def loss(model: PeftModel, batch: Batch) -> Tensor:
        with torch.no_grad():
            wanted = log_softmax(ordinary_logits(teacher, *_inputs(batch)).float(), dim=-1)
        said = log_softmax(two_stream_logits(model, *_inputs(batch)).float(), dim=-1)
        each = kl_div(said, wanted, reduction="none", log_target=True).sum(-1)
        return each.masked_fill(batch["labels"] == IGNORED, 0.0).sum()

    return loss


def mean_loss(loss: Loss, model: PeftModel, samples: Sequence[Sample], batch: int = 8) -> float:
    """A loss in nats per supervised token over `samples`, in batches of like length; the model is left in eval mode."""
    ordered = sorted(samples, key=lambda sample: len(sample.ids))
    total, count = 0.0, 0
    model.eval()
    with torch.no_grad():
        for start in range(0, len(ordered), batch):
            some = ordered[start : start + batch]
            rows = {name: tensor.to(model.device) for name, tensor in collate([[sample] for sample in some]).items()}
            total += float(loss(model, rows))
            count += sum(len(sample.labels) for sample in some)
    return total / count


def _inputs(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch["input_ids"], batch["attention_mask"], batch["positions"]


def _summed(logits: Tensor, batch: Batch) -> Tensor:
    return cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten(), ignore_index=IGNORED, reduction="sum")
