"""Models on the Hugging Face Hub: only the files that a conversion needs, into huggingface-hub's cache."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from icarus_convert.hf_folder import CONFIG_FILE, PATTERNS
from icarus_local import hub
from icarus_local.errors import IcarusError
from icarus_local.hub_place import parse


def hub_repository(name: str) -> str | None:
    """The repository that a name means; None for a name of another shape."""
    place = parse(name)
    if place is None or place.file is not None or place.repo.startswith((".", "-")):
        return None
    return place.repo


def fetch_model(
    repo: str, revision: str | None = None, *, local_files_only: bool = False, tell: hub.Tell = lambda _line: None
) -> Path:
    """The local folder of a model.

    Raises:
        IcarusError: as `hub.fetch_files`, and for a repository that holds no model of transformers.
    """

    def wanted(names: list[str]) -> list[str]:
        if CONFIG_FILE not in names:
            raise IcarusError(
                f"{repo} is no model for transformers: it has no {CONFIG_FILE}", "Give another repository"
            )
        return [name for name in names if "/" not in name and any(fnmatchcase(name, p) for p in PATTERNS)]

    return hub.fetch_files(repo, wanted, revision, local_files_only=local_files_only, tell=tell)
