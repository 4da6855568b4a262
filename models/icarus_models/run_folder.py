"""A run's folder: what it was started with, where it may go on, and the adapter with its record and card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peft import PeftModel
from peft.utils import get_peft_model_state_dict

from icarus_local.engine.identity import family_id
from icarus_local.errors import IcarusError
from icarus_local.ggml.gguf import GgufFile
from icarus_models.model_card import model_card
from icarus_models.recipe import TARGET_MODULES
from icarus_models.run_files import (
    ADAPTER,
    RUN_FILE,
    RUN_FORMAT,
    file_sha256,
    last_checkpoint,
    read_json,
    versions,
    write_json,
    write_text,
)
from icarus_models.run_record import differences, weights_of

_PLAN = "plan.json"


def checkpoint_of(out: Path, resume: bool) -> str | None:
    """The checkpoint to go on from; None for a run that begins.

    Raises:
        IcarusError: the run is finished, or there is one and `resume` does not say so, or none and it does.
    """
    finished = read_json(out / ADAPTER / RUN_FILE)
    if finished is not None and not (resume and finished["steps"]["stopped_by_time"]):
        raise IcarusError(f"{out / ADAPTER}: this run is finished; choose another folder")
    found = last_checkpoint(out)
    if resume and not found:
        raise IcarusError(f"{out}: holds no checkpoint to go on from; start without --resume")
    if found and not resume:
        raise IcarusError(f"{out}: holds an unfinished run; go on with --resume, or choose another folder")
    return str(found) if found else None


def check_plan(out: Path, plan: dict[str, Any], resumed: bool) -> None:
    """Keeps what the run was started with, and refuses (IcarusError) to resume it with anything else."""
    path = out / _PLAN
    if resumed:
        started = read_json(path)
        if not isinstance(started, dict):
            raise IcarusError(f"{path}: cannot tell what the run was started with", "Start anew in another folder")
        changed = differences(started, plan)
        if changed:
            raise IcarusError(
                f"{out}: was started with another {', '.join(changed)}; resume with the same, or start anew"
            )
    else:
        out.mkdir(parents=True, exist_ok=True)
        write_json(path, plan)


def family_of(tokenizer_file: Path) -> str:
    """The family id of the GGUF that the agent will run on: the base itself, or the one beside a folder."""
    with GgufFile(tokenizer_file) as file:
        return str(family_id(file))


def finish(model: PeftModel, adapter: Path, method: str, facts: dict[str, Any]) -> None:
    """Writes the adapter, its card, and last its record: `facts` and what is known here.

    Raises:
        IcarusError: an ICaRus adapter holds what no agent may adapt.
    """
    model.save_pretrained(str(adapter))
    config = adapter / "adapter_config.json"
    write_json(config, {**read_json(config), "base_model_name_or_path": facts["base"]})
    state = get_peft_model_state_dict(model)
    stray = [name for name in state if not any(f".{module}." in name for module in TARGET_MODULES)]
    if stray and method == "icarus":
        raise IcarusError(f"{adapter}: holds {stray[0]}, which no ICaRus agent may adapt")
    whole = {
        "format": RUN_FORMAT,
        "method": method,
        **facts,
        "adapter_sha256": file_sha256(weights_of(adapter)),
        "versions": versions(),
    }
    write_text(adapter / "README.md", model_card(whole))
    write_json(adapter / RUN_FILE, whole)
