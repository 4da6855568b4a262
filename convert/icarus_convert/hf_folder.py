"""A Hugging Face model folder, read and checked: its configuration and where each of its tensors lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icarus_convert.hf_safetensors import StoredTensor, read_header
from icarus_convert.json_file import read_json_object
from icarus_local.errors import ModelFileError

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
# What of a repository on the Hub is needed.
PATTERNS = (
    *("config.json", "generation_config.json", "model*.safetensors", INDEX_FILE),
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"),
    *("chat_template.jinja", "chat_template.json", "merges.txt", "vocab.json"),
)
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class HfFolder:
    """What the folder holds.

    Attributes:
        name: the model's, for people.
        config, generation: `config.json` and `generation_config.json` (empty where there is none).
        tensors: by name.
    """

    path: Path
    name: str
    config: dict[str, Any]
    generation: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_folder(path: Path, name: str) -> HfFolder:
    """Reads configuration, index and the header of every shard.

    Raises:
        ModelFileError: not a model folder; shards missing, damaged, or not as the index says; a quantised or pickled
            model.
    """
    _check_is_folder(path)
    config = read_json_object(path / CONFIG_FILE)
    _refuse_quantised(path, config)
    generation = path / "generation_config.json"
    return HfFolder(
        path=path,
        name=name,
        config=config,
        generation=read_json_object(generation) if generation.is_file() else {},
        tensors=_read_tensors(path),
    )


def _check_is_folder(path: Path) -> None:
    if path.is_file():
        raise ModelFileError(
            f"{path} is a file, not a Hugging Face model folder", f"Give the folder that holds {CONFIG_FILE}"
        )
    if not path.is_dir():
        raise ModelFileError(f"there is no folder {path}", "Give a model folder, or OWNER/NAME of a model on the Hub")
    if (path / "adapter_config.json").is_file():
        raise ModelFileError(
            f"{path} is a PEFT adapter, not a whole model", "icarus-convert adapter converts it, for its base's GGUF"
        )
    if not (path / CONFIG_FILE).is_file():
        raise ModelFileError(f"{path} holds no {CONFIG_FILE}: it is no Hugging Face model folder")


def _refuse_quantised(path: Path, config: dict[str, Any]) -> None:
    settings = config.get("quantization_config") or config.get("compression_config")
    if settings:
        method = settings.get("quant_method") if isinstance(settings, dict) else None
        raise ModelFileError(
            f"{path} is quantised already ({method or 'by an unknown method'})",
            "Convert the model that it was made from: what was rounded once should not be rounded again",
        )


def _read_tensors(path: Path) -> dict[str, StoredTensor]:
    index = path / INDEX_FILE
    if index.is_file():
        return _read_shards(path, index)
    single = path / "model.safetensors"
    if single.is_file():
        return read_header(single)
    shards = sorted(path.glob("*.safetensors"))
    if shards:
        raise ModelFileError(f"{path} holds {shards[0].name} and no {INDEX_FILE}", "Fetch the model again, whole")
    if any(file for pattern in _PICKLES for file in path.glob(pattern)):
        raise ModelFileError(
            f"{path} holds its weights as Python pickles, which may run any code when they are read",
            "Save it with transformers' save_pretrained, which writes safetensors",
        )
    raise ModelFileError(f"{path} holds no weights (model.safetensors)", "Fetch the model again, whole")


def _read_shards(path: Path, index: Path) -> dict[str, StoredTensor]:
    places = read_json_object(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelFileError(f"{index} has no weight_map", "Fetch the model again, whole")
    for tensor, file in places.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise ModelFileError(f"{index} places {tensor} in {file!r}, which is no file of this folder")
    tensors: dict[str, StoredTensor] = {}
    for file in sorted(set(places.values())):
        if not (path / file).is_file():
            raise ModelFileError(f"{path} lacks the shard {file}, which {index.name} names", "Fetch the model again")
        for name, tensor in read_header(path / file).items():
            if places.get(name) != file:
                raise ModelFileError(f"{path / file} holds {name}, which {index.name} does not place there")
            tensors[name] = tensor
    missing = next((name for name in places if name not in tensors), None)
    if missing is not None:
        raise ModelFileError(f"{path / places[missing]} lacks the tensor {missing}, which {index.name} places there")
    return tensors
