"""Finds models in the usual places of this machine: the caches of other programs, and where people keep downloads."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icarus_local import hub
from icarus_local.base_choices import BaseChoice
from icarus_local.errors import IcarusError
from icarus_local.model_file import inspect

_MAX_FOUND = 200
_MAX_ENTRIES = 50_000  # files and folders that are looked at
_MAX_S = 10.0
_MAX_MANIFEST = 1 << 20  # bytes
_LATER_PART = re.compile(r".*-(?!00001)\d{5}-of-\d{5}\.gguf", re.IGNORECASE)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_OLLAMA_MODEL = "application/vnd.ollama.image.model"


@dataclass(frozen=True, slots=True)
class Folder:
    """Where models may lie, so many levels deep; with `ollama` as its manifests name them."""

    path: Path
    depth: int
    ollama: bool = False


def usual_folders(environment: Mapping[str, str], home: Path, here: Path, platform: str = sys.platform) -> list[Folder]:
    """Where llama.cpp, Ollama, LM Studio, GPT4All, Jan and people keep models, what is most likely wanted first.

    Args:
        here: the current folder.
    """
    if platform == "win32":
        local = data = Path(environment.get("LOCALAPPDATA", home / "AppData" / "Local"))
        roaming = Path(environment.get("APPDATA", home / "AppData" / "Roaming"))
    elif platform == "darwin":
        local, data = home / "Library" / "Caches", home / "Library" / "Application Support"
        roaming = data
    else:
        local = Path(environment.get("XDG_CACHE_HOME", home / ".cache"))
        data = Path(environment.get("XDG_DATA_HOME", home / ".local" / "share"))
        roaming = Path(environment.get("XDG_CONFIG_HOME", home / ".config"))
    llama_cpp = [Path(environment["LLAMA_CACHE"])] if environment.get("LLAMA_CACHE") else []
    ollama = environment.get("OLLAMA_MODELS")
    return [
        Folder(home / "models", 5),
        Folder(home / "Models", 5),
        *(Folder(folder, 2) for folder in (*llama_cpp, local / "llama.cpp")),
        Folder(home / ".lmstudio" / "models", 4),
        Folder(home / ".cache" / "lm-studio" / "models", 4),
        Folder(Path(ollama) if ollama else home / ".ollama" / "models", 5, ollama=True),
        # Where its service runs as a user of its own.
        Folder(Path("/usr/share/ollama/.ollama/models"), 5, ollama=True),
        Folder(data / "nomic.ai" / "GPT4All", 2),
        Folder(roaming / "Jan" / "data", 6),
        Folder(data / "Jan" / "data", 6),
        Folder(home / "jan" / "models", 4),
        Folder(home / "Downloads", 3),
        # Last, for it may be a whole disk.
        Folder(here, 3),
    ]


def find_models(folders: Sequence[Folder], home: Path, max_s: float = _MAX_S) -> Iterator[BaseChoice]:
    """Models in huggingface-hub's cache and in folders, as they are found; what cannot be read is passed over.

    A file that lies in several places is given once. It ends after so many files, or seconds.
    """
    try:
        cached = hub.cached_ggufs()
    except OSError:
        cached = []
    search = _Search(max_s)
    for gguf in cached:
        if search.is_new(gguf.path):
            yield _choice(str(gguf.place), gguf.path)
    for folder in folders:
        if folder.ollama:
            named = ((f"Ollama {name}", path) for name, path in search.ollama(folder.path))
        else:
            named = ((_shown(path, home), path) for path in search.ggufs(folder))
        for name, path in named:
            if search.is_new(path):
                yield _choice(name, path)


class _Search:
    """What was seen already, and how much more may be looked at."""

    def __init__(self, max_s: float) -> None:
        self._end = time.monotonic() + max_s
        self._entries = 0
        self._folders: set[tuple[int, int]] = set()
        self._files: set[tuple[int, int]] = set()

    @property
    def over(self) -> bool:
        """Whether enough was looked at."""
        return len(self._files) >= _MAX_FOUND or self._entries >= _MAX_ENTRIES or time.monotonic() > self._end

    def is_new(self, path: Path) -> bool:
        """Whether this is a file that was not seen before under another name, and there is room for it."""
        known = _identity(path)
        if known is None or known in self._files or len(self._files) >= _MAX_FOUND:
            return False
        self._files.add(known)
        return True

    def ggufs(self, folder: Folder) -> Iterator[Path]:
        """Files that are named as models, level by level. Links are followed, and each folder is entered once."""
        level = [folder.path]
        for _ in range(folder.depth):
            deeper: list[Path] = []
            for each in level:
                for path, is_folder in self._entries_of(each):
                    if is_folder:
                        deeper.append(path)
                    elif path.suffix.lower() == ".gguf" and not _LATER_PART.fullmatch(path.name):
                        yield path
            level = deeper

    def _entries_of(self, folder: Path) -> Iterator[tuple[Path, bool]]:
        """Visible folders and regular files of a folder that was not entered before."""
        known = _identity(folder)
        if known is None or known in self._folders:
            return
        self._folders.add(known)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._entries += 1
                    if self.over:
                        return
                    if not entry.name.startswith(".") and (is_folder := _is_folder(entry)) is not None:
                        yield Path(entry.path), is_folder
        except OSError:
            return  # it may not be read, or has just gone

    def ollama(self, models: Path) -> Iterator[tuple[str, Path]]:
        """Ollama's models by name: their files are named by their content, and manifests say which is which."""
        for manifest in self._files_below(models / "manifests", 5):
            digest = _model_digest(manifest)
            if digest is None:
                continue
            name = manifest.relative_to(models / "manifests").parts[1:]
            shown = "/".join(name[1:-1] if name[0] == "library" else name[:-1]) + f":{name[-1]}"
            # Older versions wrote a colon.
            for blob in (digest.replace(":", "-"), digest):
                if (models / "blobs" / blob).is_file():
                    yield shown, models / "blobs" / blob

    def _files_below(self, folder: Path, depth: int) -> Iterator[Path]:
        for path, is_folder in self._entries_of(folder):
            if not is_folder:
                yield path
            elif depth > 1:
                yield from self._files_below(path, depth - 1)


