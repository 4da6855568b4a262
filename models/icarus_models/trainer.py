"""Transformers' `Trainer` with ICaRus's loss: the decoder's cross entropy at supervised positions only."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback

from icarus_models.records import Sample
from icarus_models.reference import two_stream_logits

logger = logging.getLogger(__name__)

IGNORED = -100
Batch = dict[str, Tensor]


def collate(samples: Sequence[Sample]) -> Batch:
    """Pads samples to `input_ids`, `attention_mask` [B, T] and `positions`, `labels` [B, S], all int64.

    Padding goes by the mask, never by a token id: SmolLM2's pad is its end of turn.
    """
    length = max(len(sample.ids) for sample in samples)
    rows = max(len(sample.labels) for sample in samples)

    def padded(lists: Sequence[list[int]], width: int, fill: int) -> Tensor:
        return torch.tensor([[*values, *[fill] * (width - len(values))] for values in lists], dtype=torch.int64)

    return {
        "input_ids": padded([sample.ids for sample in samples], length, 0),
        "attention_mask": padded([[1] * len(sample.ids) for sample in samples], length, 0),
        "positions": padded([sample.positions for sample in samples], rows, -1),
        "labels": padded([sample.labels for sample in samples], rows, IGNORED),
    }


def two_stream_loss(model: PeftModel, batch: Batch) -> Tensor:
    """Cross entropy in nats, summed over the supervised tokens of `batch` (`collate`'s)."""
    logits = two_stream_logits(model, batch["input_ids"], batch["attention_mask"], batch["positions"])
    return cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten(), ignore_index=IGNORED, reduction="sum")


def heldout_loss(model: PeftModel, samples: Sequence[Sample], batch: int = 8) -> float:
    """Mean loss in nats per supervised token over `samples`, in batches of like length."""
    ordered = sorted(samples, key=lambda sample: len(sample.ids))
    total, count = 0.0, 0
    model.eval()
    with torch.no_grad():
        for start in range(0, len(ordered), batch):
            some = ordered[start : start + batch]
            batch_of = {name: tensor.to(model.device) for name, tensor in collate(some).items()}
            total += float(two_stream_loss(model, batch_of))
            count += sum(len(sample.labels) for sample in some)
    return total / count


class PlannedSamples(Dataset[Sample]):
    """The samples in the order of the whole run's batches; read in sequence."""

    def __init__(self, samples: Sequence[Sample], order: Sequence[int]) -> None:
        self._samples, self._order = samples, order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Sample:
        return self._samples[self._order[index]]


class IcarusTrainer(Trainer):  # type: ignore[misc]
    """`Trainer` whose loss is the two-stream one, every supervised token of the run weighing the same.

    A mean over each batch would give the tokens of short answers several times the weight of long ones': a reviewer
    learns from that to say that there is no issue.
    """

    def __init__(self, *args: Any, tokens_per_batch: float, **kwargs: Any) -> None:
        """`tokens_per_batch` is the run's mean of supervised tokens in a batch; all else is `Trainer`'s."""
        super().__init__(*args, **kwargs)
        self._tokens_per_batch = tokens_per_batch

    def compute_loss(
        self, model: PeftModel, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The sum over the batch's supervised tokens in units of a mean batch; there are no outputs to return."""
        loss = two_stream_loss(model, inputs) / self._tokens_per_batch
        return (loss, {}) if return_outputs else loss


class Progress(TrainerCallback):  # type: ignore[misc]
    """Tells a step's loss and the time that is left, and ends the run once `max_minutes` have passed."""

    def __init__(self, tell: Callable[[str], None], max_minutes: float | None) -> None:
        self._tell, self._max_minutes = tell, max_minutes
        self._started = time.monotonic()
        self._first_step = 0
        self.stopped_by_time = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts the clock; a resumed run counts its own steps."""
        self._started, self._first_step = time.monotonic(), state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Stops, with a checkpoint, when the time is over."""
        if self._max_minutes and time.monotonic() - self._started > 60 * self._max_minutes:
            if state.global_step < state.max_steps:
                self.stopped_by_time = True
                control.should_save = True
            control.should_training_stop = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """One line per logged step."""
        done = state.global_step - self._first_step
        if not logs or "loss" not in logs or not done:
            return
        seconds = (time.monotonic() - self._started) / done
        left = (state.max_steps - state.global_step) * seconds / 60
        self._tell(
            f"step {state.global_step}/{state.max_steps}  loss {logs['loss']:.4f}  {seconds:.2f} s/step  "
            f"{left:.0f} min left"
        )
