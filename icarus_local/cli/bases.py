"""Finds the base model: a path, a file on the Hugging Face Hub, or one that an installed package embeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from icarus_local import hub, hub_place
from icarus_local.errors import IcarusError

if TYPE_CHECKING:
    from icarus_models.catalog import Base


class NoBaseError(IcarusError):
    """No base was named, and none is installed."""

    exit_code = 2


def find_base(name: str | None) -> Path:
    """The base's file.

    Args:
        name: path, name of an embedded base, `OWNER/NAME/FILE.gguf` on the Hub (fetched into huggingface-hub's cache),
            or None for the embedded default.

    Raises:
        NoBaseError: None was given and no base is installed.
        IcarusError: the file cannot be had.
    """
    if name is None:
        return _default_base()
    path = Path(name).expanduser()
    if path.exists():
        return path
    for base in embedded_bases():
        if base.name == name and base.path is not None:
            return base.path
    place = hub_place.parse(name)
    if place is None or place.file is None or not place.file.endswith(".gguf"):
        raise IcarusError(
            f"there is no file {name}", "Give the path of a .gguf file, or OWNER/NAME/FILE.gguf on the Hub"
        )
    try:
        return hub.fetch(name)
    except IcarusError as error:
        raise IcarusError(f"there is no file {name} here, and {error.what}", error.hint) from error


def embedded_bases() -> list[Base]:
    """The bases that installed packages embed; none where `icarus_models` is not installed."""
    try:
        from icarus_models.catalog import bases
    except ImportError:
        return []
    return [base for base in bases() if base.path is not None]


def _default_base() -> Path:
    try:
        from icarus_models.catalog import embedded_base
    except ImportError:
        base = None
    else:
        base = embedded_base()
    if base is None or base.path is None:
        raise NoBaseError(
            "no base model was named and none is installed",
            "Install the embedded one (pip install 'icarus-local[smollm2]'), or give --base FILE.gguf",
        )
    return base.path
