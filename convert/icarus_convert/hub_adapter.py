"""Adapters on the Hugging Face Hub: only the files of the wanted one, into huggingface-hub's cache."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from icarus_convert.lora_config import CONFIG_FILE
from icarus_local import hub
from icarus_local.errors import IcarusError
from icarus_local.hub_place import Place, parse

_FILES = (
    CONFIG_FILE,
    "adapter_model.safetensors",
    "adapter_model-*.safetensors",
    "adapter_model.safetensors.index.json",
    "adapters.safetensors",
    "icarus_run.json",
)
# Fetched only where there is nothing better.
_PICKLED = ("adapter_model.bin", "adapter_model-*.bin", "adapter_model.bin.index.json")


def hub_place(name: str) -> Place | None:
    """The repository, or .gguf file of one, that a name means; None for a name of another shape."""
    place = parse(name)
    if place is None or place.repo.startswith((".", "-")) or (place.file and not place.file.endswith(".gguf")):
        return None
    return place


def fetch_adapter(
    place: Place,
    adapter: str | None = None,
    revision: str | None = None,
    *,
    local_files_only: bool = False,
    tell: hub.Tell = lambda _line: None,
) -> Path:
    """The local folder of a repository's adapter, or the local copy of a file.

    Every `adapter_config.json` comes, so that adapters can be listed; weights only of `adapter`, or the outermost one.
    Without an answer from the Hub the copy in the cache serves.

    Raises:
        IcarusError: no such repository or revision; no access, connection or space; not in the cache.
    """
    if place.file is not None:
        return hub.fetch(str(place), revision, local_files_only=local_files_only, tell=tell)

    def chosen(files: list[str]) -> list[str]:
        names = wanted(files, adapter)
        if not names:
            raise IcarusError(
                f"{place} on the Hub holds no {CONFIG_FILE}, so no adapter", "Give a repository that PEFT or MLX wrote"
            )
        tell(f"{place}: {', '.join(names)}")
        return names

    return hub.fetch_files(place.repo, chosen, revision, local_files_only=local_files_only, tell=tell)


def wanted(files: list[str], adapter: str | None) -> list[str]:
    """Of a repository's files those of one adapter, and the configurations of all."""
    prefix = f"{adapter}/" if adapter and adapter != "default" else ""

    def matching(patterns: tuple[str, ...]) -> list[str]:
        inside = [name for name in files if PurePosixPath(prefix + PurePosixPath(name).name) == PurePosixPath(name)]
        return [name for name in inside if any(fnmatchcase(PurePosixPath(name).name, p) for p in patterns)]

    chosen = matching(_FILES)
    if not any(name.endswith(".safetensors") for name in chosen):
        chosen += matching(_PICKLED)
    # One folder deep, as PEFT writes them.
    others = [name for name in files if PurePosixPath(name).name == CONFIG_FILE and name.count("/") <= 1]
    return sorted({*chosen, *others})
