"""What a run was made of, and in what two runs differ: only like ones may go on or be compared. No torch here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from icarus_local.errors import AdapterError, IcarusError
from icarus_models.recipe import Recipe
from icarus_models.run_files import ADAPTER, RUN_FILE, file_sha256, read_json

# Facts that earlier versions did not write: of a run that lacks one nobody can tell whether it differs.
_LATER = frozenset({"folders_sha256", "samples_sha256", "precision", "date"})
_MADE_OF = ("recipe", "data_sha256", "template_sha256", "tokenizer_sha256", *sorted(_LATER))
_CONFIGS = ("config.json", "adapter_config.json")
_WEIGHTS = (".safetensors", ".bin")


def weights_of(folder: Path) -> Path:
    """The file of weights in a PEFT folder. Raises `AdapterError` where there is none."""
    for name in ("adapter_model.safetensors", "adapter_model.bin"):
        if (folder / name).is_file():
            return folder / name
    raise AdapterError(f"{folder} holds no adapter_model.safetensors", "Give a PEFT folder")


def hashes(recipe: Recipe, base: Path) -> dict[str, str]:
    """SHA-256 of the files that decide the outcome, by what they are to the run."""
    files = {
        "train": recipe.data,
        "heldout": recipe.heldout,
        "base": base,
        "tokenizer": recipe.tokenizer_gguf or base,
        "agents": recipe.agents_file,
        "teacher": weights_of(recipe.teacher) if recipe.teacher else None,
    }
    return {name: file_sha256(path) for name, path in files.items() if path is not None and path.is_file()}


def folder_hashes(recipe: Recipe, base: Path) -> dict[str, str]:
    """The same of the folders: a Hugging Face base's and the teacher's, over their weights and how those are meant."""
    folders = {"base": base, "teacher": recipe.teacher}
    return {name: _folder_sha256(path) for name, path in folders.items() if path is not None and path.is_dir()}


def _folder_sha256(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name in _CONFIGS or path.suffix in _WEIGHTS:
            digest.update(f"{path.name} {file_sha256(path)}\n".encode())
    return digest.hexdigest()


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The facts of `now` that are others in `then`, parts of a fact as `recipe.epochs`."""
    found: list[str] = []
    for key, value in now.items():
        before = then.get(key)
        if before == value or (key in _LATER and key not in then):
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            names = [*value, *(name for name in before if name not in value)]
            found += [f"{key}.{name}" for name in names if value.get(name) != before.get(name)]
        else:
            found.append(key)
    return found


def is_finished(recipe: Recipe, base: Path) -> bool:
    """Whether a recipe's training came to its end.

    Raises:
        IcarusError: the run in its folder did, and was made by another recipe, or of other data or another base.
    """
    run = read_json(recipe.out / ADAPTER / RUN_FILE)
    if run is None or run["steps"]["stopped_by_time"]:
        return False
    changed = differences(run, {"recipe": recipe.outcome(), "data_sha256": hashes(recipe, base)})
    if changed:
        raise IcarusError(
            f"{recipe.out}: this run is finished, but was made with another {', '.join(changed)}",
            "Move the folder away to train it anew, or put back what it was made with",
        )
    return True


def apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """In what two runs' records differ besides the method; empty where their losses can be compared."""
    found = differences(one, {key: other[key] for key in _MADE_OF if key in other})
    if any(run["steps"]["stopped_by_time"] for run in (one, other)):
        found.append("steps.stopped_by_time")
    return [key for key in found if key != "recipe.method"]
