"""One training run, from records to a run folder that the converter takes."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import EarlyStoppingCallback, PreTrainedModel, PrinterCallback, TrainingArguments

from icarus_local.chat.agents import read_agents_file
from icarus_local.errors import IcarusError
from icarus_local.text.tokenizer import Tokenizer
from icarus_models.base import check_same_model, load_base, with_adapter
from icarus_models.batches import plan_rows, rows_of_epoch
from icarus_models.catalog import agents
from icarus_models.checkpointing import checkpoint_layers
from icarus_models.losses import LOSSES, collate, distillation_loss, ordinary_loss
from icarus_models.model_card import share_text
from icarus_models.recipe import Recipe
from icarus_models.records import DATE, Loaded, Renderer, dated_template, named, read_samples
from icarus_models.reference import add_lora
from icarus_models.run_files import ADAPTER
from icarus_models.run_folder import check_plan, checkpoint_of, family_of, finish
from icarus_models.run_record import folder_hashes, hashes
from icarus_models.teacher import answer_prompts
from icarus_models.trainer import LoraTrainer, PlannedRows, Progress, on_one_device

Tell = Callable[[str], None]
_OPTIMIZERS = {"adamw": "adamw_torch", "adafactor": "adafactor", "sgd": "sgd", "adamw_8bit": "adamw_bnb_8bit"}
_SCHEDULES = {"cosine": "cosine", "linear": "linear", "constant": "constant_with_warmup"}


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a run is made of: samples, the frozen base, and the teacher where there is one."""

    train: Loaded
    heldout: Loaded
    base: PreTrainedModel
    teacher: PeftModel | None