def _is_folder(entry: os.DirEntry[str]) -> bool | None:
    """Whether it is a folder; None for what is neither that nor a regular file."""
    try:
        return True if entry.is_dir() else False if entry.is_file() else None
    except OSError:
        return None  # a link to itself


def _identity(path: Path) -> tuple[int, int] | None:
    """What is the same for all names of a file; None where there is none."""
    try:
        facts = path.stat()
    except (OSError, ValueError):
        return None
    return facts.st_dev, facts.st_ino


def _model_digest(manifest: Path) -> str | None:
    """What the manifest calls the model's file; None where it is none."""
    try:
        with manifest.open("rb") as file:
            content: Any = json.loads(file.read(_MAX_MANIFEST))
        digests = [layer["digest"] for layer in content["layers"] if layer["mediaType"] == _OLLAMA_MODEL]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return digests[0] if digests and isinstance(digests[0], str) and _DIGEST.fullmatch(digests[0]) else None


def _choice(name: str, path: Path) -> BaseChoice:
    try:
        found = inspect(path)
        n_bytes = path.stat().st_size
    except IcarusError as error:
        return BaseChoice(name, str(path), None, error.what.removeprefix(f"{path} "), usable=False)
    except OSError as error:
        return BaseChoice(name, str(path), None, f"cannot be read: {error.strerror}", usable=False)
    if found.kind == "adapter":
        return BaseChoice(name, str(path), n_bytes, f"an adapter, no base: {found.detail}", usable=False)
    return BaseChoice(name, str(path), n_bytes, found.detail, found.usable and found.kind == "base")


def _shown(path: Path, home: Path) -> str:
    try:
        return f"~{os.sep}{path.relative_to(home)}"
    except ValueError:
        return str(path)
