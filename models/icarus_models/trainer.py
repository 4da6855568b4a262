"""Transformers' `Trainer` with a loss of ours, in which every supervised token of a run weighs the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from peft import PeftModel
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from icarus_models.batches import Row
from icarus_models.losses import IGNORED, Batch, Loss, mean_loss
from icarus_models.records import Sample


class PlannedRows(Dataset[list[Sample]]):
    """The rows in the order of the whole run's batches; read in sequence."""

    def __init__(self, samples: Sequence[Sample], order: Sequence[Row]) -> None:
        self._samples, self._order = samples, order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> list[Sample]:
        return [self._samples[i] for i in self._order[index]]


class LoraTrainer(Trainer):  # type: ignore[misc]
    """`Trainer` for a LoRA by one of `losses`.

    A mean over each batch would give the tokens of short answers several times the weight of long ones': a reviewer
    learns from that to say that there is no issue.
    """

    def __init__(
        self,
        *args: Any,
        loss: Loss,
        heldout_loss: Loss,
        tokens_per_batch: float,
        precision: torch.dtype,
        **kwargs: Any,
    ) -> None:
        """What is not `Trainer`'s own.

        Args:
            loss: what is minimised. heldout_loss: what early stopping looks at.
            tokens_per_batch: the run's mean of supervised tokens in a batch. precision: in which is computed.
        """
        super().__init__(*args, **kwargs)
        self._loss, self._heldout_loss = loss, heldout_loss
        self._tokens_per_batch, self._precision = tokens_per_batch, precision
        # The loss is in units of a batch, so the batches of one optimiser step are to be averaged.
        self.model_accepts_loss_kwargs = False
        # Of the steps since the last that was logged.
        self._batches, self._supervised = 0, 0

    def computing(self) -> AbstractContextManager[Any]:
        """The context that losses are computed in: bf16 where that is the precision."""
        wanted = self._precision is torch.bfloat16
        return torch.autocast(self.args.device.type, torch.bfloat16, enabled=wanted)

    def compute_loss(
        self, model: PeftModel, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The sum over the batch's supervised tokens in units of a mean batch; there are no outputs to return."""
        with self.computing():
            loss = self._loss(model, inputs) / self._tokens_per_batch
        self._batches += 1
        self._supervised += int((inputs["labels"] != IGNORED).sum())
        return (loss, {}) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As `Trainer.log`, but a step's loss is in nats per supervised token, as the held-out loss is."""
        if "loss" in logs and self._supervised:
            per_token = self._tokens_per_batch * self._batches / self._supervised
            logs = {**logs, "loss": logs["loss"] * per_token}
            self._batches, self._supervised = 0, 0
        super().log(logs, start_time)

    def mean_loss(self, loss: Loss, samples: Sequence[Sample]) -> float:
        """A loss of the model as it is now, in nats per supervised token."""
        with self.computing():
            return mean_loss(loss, self.model, samples)

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        """The held-out loss of `eval_dataset`, for early stopping."""
        metrics = {f"{metric_key_prefix}_loss": self.mean_loss(self._heldout_loss, self.eval_dataset)}
        self.log(metrics)
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def on_one_device(args: TrainingArguments, tell: Callable[[str], None]) -> TrainingArguments:
    """The arguments for one GPU: `Trainer` would wrap the model for several, and our losses ask PEFT's model."""
    if args.n_gpu > 1:
        tell(f"a run trains on one GPU: the first of {args.n_gpu} is used")
        args._n_gpu = 1
    return args


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
        """One line per logged step, and per held-out loss on the way."""
        if logs and "eval_loss" in logs:
            self._tell(f"step {state.global_step}/{state.max_steps}  held-out loss {logs['eval_loss']:.4f}")
        done = state.global_step - self._first_step
        if not logs or "loss" not in logs or not done:
            return
        seconds = (time.monotonic() - self._started) / done
        left = (state.max_steps - state.global_step) * seconds / 60
        self._tell(
            f"step {state.global_step}/{state.max_steps}  loss {logs['loss']:.4f}  {seconds:.2f} s/step  "
            f"{left:.0f} min left"
        )
