"""What a GGUF file is, by its header: a base or an adapter, and whether this program can use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from icarus_local.chat.figures import printable
from icarus_local.engine import adapter_file as keys
from icarus_local.engine.architecture import ARCHITECTURES
from icarus_local.ggml.gguf import GgufFile

_TRAINED = {
    "icarus": "trained on the frozen cache",
    "ordinary": "trained the ordinary way",
    "unknown": "nobody knows how it was trained",
}


@dataclass(frozen=True, slots=True)
class ModelFile:
    """What a file is: kind "base", "adapter" or "other", more in words, and whether this program can use it."""

    kind: str
    detail: str
    usable: bool


def inspect(path: Path) -> ModelFile:
    """What a file is, by its keys.

    Raises:
        ModelFileError: no GGUF, or a damaged one.
    """
    with GgufFile(path) as file:
        kind = file.value("general.type")
        found = _adapter(file) if kind == "adapter" else _base(file, kind)
    return ModelFile(found.kind, printable(found.detail).replace("\n", " "), found.usable)


def _base(file: GgufFile, kind: object) -> ModelFile:
    arch, n_parts = file.value("general.architecture"), file.value("split.count")
    if kind not in (None, "model") or not isinstance(arch, str):
        return ModelFile("other", f"neither a base nor an adapter (its type is {kind!r})", usable=False)
    if isinstance(n_parts, int) and n_parts > 1:
        return ModelFile("base", f"one of {n_parts} files; join them with llama-gguf-split --merge", usable=False)
    if arch not in ARCHITECTURES:
        return ModelFile("base", f"{arch}, which this version does not run", usable=False)
    return ModelFile("base", arch, usable=True)


def _adapter(file: GgufFile) -> ModelFile:
    if file.value(keys.KEY_ADAPTER_TYPE) != "lora" or keys.KEY_VERSION not in file:
        return ModelFile("adapter", "a plain LoRA; icarus-convert makes one that can be used here", usable=False)
    trained, family = file.value(keys.KEY_TRAINED), str(file.value(keys.KEY_FAMILY))[:12]
    base = file.value(keys.KEY_BASE_NAME) or "an unnamed base"
    assumed = file.value(keys.KEY_ASSUMED) is True
    usable = file.value(keys.KEY_VERSION) == keys.FORMAT_VERSION and (trained == keys.TRAINED_ICARUS or assumed)
    how = _TRAINED.get(str(trained), "nobody knows how it was trained")
    if trained != keys.TRAINED_ICARUS:
        how += ", assumed to be on the frozen cache" if assumed else ": refused on a shared cache"
    return ModelFile("adapter", f"for {base} (family {family}), {how}", usable)
