"""Places on the Hugging Face Hub by name, and in words why the Hub did not give something."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from icarus_local.errors import IcarusError

MOVE_CACHE = "Free some space, or set HF_HUB_CACHE to a folder on another disk"

_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<file>.+))?")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Place:
    """A repository on the Hub, or a file of one."""

    repo: str
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.repo}/{self.file}" if self.file else self.repo


def parse(name: str) -> Place | None:
    """`OWNER/NAME` or `OWNER/NAME/FILE`; None for anything else."""
    match = _NAME.fullmatch(name)
    return Place(match["repo"], match["file"]) if match else None


def size_text(n_bytes: int) -> str:
    """Bytes as the Hub's pages write them: powers of 1000."""
    size, unit = float(n_bytes), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.95:
            break
        size, unit = size / 1000, larger
    return f"{n_bytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def cache_folder() -> Path:
    """Where huggingface-hub keeps what it fetched (HF_HUB_CACHE, else HF_HOME/hub)."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def transport_error() -> type[Exception]:
    """The root of all errors of the HTTP library under huggingface-hub: requests, httpx or httpx2 by its version."""
    from huggingface_hub.errors import HfHubHTTPError

    foreign = [
        c for c in HfHubHTTPError.__mro__ if c.__module__.partition(".")[0] not in ("huggingface_hub", "builtins")
    ]
    return next(c for c in reversed(foreign) if issubclass(c, Exception))


@contextmanager
def in_words(place: Place, revision: str | None) -> Iterator[None]:
    """Every error of huggingface-hub inside becomes an `IcarusError`."""
    from huggingface_hub.errors import HFValidationError

    try:
        yield
    except (transport_error(), OSError, HFValidationError) as error:
        reason, hint = reason_for(place, revision, error)
        raise IcarusError(f"{place} cannot be fetched from the Hub: {reason}", hint) from error


def reason_for(place: Place, revision: str | None, error: Exception) -> tuple[str, str]:
    """Why the Hub did not give something, and what to do."""
    from huggingface_hub import constants, errors

    page, token = f"{constants.ENDPOINT}/{place.repo}", "`hf auth login` or HF_TOKEN"
    known: Iterable[tuple[type[Exception], str, str]] = (
        (
            errors.OfflineModeIsEnabled,
            f"HF_HUB_OFFLINE is set, and it is not in {cache_folder()}",
            "Unset HF_HUB_OFFLINE to fetch it",
        ),
        (errors.GatedRepoError, "access must be granted first", f"Ask for it at {page}, then give a token: {token}"),
        (
            errors.RepositoryNotFoundError,
            f"there is no repository {place.repo}, or it is private",
            f"Check the name; a private one needs a token: {token}",
        ),
        (
            errors.RevisionNotFoundError,
            f"{place.repo} has no revision {revision}",
            f"Give a branch, tag or commit that {page} lists, or none for main",
        ),
        (
            errors.EntryNotFoundError,
            f"{place.repo} has no file {place.file}" + (f" in revision {revision}" if revision else ""),
            f"`icarus-local models pull {place.repo}` lists its .gguf files",
        ),
        (errors.HFValidationError, f"{place.repo} can be no repository's name", "Give OWNER/NAME/FILE.gguf"),
    )
    for kind, reason, hint in known:
        if isinstance(error, kind):
            return reason, hint
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if status in (401, 403):
            return f"it refuses the token (HTTP {status})", f"Give one that may read {page}: {token}"
        return f"it answered HTTP {status}", "Try again later: what has arrived is kept"
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"the disk of {cache_folder()} is full", f"{MOVE_CACHE}; what has arrived is kept"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", "Set HF_HUB_CACHE to a folder that can be written"
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return (
        f"the connection to {constants.ENDPOINT} failed ({said})",
        "Check it and run the command again: what has arrived is kept",
    )
