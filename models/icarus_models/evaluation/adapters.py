"""An adapter as a system needs it: a GGUF file, or the folder of a run, converted for the evaluation's base."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from icarus_convert.base import read_base
from icarus_convert.find_source import read_source
from icarus_convert.mapping import map_modules
from icarus_convert.write import convert_adapter, write_adapter
from icarus_local.engine.adapter_file import (
    KEY_ASSUMED,
    KEY_TRAINED,
    TRAINED_ICARUS,
    TRAINED_ORDINARY,
    Adapter,
    read_adapter,
)
from icarus_local.errors import AdapterError
from icarus_local.ggml.gguf import GgufFile
from icarus_models.evaluation.systems import SystemName
from icarus_models.run_files import RUN_FILE

_OUTTYPE = "f16"  # as the catalog's


@dataclass(frozen=True, slots=True)
class Trained:
    """What was given as an adapter.

    Attributes:
        path: a GGUF file, or a PEFT folder. agent: whose it is. sha256: of its weights.
    """

    path: Path
    agent: str
    sha256: str


def trained(path: Path) -> Trained:
    """What an adapter is, for a label and a cache.

    Raises:
        AdapterError: there is none.
    """
    weights = path / "adapter_model.safetensors" if path.is_dir() else path
    try:
        with weights.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise AdapterError(f"{weights} cannot be read: {error.strerror}", "Give a run's adapter folder") from error
    return Trained(path, _agent(path), digest)


def _agent(path: Path) -> str:
    if not path.is_dir():
        return path.stem
    try:
        run = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))
        return str(run["recipe"]["agent"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AdapterError(
            f"{path}: {RUN_FILE} does not say whose it is: {error}", "Train it with icarus-train"
        ) from error


@contextmanager
def ready(system: SystemName, of: Trained | None, base: Path) -> Iterator[Adapter | Path | None]:
    """The adapter as `systems.opened` takes it; a folder is converted into a temporary file.

    Raises:
        IcarusError: it was trained in another way than the system runs it, or does not fit the base.
    """
    if of is None:
        yield None
        return
    with TemporaryDirectory(prefix="icarus-eval-") as directory:
        file = Path(directory) / f"{of.agent}.gguf" if of.path.is_dir() else of.path
        if system == "icarus":
            if of.path.is_dir():
                convert_adapter(of.path, base, file, outtype=_OUTTYPE)
            yield read_adapter(file)
        else:
            if of.path.is_dir():
                ordinary_gguf(of.path, base, file)
            else:
                _check_ordinary(file)
            yield file


def _check_ordinary(file: Path) -> None:
    """Refuses a GGUF LoRA of ICaRus, for which llama.cpp computes another function; others' files say nothing."""
    with GgufFile(file) as opened:
        trained_as, assumed = opened.value(KEY_TRAINED), opened.value(KEY_ASSUMED)
    if trained_as == TRAINED_ICARUS or assumed:
        how = "is assumed to be" if assumed else "is"
        raise AdapterError(
            f"{file} {how} an ICaRus adapter, and the system lora is an ordinary LoRA",
            "Give an ordinary one, or --system icarus",
        )


def ordinary_gguf(folder: Path, base: Path, out: Path) -> None:
    """Writes an ordinary LoRA's folder as GGUF for llama.cpp, K and V included, marked as what it is.

    Raises:
        IcarusError: its run file does not call it ordinary, or it does not fit.
    """
    source, target = read_source(folder, keep_kv=True), read_base(base)
    if source.training.trained != TRAINED_ORDINARY:
        raise AdapterError(
            f"{folder}: trained is {source.training.trained}, and the system lora is an ordinary LoRA",
            "Give one that `icarus-train run --method lora` made, or another system",
        )
    pairs = map_modules(source, target, "keep").pairs
    write_adapter(out, pairs, target, source.training, name=out.stem, outtype=_OUTTYPE)
