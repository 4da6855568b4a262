"""What the converter needs to know of a base: a GGUF file, or a Hugging Face folder of the same model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from icarus_local.engine.adapter_file import KEY_BASE_NAME, KEY_TYPE, Place
from icarus_local.engine.architecture import Hyperparameters, read_hyperparameters
from icarus_local.engine.identity import family_id
from icarus_local.engine.weights import lora_places
from icarus_local.errors import ModelFileError
from icarus_local.ggml.gguf import GgufFile
from icarus_local.ggml.vocabulary import vocabulary_sha256


@dataclass(frozen=True)
class Base:
    """A base model's identity, and where in it a LoRA may stand, by tensor name."""

    path: Path
    name: str
    hp: Hyperparameters
    family_id: str
    tokenizer_sha256: str
    places: dict[str, Place]


def read_base(path: Path) -> Base:
    """Reads the base; nothing of its weights but the norms.

    Raises:
        IcarusError: no base model, or of an architecture that cannot be converted for.
    """
    if path.is_dir():
        if (path / "adapter_config.json").is_file():
            raise ModelFileError(
                f"{path} is a PEFT folder, not a base",
                "Perhaps the two arguments are swapped: icarus-convert adapter SRC --base BASE.gguf -o OUT.gguf",
            )
        if not (path / "config.json").is_file():
            raise ModelFileError(
                f"{path} is a folder, and holds no model",
                "Give the base's .gguf file or Hugging Face folder with --base",
            )
        from icarus_convert.base_folder import as_gguf

        with as_gguf(path) as file:
            return _read(path, file)
    with GgufFile(path) as file:
        if file.value(KEY_TYPE) == "adapter":
            wanted = file.value(KEY_BASE_NAME)
            raise ModelFileError(
                f"{path} is an adapter{f' for {wanted}' if isinstance(wanted, str) and wanted else ''}, not a base",
                "Give the base's .gguf file with --base",
            )
        return _read(path, file)


def _read(path: Path, file: GgufFile) -> Base:
    hp = read_hyperparameters(file)
    name = file.value("general.name")
    return Base(
        path=path,
        name=name if isinstance(name, str) and name else path.stem,
        hp=hp,
        family_id=family_id(file),
        tokenizer_sha256=vocabulary_sha256(file),
        places=lora_places(hp),
    )
