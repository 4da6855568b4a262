"""From what the command line names to one adapter: a path or a name on the Hub, PEFT's layout or MLX's."""

from __future__ import annotations

from pathlib import Path

from icarus_convert.hub_adapter import fetch_adapter, hub_place
from icarus_convert.json_file import read_json_object
from icarus_convert.lora_config import CONFIG_FILE
from icarus_convert.mlx_folder import is_mlx, read_mlx_folder
from icarus_convert.peft_folder import read_peft_folder
from icarus_convert.source import Source
from icarus_local.errors import AdapterError, IcarusError
from icarus_local.hub import Tell

# What PEFT calls the adapter that stands in the folder itself.
DEFAULT = "default"


def locate(
    name: str,
    adapter: str | None = None,
    revision: str | None = None,
    *,
    local_files_only: bool = False,
    tell: Tell = lambda _line: None,
) -> Path:
    """The local path of what was named: as it is where it exists, else from the Hub.

    Args:
        name: a path, or `OWNER/NAME`, or `OWNER/NAME/FILE.gguf`.
        adapter: which of several adapters will be wanted.
        revision, local_files_only, tell: as in `hub.fetch`.

    Raises:
        IcarusError: the Hub does not give it.
    """
    path = Path(name)
    place = None if path.exists() else hub_place(name)
    if place is None:
        return path
    try:
        return fetch_adapter(place, adapter, revision, local_files_only=local_files_only, tell=tell)
    except IcarusError as error:
        raise IcarusError(f"there is no folder {name} here, and {error.what}", error.hint) from error


def locate_base(name: str, *, local_files_only: bool = False, tell: Tell = lambda _line: None) -> Path:
    """The local path of a base: a GGUF file, or a Hugging Face folder.

    Args:
        name: a path, or `OWNER/NAME/FILE.gguf`, or `OWNER/NAME` of a model.
        local_files_only, tell: as in `hub.fetch`.

    Raises:
        IcarusError: the Hub does not give it.
    """
    place = None if Path(name).exists() else hub_place(name)
    if place is None or place.file is not None:
        return locate(name, local_files_only=local_files_only, tell=tell)
    from icarus_convert.hf_hub import fetch_model

    return fetch_model(place.repo, local_files_only=local_files_only, tell=tell)


def read_source(path: Path, adapter: str | None = None, *, keep_kv: bool = False) -> Source:
    """Reads the adapter in a folder.

    Args:
        path: a PEFT or MLX folder, or one that holds several adapters.
        adapter: which of several.
        keep_kv: leave modules of K and V in instead of refusing them.

    Raises:
        AdapterError, ModelFileError: none there, several without a choice, or one that cannot be converted exactly.
    """
    folder = choose(path, adapter)
    config = folder / CONFIG_FILE
    content = read_json_object(config)
    if is_mlx(content):
        return read_mlx_folder(folder, config, content, keep_kv=keep_kv)
    return read_peft_folder(folder, keep_kv=keep_kv)


def choose(path: Path, adapter: str | None) -> Path:
    """The folder of one adapter: `path`, or the folder in it that `adapter` names.

    Raises:
        AdapterError: no adapter there, several and none was named, or not the one that was named.
    """
    _check_is_folder(path)
    found = adapters_in(path)
    if not found:
        if (path / "config.json").is_file():
            raise AdapterError(f"{path} holds a whole model, not an adapter", f"Give the folder with {CONFIG_FILE}")
        raise AdapterError(
            f"{path} holds no {CONFIG_FILE}: it is no PEFT folder", "Give the folder that save_pretrained wrote"
        )
    if adapter is None:
        if len(found) == 1:
            return next(iter(found.values()))
        if DEFAULT in found:
            return found[DEFAULT]
        raise AdapterError(f"{path} holds several adapters: {', '.join(found)}", "Choose one with --adapter NAME")
    if adapter not in found:
        raise AdapterError(f"{path} holds no adapter {adapter!r}; it holds {', '.join(found)}", "Give one of these")
    return found[adapter]


def adapters_in(path: Path) -> dict[str, Path]:
    """Folders of adapters by name: the folder itself as `default`, as PEFT calls it, and those in it.

    Raises:
        AdapterError: it cannot be listed.
    """
    try:
        inner = sorted(entry for entry in path.iterdir() if (entry / CONFIG_FILE).is_file())
        itself = {DEFAULT: path} if (path / CONFIG_FILE).is_file() else {}
    except OSError as error:
        raise AdapterError(f"{path} cannot be read: {error.strerror}", "Check its rights") from error
    return {**{entry.name: entry for entry in inner}, **itself}


def _check_is_folder(path: Path) -> None:
    if path.is_file():
        raise AdapterError(f"{path} is a file, not a PEFT folder", f"Give the folder that holds {CONFIG_FILE}")
    if not path.is_dir():
        raise AdapterError(
            f"there is no folder {path}", "Give a folder of PEFT or MLX, a GGUF LoRA, or OWNER/NAME on the Hub"
        )