def train(recipe: Recipe, base: Path, tell: Tell, *, resume: bool = False) -> Path:
    """Trains `recipe.agent` and returns the adapter folder, `out/adapter`: a PEFT folder, `icarus_run.json`, a card.

    `base` is a GGUF file or a Hugging Face folder. `tell` gets one line of progress at a time. The run file is written
    last: an adapter folder without it is not finished. `resume` goes on from the last checkpoint with the same batches.
    Raises `IcarusError` for data, base or folders that cannot be used, and for one of several processes.
    """
    if (processes := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise IcarusError(
            f"WORLD_SIZE is {processes}, and a training run is one process on one device",
            "Start icarus-train itself, without torchrun or accelerate launch",
        )
    adapter = recipe.out / ADAPTER
    checkpoint = checkpoint_of(recipe.out, resume)
    dtype = _precision(recipe)
    tokenizer_file = recipe.tokenizer_gguf or base
    if base.is_dir():
        check_same_model(base, tokenizer_file)
    with closing(Tokenizer(tokenizer_file)) as tokenizer:
        template = dated_template(tokenizer)
        known = [*(read_agents_file(recipe.agents_file) if recipe.agents_file else []), *agents()]
        # Of one name the file's counts.
        renderer = Renderer(tokenizer, template, reversed(known), recipe.agent)
        # Data is read before weights are, but for prompts that a teacher must answer.
        read = {"heldout": _read(recipe.heldout, renderer, recipe, tell) if recipe.heldout else Loaded()}
        if recipe.teacher is None:
            read["train"] = _read(recipe.data, renderer, recipe, tell)
        plan = {
            "recipe": recipe.outcome(),
            "data_sha256": hashes(recipe, base),
            "folders_sha256": folder_hashes(recipe, base),
            "template_sha256": template.sha256,
            "tokenizer_sha256": tokenizer.sha256,
            # With instructions, system prompt and date rendered.
            "samples_sha256": {name: loaded.sha256 for name, loaded in read.items()},
            "date": DATE.date().isoformat(),
            "precision": f"{str(dtype).removeprefix('torch.')}{', base in 4 bits' if recipe.four_bit else ''}",
        }
        check_plan(recipe.out, plan, resumed=checkpoint is not None)
        frozen = load_base(base, dtype=dtype, four_bit=recipe.four_bit)
        inputs = _inputs(recipe, plan, read, frozen, renderer=renderer, tell=tell)
    model = add_lora(
        inputs.base,
        recipe.rank,
        recipe.alpha,
        recipe.seed,
        modules=recipe.modules,
        rslora=recipe.rslora,
        dropout=recipe.dropout,
    )
    if recipe.gradient_checkpointing:
        checkpoint_layers(model)
    trainer, progress = _trainer(recipe, model, inputs, dtype, tell)
    losses = {"heldout_base": _heldout(trainer, recipe, inputs, tell, "base")}
    if inputs.teacher is not None:
        losses["heldout_teacher"] = trainer.mean_loss(
            lambda _, batch: _of_teacher(inputs, batch), inputs.heldout.samples
        )
        tell(f"held-out loss of the teacher: {losses['heldout_teacher']:.4f}")
    trainer.train(resume_from_checkpoint=checkpoint)
    losses["heldout_trained"] = _heldout(trainer, recipe, inputs, tell, recipe.agent)
    if inputs.teacher is not None:
        losses["gain_kept"] = _gain_kept(losses)
        tell(f"of the teacher's gain {share_text(losses['gain_kept'])} is kept")
    log = trainer.state.log_history
    facts = {
        **plan,
        # On the Hub it has a name; a path would say nothing to others.
        "base": base.name if recipe.base is None or Path(recipe.base).exists() else recipe.base,
        "base_family_id": family_of(tokenizer_file),
        "weights": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "data": {"train": _of(inputs.train)} | ({"heldout": _of(inputs.heldout)} if recipe.heldout else {}),
        "losses": {
            **losses,
            "train_log": [{"step": one["step"], "loss": one["loss"]} for one in log if "loss" in one],
            "unit": "nats a supervised token",
        },
        "steps": {
            "planned": trainer.state.max_steps,
            "done": trainer.state.global_step,
            "stopped_by_time": progress.stopped_by_time,
        },
    }
    finish(model, adapter, recipe.method, facts)
    tell(f"finished: {adapter}")
    return adapter


def _precision(recipe: Recipe) -> torch.dtype:
    # Where it is emulated it is slower than fp32, and coarser.
    fast = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if recipe.precision == "bf16" or (recipe.precision == "auto" and fast) else torch.float32


def _inputs(
    recipe: Recipe,
    plan: dict[str, Any],
    read: dict[str, Loaded],
    base: PreTrainedModel,
    *,
    renderer: Renderer,
    tell: Tell,
) -> _Inputs:
    """What was read, or what a teacher answers to it: its answers are kept by all that they depend on."""
    if recipe.teacher is None:
        return _Inputs(read["train"], read["heldout"], base, None)
    device = torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.mps.is_available() else "cpu")
    # The weights are the student's, too.
    teacher = with_adapter(base, recipe.teacher).to(device)
    depends = {**plan, "recipe": [recipe.agent, recipe.max_tokens]}
    key = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:12]
    answers = recipe.out / f"answers-{key}.jsonl"
    answer_prompts(recipe.data, answers, teacher=teacher, renderer=renderer, max_tokens=recipe.max_tokens, tell=tell)
    return _Inputs(_read(answers, renderer, recipe, tell), read["heldout"], base, teacher)


def _read(path: Path, renderer: Renderer, recipe: Recipe, tell: Tell) -> Loaded:
    loaded = read_samples(path, renderer, recipe.max_tokens)
    tell(f"{path}: {len(loaded.samples)} samples, {loaded.tokens:,} tokens, {loaded.supervised:,} supervised")
    if loaded.left_out:
        tell(f"{path}: {named(loaded.left_out)}")
    return loaded


