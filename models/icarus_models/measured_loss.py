"""The loss of a finished run's adapter on any records, with the loss that it was trained by."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from icarus_local.chat.agents import read_agents_file
from icarus_local.errors import AdapterError
from icarus_local.text.tokenizer import Tokenizer
from icarus_models.base import load_base, with_adapter
from icarus_models.catalog import agents
from icarus_models.losses import LOSSES, mean_loss, ordinary_loss
from icarus_models.records import Renderer, dated_template, named, read_samples
from icarus_models.run_files import RUN_FILE, read_json


@dataclass(frozen=True, slots=True)
class MeasuredLoss:
    """Nats per supervised token, of the base and of the adapter, which was trained by `method`."""

    agent: str
    method: str
    base: float
    adapter: float


def measured_loss(
    adapter: Path,
    data: Path,
    base: Path,
    *,
    agents_file: Path | None,
    max_tokens: int,
    tell: Callable[[str], None],
) -> MeasuredLoss:
    """Measures both on the records of `data`, in fp32; `tell` is told what is left out.

    Raises:
        AdapterError: the folder is not one of `icarus-train`, or not for this base. IcarusError: data or base cannot be
            used.
    """
    run = read_json(adapter / RUN_FILE)
    if not isinstance(run, dict) or run.get("method") not in LOSSES:
        raise AdapterError(f"{adapter}: {RUN_FILE} does not say how it was trained", "Give a run's adapter folder")
    agent = run["recipe"]["agent"]
    with closing(Tokenizer(base)) as tokenizer:
        known = [*(read_agents_file(agents_file) if agents_file else []), *agents()]
        samples = read_samples(data, Renderer(tokenizer, dated_template(tokenizer), reversed(known), agent), max_tokens)
    if samples.left_out:
        tell(f"{data}: {named(samples.left_out)}")
    model = with_adapter(load_base(base, dtype=torch.float32), adapter)
    with model.disable_adapter():
        without = mean_loss(ordinary_loss, model, samples.samples)
    return MeasuredLoss(agent, run["method"], without, mean_loss(LOSSES[run["method"]], model, samples.samples))
