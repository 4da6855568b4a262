"""Everything about a conversion that is known before a byte is written: source, base, training, places."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from icarus_convert.base import Base, read_base
from icarus_convert.find_source import read_source
from icarus_convert.gguf_lora import as_ours, check_gguf_lora, is_gguf
from icarus_convert.mapping import Mapped, map_modules
from icarus_convert.source import Source, Training
from icarus_local.engine import adapter_file as keys
from icarus_local.engine.adapter_file import Adapter
from icarus_local.errors import AdapterError, IcarusError


@dataclass(frozen=True, eq=False)
class Prepared:
    """A conversion that can be written.

    Attributes:
        path: the adapter's folder or GGUF. base: what it is for.
        layout: "PEFT", "MLX" or "GGUF".
        training: how it was trained. assumed: whether that it was trained on the frozen cache is an assumption.
        source, mapped: what was read and where it goes; None for a GGUF LoRA, whose tensors stay as they are.
        modules: what it adapts, such as "attn_q".
        found: a GGUF LoRA as the engine will read it.
    """

    path: Path
    base: Base
    layout: str
    training: Training
    assumed: bool
    source: Source | None
    mapped: Mapped | None
    modules: list[str]
    found: Adapter | None = None


def prepare(
    path: Path, base: Path, *, adapter: str | None = None, assume_icarus: bool = False, drop_kv: bool = False
) -> Prepared:
    """Reads and checks an adapter for a base.

    Args:
        path: a folder of PEFT or MLX, or a llama.cpp LoRA in GGUF.
        base: GGUF of the base, in any quantisation, or its Hugging Face folder.
        adapter: which of several in the folder.
        assume_icarus: take an adapter that no run file calls trained on the frozen cache; the file says so.
        drop_kv: leave K and V out; what is left was not trained so, which the file says too.

    Raises:
        IcarusError: with what is wrong.
    """
    if is_gguf(path):
        return _prepare_gguf(path, base, adapter, assume_icarus, drop_kv)
    if drop_kv and base.is_dir():
        raise AdapterError(
            f"what --drop-kv costs is measured on a GGUF, and {base} is a folder", "Give the base's GGUF"
        )
    source = read_source(path, adapter, keep_kv=drop_kv)
    target = read_base(base)
    training = source.training
    _check_base(source.path, training, target)
    if not drop_kv:
        _check_training(source.path, training, assume_icarus)
    mapped = map_modules(source, target, "drop" if drop_kv else "refuse")
    if drop_kv and not mapped.dropped:
        raise AdapterError(f"{source.path} adapts neither K nor V: nothing is to be dropped", "Leave --drop-kv out")
    return Prepared(
        path=source.path,
        base=target,
        layout=source.layout,
        training=training,
        assumed=drop_kv or (assume_icarus and training.trained != keys.TRAINED_ICARUS),
        source=source,
        mapped=mapped,
        modules=sorted({tensor.split(".")[2] for tensor in mapped.pairs}),
    )


def _prepare_gguf(path: Path, base: Path, adapter: str | None, assume_icarus: bool, drop_kv: bool) -> Prepared:
    if adapter is not None:
        raise AdapterError(f"{path} holds one adapter", "Leave --adapter out")
    if base.is_dir():
        raise AdapterError(
            f"{path} is a GGUF file and {base} a folder",
            "Perhaps the two arguments are swapped: icarus-convert adapter SRC --base BASE.gguf -o OUT.gguf",
        )
    target = read_base(base)
    modules = check_gguf_lora(path, target)
    if drop_kv:
        raise AdapterError(f"{path} adapts neither K nor V: nothing is to be dropped", "Leave --drop-kv out")
    training = Training()
    _check_training(path, training, assume_icarus)
    try:
        found = as_ours(path, target, training, modules)
    except OSError as error:
        raise IcarusError(f"{path} cannot be checked: {error}", "Set TMPDIR to a place with room for it") from error
    return Prepared(path, target, "GGUF", training, True, None, None, modules, found)


def _check_base(path: Path, training: Training, base: Base) -> None:
    if training.tokenizer_sha256 and training.tokenizer_sha256 != base.tokenizer_sha256:
        raise AdapterError(
            f"{path} was trained with another vocabulary than {base.path} has", "Give the base that it was trained on"
        )
    if training.base_family_id and training.base_family_id != base.family_id:
        raise AdapterError(
            f"{path} was trained on another base (family {training.base_family_id[:12]}) than {base.path} "
            f"(family {base.family_id[:12]})",
            "Give the base that it was trained on, in any quantisation",
        )


def _check_training(path: Path, training: Training, assume_icarus: bool) -> None:
    if training.trained == keys.TRAINED_ICARUS or assume_icarus:
        return
    if training.trained == keys.TRAINED_ORDINARY:
        how = "was trained the ordinary way, as its icarus_run.json says"
    else:
        how = "was trained nobody knows how: no icarus_run.json says that it read the frozen base's cache"
    raise AdapterError(
        f"{path} {how}; its answers over a shared cache would be silently wrong",
        "Train it with icarus-train; or give --assume-icarus if you know that it was, and file and chat will say so",
    )