def _trainer(
    recipe: Recipe, model: PeftModel, inputs: _Inputs, dtype: torch.dtype, tell: Tell
) -> tuple[LoraTrainer, Progress]:
    samples, together = inputs.train.samples, recipe.batch * recipe.accumulation
    lengths, pack = [len(sample.ids) for sample in samples], recipe.max_tokens if recipe.pack else None
    # Of the first epoch: others may pack into a row more or less.
    steps = recipe.steps(len(rows_of_epoch(lengths, random.Random(recipe.seed), pack)))
    order = plan_rows(lengths, together, steps, recipe.seed, pack)
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    tell(f"{steps} steps of {together} rows, {trainable:,} trainable weights, {dtype}")
    progress = Progress(tell, recipe.max_minutes)
    trainer = LoraTrainer(
        model=model,
        args=on_one_device(_arguments(recipe, steps), tell),
        train_dataset=PlannedRows(samples, order),
        eval_dataset=inputs.heldout.samples or None,
        data_collator=collate,
        callbacks=[progress, *([EarlyStoppingCallback(recipe.patience)] if recipe.patience else [])],
        loss=LOSSES[recipe.method] if inputs.teacher is None else distillation_loss(inputs.teacher),
        tokens_per_batch=sum(len(samples[i].labels) for row in order for i in row) / (steps * recipe.accumulation),
        heldout_loss=LOSSES[recipe.method],
        precision=dtype,
    )
    trainer.remove_callback(PrinterCallback)  # it prints; `tell` is the only voice here
    return trainer, progress


def _arguments(recipe: Recipe, steps: int) -> TrainingArguments:
    if recipe.report == "tensorboard" and importlib.util.find_spec("tensorboard") is None:
        raise IcarusError("TensorBoard is not installed", "pip install tensorboard, or leave --report out")
    early: dict[str, Any] = {}
    if recipe.patience:
        early = {
            "eval_strategy": "steps",
            "eval_steps": recipe.save_steps,
            "load_best_model_at_end": True,
            "metric_for_best_model": "eval_loss",
            "greater_is_better": False,
            "restore_callback_states_from_checkpoint": True,
        }
    return TrainingArguments(
        output_dir=str(recipe.out),
        max_steps=steps,
        per_device_train_batch_size=recipe.batch,
        gradient_accumulation_steps=recipe.accumulation,
        optim=_OPTIMIZERS[recipe.optimizer],
        learning_rate=recipe.learning_rate,
        lr_scheduler_type=_SCHEDULES[recipe.schedule],
        warmup_steps=max(1, round(steps * recipe.warmup)) if recipe.warmup else 0,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        seed=recipe.seed,
        train_sampling_strategy="sequential",  # the order is in the data set: see `plan_rows`
        logging_steps=5,
        save_steps=recipe.save_steps,
        save_total_limit=2,
        disable_tqdm=True,
        report_to=[] if recipe.report == "none" else [recipe.report],
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_pin_memory=False,
        **early,
    )


def _heldout(trainer: LoraTrainer, recipe: Recipe, inputs: _Inputs, tell: Tell, whose: str) -> float | None:
    # The zero adapter is the base, also on a resumed run: the checkpoint is loaded later, by the trainer.
    if not inputs.heldout.samples:
        return None
    loss = trainer.mean_loss(LOSSES[recipe.method], inputs.heldout.samples)
    tell(f"held-out loss of {whose}: {loss:.4f}")
    return loss


def _of_teacher(inputs: _Inputs, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    assert inputs.teacher is not None
    return ordinary_loss(inputs.teacher, batch)


def _gain_kept(losses: dict[str, Any]) -> float | None:
    """The student's share of the teacher's gain over the base; None where the teacher gained nothing."""
    gain = losses["heldout_base"] - losses["heldout_teacher"]
    return (losses["heldout_base"] - losses["heldout_trained"]) / gain if gain > 0 else None


def _of(loaded: Loaded) -> dict[str, Any]:
    return {
        "samples": len(loaded.samples),
        "tokens": loaded.tokens,
        "supervised": loaded.supervised,
        "left_out": [list(one) for one in loaded.left_out],
    }
