"""What the converter needs to know of the base's GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from icarus_local.engine.adapter_file import KEY_BASE_NAME, KEY_TYPE
from icarus_local.engine.identity import family_id
from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile
from icarus_local.ggml.vocabulary import vocabulary_sha256

ARCHITECTURES = ("llama",)


@dataclass(frozen=True)
class Base:
    """A base model's identity and the shapes of its 2-D weights, (n_in, n_out), by tensor name."""

    path: Path
    name: str
    architecture: str
    family_id: str
    tokenizer_sha256: str
    n_layer: int
    n_head: int
    shapes: dict[str, tuple[int, int]]


def read_base(path: Path) -> Base:
    """Reads the base; nothing of its weights but the norms.

    Raises:
        ModelFileError: no GGUF base model, or of an architecture that cannot be converted for.
    """
    if path.is_dir():
        if (path / "adapter_config.json").is_file():
            raise ModelFileError(
                f"{path} is a PEFT folder, not a base",
                "Perhaps the two arguments are swapped: icarus-convert adapter PEFT_DIR --base BASE.gguf -o OUT.gguf",
            )
        raise ModelFileError(f"{path} is a folder, not a GGUF base", "Give the base's .gguf file with --base")
    with GgufFile(path) as file:
        if file.value(KEY_TYPE) == "adapter":
            wanted = file.value(KEY_BASE_NAME)
            raise ModelFileError(
                f"{path} is an adapter{f' for {wanted}' if isinstance(wanted, str) and wanted else ''}, not a base",
                "Give the base's .gguf file with --base",
            )
        arch = file.require("general.architecture", str)
        if arch not in ARCHITECTURES:
            raise ModelFileError(
                f"{path} is of the architecture {arch!r}; adapters can be converted for {', '.join(ARCHITECTURES)}"
            )
        name = file.value("general.name")
        return Base(
            path=path,
            name=name if isinstance(name, str) and name else path.stem,
            architecture=arch,
            family_id=family_id(file),
            tokenizer_sha256=vocabulary_sha256(file),
            n_layer=file.require(f"{arch}.block_count", int),
            n_head=file.require(f"{arch}.attention.head_count", int),
            shapes={
                tensor: (info.shape[0], info.shape[1]) for tensor, info in file.tensors.items() if len(info.shape) == 2
            },
        )
