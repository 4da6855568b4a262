"""What a training step costs: ICaRus beside an ordinary LoRA on the same batch, in one process, in turns."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from peft import PeftModel

from icarus_models.base import load_base, sharing
from icarus_models.losses import LOSSES, Batch, collate
from icarus_models.records import Sample
from icarus_models.reference import add_lora, encode

METHODS = ("lora", "icarus")
_SEED = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured: a batch of `batch` rows of `length` random tokens, `share` of them supervised, at the end."""

    base: Path
    batch: int
    length: int
    share: float
    rank: int
    repeats: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians.

    Attributes:
        seconds: of a step (forward, backward, optimiser) by method. encoder: of ICaRus's step, the frozen base's pass.
        peak: most memory of a process that makes such steps, in bytes, by method; weights included.
    """

    seconds: Mapping[str, float]
    encoder: float
    peak: Mapping[str, int]

    @property
    def ratio(self) -> float:
        """ICaRus's step in units of the ordinary one."""
        return self.seconds["icarus"] / self.seconds["lora"]


def measure(setting: Setting, tell: Callable[[str], None]) -> Figures:
    """Times both methods in turns, one round unmeasured; then memory, each in a process of its own.

    Raises:
        IcarusError: the base cannot be loaded.
    """
    base, device = load_base(setting.base), _device()
    models = {method: _agent(sharing(base), setting.rank) for method in METHODS}
    steps = {method: _step(model, method) for method, model in models.items()}
    batch = _batch(setting, base.config.get_text_config().vocab_size)
    taken: dict[str, list[float]] = {name: [] for name in (*METHODS, "encoder")}
    for number in range(setting.repeats + 1):
        for method in METHODS:
            taken[method].append(_seconds(partial(steps[method], batch)))
        taken["encoder"].append(_seconds(lambda: encode(models["icarus"], batch["input_ids"], batch["attention_mask"])))
        if number:
            tell(f"round {number} of {setting.repeats}: " + ", ".join(f"{m} {taken[m][-1]:.2f} s" for m in METHODS))
    medians = {name: statistics.median(values[1:]) for name, values in taken.items()}
    # The peak of a process never falls, so each method has its own.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        peaks = pool.starmap(peak_of, [(setting, method, device.type) for method in METHODS], chunksize=1)
    return Figures({m: medians[m] for m in METHODS}, medians["encoder"], dict(zip(METHODS, peaks, strict=True)))


def peak_of(setting: Setting, method: str, device: str) -> int:
    """Bytes that a process needs at most for two steps: of the device where it is CUDA, else of the machine."""
    model = _agent(load_base(setting.base), setting.rank)
    step, batch = _step(model, method), _batch(setting, model.config.get_text_config().vocab_size)
    for _ in range(2):
        step(batch)
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    # In KiB, but on macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _agent(base: torch.nn.Module, rank: int) -> PeftModel:
    return add_lora(base, rank, 2.0 * rank, _SEED).to(_device()).train()


def _batch(setting: Setting, n_vocab: int) -> Batch:
    generator = torch.Generator().manual_seed(_SEED)
    rows = torch.randint(0, n_vocab, (setting.batch, setting.length + 1), generator=generator).tolist()
    first = round(setting.length * (1 - setting.share))
    places = list(range(first, setting.length))
    samples = [[Sample(row[:-1], places, [row[place + 1] for place in places])] for row in rows]
    return {name: tensor.to(_device()) for name, tensor in collate(samples).items()}


def _step(model: PeftModel, method: str) -> Callable[[Batch], None]:
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-4)

    def step(batch: Batch) -> None:
        LOSSES[method](model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started
