"""One training run, from records to a run folder that the converter takes."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from peft import PeftModel
from peft.utils import get_peft_model_state_dict
from transformers import PrinterCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from icarus_local.engine.identity import family_id
from icarus_local.errors import IcarusError
from icarus_local.ggml.gguf import GgufFile
from icarus_local.text.template import own_template
from icarus_local.text.tokenizer import Tokenizer
from icarus_models.base import file_sha256, load_base
from icarus_models.catalog import agents
from icarus_models.records import Loaded, Renderer, plan_batches, read_samples
from icarus_models.reference import TARGET_MODULES, add_lora
from icarus_models.trainer import IcarusTrainer, PlannedSamples, Progress, collate, heldout_loss

RUN_FILE = "icarus_run.json"
RUN_FORMAT = 1
_WARMUP_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides a run's outcome; `learning_rate` peaks after the warm-up and falls by a cosine to 0."""

    agent: str
    rank: int = 16
    alpha: float = 32.0
    learning_rate: float = 2e-4
    epochs: float = 1.0
    batch: int = 4
    max_steps: int | None = None
    seed: int = 0
    max_tokens: int = 256

    def steps(self, samples: int) -> int:
        """Optimiser steps for that many samples."""
        return self.max_steps or max(1, math.ceil(samples * self.epochs / self.batch))


@dataclass(frozen=True, slots=True)
class Places:
    """Files of a run: the base (GGUF or Hugging Face folder), the GGUF whose tokenizer is used, data, run folder."""

    base: Path
    tokenizer: Path
    data: Path
    heldout: Path | None
    out: Path


def train(
    recipe: Recipe,
    places: Places,
    tell: Callable[[str], None],
    *,
    max_minutes: float | None = None,
    resume: bool = False,
    save_steps: int = 50,
) -> Path:
    """Trains `recipe.agent` and returns the adapter folder, `out/adapter`, a PEFT folder plus `icarus_run.json`.

    `tell` gets one line of progress at a time. The run file is written last: an adapter folder without it is not
    finished. `resume` goes on from the last checkpoint with the same batches. Raises `IcarusError` for data, base or
    folders that cannot be used.
    """
    adapter = places.out / "adapter"
    if (adapter / RUN_FILE).exists() and not (resume and _stopped_by_time(adapter)):
        raise IcarusError(f"{adapter}: this run is finished; choose another folder")
    checkpoint = get_last_checkpoint(places.out) if places.out.is_dir() else None
    if resume and not checkpoint:
        raise IcarusError(f"{places.out}: holds no checkpoint to go on from; start without --resume")
    if checkpoint and not resume:
        raise IcarusError(f"{places.out}: holds an unfinished run; go on with --resume, or choose another folder")
    tokenizer = Tokenizer(places.tokenizer)
    try:
        template = own_template(tokenizer.template_source, tokenizer)
        renderer = Renderer(tokenizer, template, agents(), recipe.agent)
        loaded = _read(places.data, renderer, recipe, tell)
        heldout = _read(places.heldout, renderer, recipe, tell) if places.heldout else Loaded()
        identity = {"template_sha256": template.sha256, "tokenizer_sha256": tokenizer.sha256}
    finally:
        tokenizer.close()
    plan = {"recipe": asdict(recipe), "data_sha256": _hashes(places), **identity}
    _check_plan(places.out, plan, resumed=checkpoint is not None)

    model = add_lora(load_base(places.base), recipe.rank, recipe.alpha, recipe.seed)
    steps = recipe.steps(len(loaded.samples))
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    tell(f"{steps} steps of {recipe.batch} samples, {trainable:,} trainable weights")
    # The zero adapter is the base, also on a resumed run: the checkpoint is loaded later, by the trainer.
    before = heldout_loss(model, heldout.samples) if heldout.samples else None
    if before is not None:
        tell(f"held-out loss of the base: {before:.4f}")
    order = plan_batches([len(sample.ids) for sample in loaded.samples], recipe.batch, steps, recipe.seed)
    progress = Progress(tell, max_minutes)
    trainer = IcarusTrainer(
        model=model,
        args=_arguments(recipe, places.out, steps, save_steps),
        train_dataset=PlannedSamples(loaded.samples, order),
        data_collator=collate,
        callbacks=[progress],
        tokens_per_batch=sum(len(loaded.samples[i].labels) for i in order) / steps,
    )
    trainer.remove_callback(PrinterCallback)  # it prints; `tell` is the only voice here
    trainer.train(resume_from_checkpoint=checkpoint)
    after = heldout_loss(model, heldout.samples) if heldout.samples else None
    if after is not None:
        tell(f"held-out loss of the agent: {after:.4f} (base {before:.4f})")
    losses = {
        "heldout_base": before,
        "heldout_trained": after,
        "train_log": [
            {"step": entry["step"], "loss": entry["loss"]} for entry in trainer.state.log_history if "loss" in entry
        ],
    }
    steps_done = {"planned": steps, "done": trainer.state.global_step, "stopped_by_time": progress.stopped_by_time}
    _finish(model, adapter, {**plan, "base_family_id": _family(places), "losses": losses, "steps": steps_done})
    tell(f"finished: {adapter}")
    return adapter


