"""A llama.cpp LoRA in GGUF: checked against a base, and marked as ours; its tensors stay as they are."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from icarus_convert.base import Base
from icarus_convert.gguf_keys import KeyValue, add_keys
from icarus_convert.source import ONLY_PLAIN, Training
from icarus_local.engine import adapter_file as keys
from icarus_local.engine.adapter_file import KEY_TYPE, Adapter, check_fits, read_adapter, refusal
from icarus_local.errors import AdapterError, ModelFileError
from icarus_local.ggml.gguf import GgufFile

_MAX_LISTED = 6


def is_gguf(path: Path) -> bool:
    """Whether a path is a file that begins as GGUF does.

    Raises:
        AdapterError: it is a file that cannot be read.
    """
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise AdapterError(f"{path} cannot be read: {error.strerror}", "Check its rights") from error


def check_gguf_lora(path: Path, base: Base) -> list[str]:
    """The modules that a LoRA adapts, such as "attn_q"; matrices and shapes are checked once it is marked.

    Raises:
        AdapterError: no LoRA, one of ours already, of another architecture, or on anything that may not be shared.
    """
    with GgufFile(path) as file:
        if file.value(KEY_TYPE) != "adapter":
            raise AdapterError(
                f"{path} is a base model, not an adapter",
                "Perhaps the two arguments are swapped: icarus-convert adapter SRC --base BASE.gguf -o OUT.gguf",
            )
        if keys.KEY_VERSION in file:
            raise AdapterError(
                f"{path} has been converted already", "Use it as it is; icarus-convert inspect says what it is for"
            )
        architecture = file.value("general.architecture")
        if architecture != base.hp.name:
            raise AdapterError(
                f"{path} is for the architecture {architecture!r}, and {base.path} is {base.hp.name}",
                "Give the base that it was trained on with --base",
            )
        names = {name.removesuffix(".lora_a").removesuffix(".lora_b") for name in file.tensors}
    wrong = sorted(name for name in names if refusal(name) is not None)
    if wrong:
        more = f" and {len(wrong) - _MAX_LISTED} more" if len(wrong) > _MAX_LISTED else ""
        raise AdapterError(
            f"{path} adapts {len(wrong)} weights that no agent may change: {', '.join(wrong[:_MAX_LISTED])}{more}; "
            f"of the first, {refusal(wrong[0])}",
            f"{ONLY_PLAIN}; --drop-kv needs the PEFT folder that the file was made of",
        )
    return sorted({name.split(".")[2] for name in names})


def as_ours(path: Path, base: Base, training: Training, modules: list[str]) -> Adapter:
    """The LoRA as the engine would read it once it is marked; nothing is kept.

    Raises:
        AdapterError: a matrix or shape that does not fit, values that are not finite. OSError: no temporary file.
    """
    with tempfile.TemporaryDirectory(prefix="icarus-convert-") as directory:
        marked = Path(directory) / "marked.gguf"
        try:
            mark(path, marked, base, training=training, modules=modules, name=None)
            adapter = read_adapter(marked)
            check_fits(adapter, base.family_id, base.places)
        except ModelFileError as error:
            raise AdapterError(error.what.replace(str(marked), str(path)), error.hint) from error
    return replace(adapter, path=path)


def mark(path: Path, target: Path, base: Base, *, training: Training, modules: list[str], name: str | None) -> None:
    """Writes `target`: the LoRA with our keys.

    Raises:
        ModelFileError: damaged. OSError: it cannot be written.
    """
    values: dict[str, KeyValue] = {
        keys.KEY_VERSION: keys.FORMAT_VERSION,
        keys.KEY_FAMILY: base.family_id,
        keys.KEY_BASE_NAME: base.name,
        keys.KEY_TRAINED: training.trained,
        keys.KEY_ASSUMED: True,
        keys.KEY_MODULES: modules,
    }
    if name is not None:
        values[keys.KEY_NAME] = name
    add_keys(path, target, values)
