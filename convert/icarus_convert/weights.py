"""The tensors of an adapter's folder: one safetensors file, shards with an index, or torch's zip files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from icarus_convert.json_file import read_json_object
from icarus_convert.safetensors_file import read_safetensors
from icarus_convert.source import Matrix
from icarus_convert.torch_zip import read_torch_zip
from icarus_local.errors import AdapterError

WEIGHTS_FILE = "adapter_model.safetensors"
PICKLED_FILE = "adapter_model.bin"
_READERS: dict[str, Callable[[Path], dict[str, Matrix]]] = {
    WEIGHTS_FILE: read_safetensors,
    PICKLED_FILE: read_torch_zip,
}


def read_weights(folder: Path) -> tuple[dict[str, Matrix], list[Path]]:
    """All tensors as float32 by name, and the files that they came from.

    Raises:
        AdapterError, ModelFileError: none there, a shard missing or not as its index says, damaged, or too large.
    """
    for name, reader in _READERS.items():
        path, index = folder / name, folder / f"{name}.index.json"
        if path.is_file():
            return reader(path), [path]
        if index.is_file():
            return _read_shards(index, reader)
    raise AdapterError(f"{folder} holds no {WEIGHTS_FILE} and no {PICKLED_FILE}", "Fetch or save it again")


def _read_shards(index: Path, reader: Callable[[Path], dict[str, Matrix]]) -> tuple[dict[str, Matrix], list[Path]]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise AdapterError(f"{index} holds no weight_map", "Fetch or save the adapter again")
    shards: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        # A name with a folder in it could lead anywhere.
        if not isinstance(shard, str) or shard != Path(shard).name or shard in ("", "..") or "\0" in shard:
            raise AdapterError(f"{index} names the shard {shard!r}, which is no file beside it", "Fetch it again")
        shards.setdefault(shard, set()).add(tensor)
    missing = sorted(shard for shard in shards if not (index.parent / shard).is_file())
    if missing:
        raise AdapterError(
            f"{index} names {len(shards)} shards, and {len(missing)} are missing: {', '.join(missing[:6])}",
            "Fetch the adapter again",
        )
    tensors: dict[str, Matrix] = {}
    for shard, expected in sorted(shards.items()):
        found = reader(index.parent / shard)
        if found.keys() != expected:
            odd = min(found.keys() ^ expected)
            raise AdapterError(
                f"{index.parent / shard} and {index.name} disagree about the tensor {odd}", "Fetch the adapter again"
            )
        tensors |= found
    return tensors, [index.parent / shard for shard in sorted(shards)]