def _read(path: Path, renderer: Renderer, recipe: Recipe, tell: Callable[[str], None]) -> Loaded:
    loaded = read_samples(path, renderer, recipe.max_tokens)
    tell(f"{path}: {len(loaded.samples)} samples, {loaded.tokens:,} tokens, {loaded.supervised:,} supervised")
    if loaded.too_long:
        tell(f"{path}: {loaded.too_long} records over {recipe.max_tokens} tokens left out")
    if loaded.bad:
        named = "; ".join(f"line {number}: {reason}" for number, reason in loaded.bad[:5])
        more = " …" if len(loaded.bad) > 5 else ""
        tell(f"{path}: {len(loaded.bad)} bad lines left out: {named}{more}")
    return loaded


def _arguments(recipe: Recipe, out: Path, steps: int, save_steps: int) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=recipe.batch,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, round(steps * _WARMUP_SHARE)),
        weight_decay=0.0,
        max_grad_norm=1.0,
        seed=recipe.seed,
        train_sampling_strategy="sequential",  # the order is in the data set: see `plan_batches`
        logging_steps=5,
        save_steps=save_steps,
        save_total_limit=2,
        disable_tqdm=True,
        report_to=[],
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_pin_memory=False,
    )


def _hashes(places: Places) -> dict[str, str]:
    named = {"train": places.data, "heldout": places.heldout, "base": places.base, "tokenizer": places.tokenizer}
    return {name: file_sha256(path) for name, path in named.items() if path is not None and path.is_file()}


def _check_plan(out: Path, plan: dict[str, Any], resumed: bool) -> None:
    """Keeps what the run was started with, and refuses to resume it with anything else."""
    path = out / "plan.json"
    if resumed:
        try:
            started = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise IcarusError(f"{path}: cannot tell what the run was started with: {error}") from error
        changed = [key for key, value in plan.items() if started.get(key) != value]
        if changed:
            raise IcarusError(
                f"{out}: was started with another {', '.join(changed)}; resume with the same, or start anew"
            )
    else:
        out.mkdir(parents=True, exist_ok=True)
        _write_json(path, plan)


def _stopped_by_time(adapter: Path) -> bool:
    try:
        return bool(json.loads((adapter / RUN_FILE).read_text(encoding="utf-8"))["steps"]["stopped_by_time"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _family(places: Places) -> str:
    # The GGUF that the agent will run on: the base itself, or the one beside a Hugging Face folder.
    with GgufFile(places.tokenizer) as file:
        return str(family_id(file))


def _finish(model: PeftModel, adapter: Path, facts: dict[str, Any]) -> None:
    model.save_pretrained(str(adapter))
    state = get_peft_model_state_dict(model)
    stray = [name for name in state if not any(f".{module}." in name for module in TARGET_MODULES)]
    if stray:
        raise IcarusError(f"{adapter}: holds {stray[0]}, which no ICaRus agent may adapt")
    weights = adapter / "adapter_model.safetensors"
    packages = ("torch", "transformers", "peft", "accelerate", "icarus-local")
    _write_json(
        adapter / RUN_FILE,
        {
            "format": RUN_FORMAT,
            "method": "icarus",
            **facts,
            "adapter_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
            "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        },
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _write_json(path: Path, value: dict[str, Any]) -> None:
    beside = path.with_suffix(".writing")
    beside.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(beside, path)
