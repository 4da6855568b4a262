"""The Hugging Face Hub: brings files into huggingface-hub's cache, says what lies there, and removes it.

Nothing else touches huggingface_hub, and it loads on first use. Transfers go over its `http_get` into
`blobs/ETAG.incomplete`, and it links the whole blob: left to itself it deletes what an interrupted one had brought.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from icarus_local.errors import IcarusError
from icarus_local.hub_place import (
    MOVE_CACHE,
    Place,
    cache_folder,
    in_words,
    parse,
    reason_for,
    size_text,
    transport_error,
)

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo, CachedRepoInfo, HFCacheInfo, HfFileMetadata

_ETAG = re.compile(r"[\w-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CachedGguf:
    """A .gguf file in the cache.

    Attributes:
        place: its repository and its name in that.
        path: where it lies.
        n_bytes: its size.
        commit: the revision's, in hexadecimal.
        current: `fetch` gives this file for its name without a revision.
    """

    place: Place
    path: Path
    n_bytes: int
    commit: str
    current: bool


@dataclass(frozen=True, slots=True)
class Removal:
    """What would go from the cache, in words, the bytes that this frees, and how it is done."""

    items: list[str]
    n_bytes: int
    execute: Callable[[], None]


def fetch(
    name: str, revision: str | None = None, *, local_files_only: bool = False, tell: Tell = lambda _line: None
) -> Path:
    """The local copy of a file, fetched where the cache lacks the Hub's current one; an interrupted transfer goes on.

    Without an answer from the Hub the copy in the cache serves.

    Args:
        name: `OWNER/NAME/FILE.gguf`.
        revision: branch, tag or commit; None is `main`.
        local_files_only: ask nobody.
        tell: is given a line before a transfer, and where the Hub could not be asked.

    Raises:
        IcarusError: no such name, file, repository or revision; no access, connection or space; damaged on the way.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, RevisionNotFoundError

    place = parse(name)
    if place is None or place.file is None or not place.file.endswith(".gguf"):
        raise IcarusError(f"{name} names no model file on the Hub", "Give OWNER/NAME/FILE.gguf")
    with in_words(place, revision):
        cached = cached_copy(place, revision)
        if local_files_only:
            return cached or _not_cached(place)
        url = hf_hub_url(place.repo, place.file, revision=revision)
        try:
            remote = get_hf_file_metadata(url)
        except (EntryNotFoundError, RevisionNotFoundError):
            raise
        except (transport_error(), OSError) as error:
            if cached is None:
                raise
            tell(f"{place}: the cached copy, for {reason_for(place, revision, error)[0]}")
            return cached
        if cached_copy(place, remote.commit_hash) is None:
            transfer(place, url, remote, tell)
        return Path(hf_hub_download(place.repo, place.file, revision=revision))


def fetch_files(
    repo: str,
    choose: Callable[[list[str]], list[str]],
    revision: str | None = None,
    *,
    local_files_only: bool = False,
    tell: Tell = lambda _line: None,
) -> Path:
    """The local folder of some files of a repository; interrupted transfers of weights go on.

    Without an answer from the Hub what is in the cache serves.

    Args:
        repo: `OWNER/NAME`.
        choose: of all names of files there those that are wanted; may raise IcarusError.
        revision, local_files_only, tell: as of `fetch`.

    Raises:
        IcarusError: no such repository or revision; no access, connection or space; nothing in the cache.
    """
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    with in_words(Place(repo), revision):
        if local_files_only:
            return _cached_folder(repo, revision, "the Hub may not be asked")
        try:
            info = HfApi().model_info(repo, revision=revision)
        except HfHubHTTPError:
            raise
        except (transport_error(), OSError) as error:
            why = reason_for(Place(repo), revision, error)[0]
            folder = _cached_folder(repo, revision, why)
            tell(f"{repo}: the cached copy, for {why}")
            return folder
        folder = _repository_folder(repo) / "snapshots" / str(info.sha)
        for name in choose([file.rfilename for file in info.siblings or []]):
            place = Place(repo, name)
            if name.endswith((".safetensors", ".bin")) and cached_copy(place, info.sha) is None:
                url = hf_hub_url(repo, name, revision=info.sha)
                transfer(place, url, get_hf_file_metadata(url), tell)
            local = Path(hf_hub_download(repo, name, revision=revision))
            folder = local.parents[name.count("/")]
        return folder


def _cached_folder(repo: str, revision: str | None, why: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError as error:
        raise IcarusError(
            f"{repo} is not in {cache_folder()}, and {why}", "Fetch it while the Hub can be asked"
        ) from error


def repository_ggufs(
    repo: str, revision: str | None = None, *, local_files_only: bool = False
) -> list[tuple[str, int | None]]:
    """The .gguf files of a repository with their sizes, by name; only cached ones for `local_files_only`.

    Raises:
        IcarusError: no such repository or revision, no access or no connection.
    """
    from huggingface_hub import HfApi

    if local_files_only:
        return [(str(gguf.place.file), gguf.n_bytes) for gguf in cached_ggufs() if gguf.place.repo == repo]
    with in_words(Place(repo), revision):
        siblings = HfApi().model_info(repo, revision=revision, files_metadata=True).siblings or []
    return sorted((file.rfilename, file.size) for file in siblings if file.rfilename.endswith(".gguf"))


def cached_ggufs() -> list[CachedGguf]:
    """The .gguf files in the cache, by name; one that several revisions share is given once, current ones first."""
    found: dict[tuple[Place, Path], CachedGguf] = {}
    for repo in _scan().repos if cache_folder().is_dir() else ():
        for revision in sorted(
            repo.revisions, key=lambda revision: ("main" not in revision.refs, revision.commit_hash)
        ):
            for file in revision.files if repo.repo_type == "model" else ():
                place = Place(repo.repo_id, file.file_path.relative_to(revision.snapshot_path).as_posix())
                if file.file_name.endswith(".gguf") and (place, file.blob_path) not in found:
                    found[place, file.blob_path] = CachedGguf(
                        place, file.file_path, file.size_on_disk, revision.commit_hash, "main" in revision.refs
                    )
    return sorted(found.values(), key=lambda gguf: (str(gguf.place), not gguf.current, gguf.commit))


def interrupted() -> dict[str, int]:
    """Bytes of interrupted transfers, by repository."""
    sizes: dict[str, int] = {}
    for folder in cache_folder().glob("models--*--*"):
        if n_bytes := sum(_size(partial) for partial in _partials(folder)):
            sizes[folder.name.removeprefix("models--").replace("--", "/")] = n_bytes
    return sizes


def removal(name: str) -> Removal:
    """What removing a repository, or one file of it in all revisions, would do; nothing is done yet.

    Raises:
        IcarusError: it is not in the cache.
    """
    place = parse(name)
    folder = None if place is None else _repository_folder(place.repo)
    if place is None or folder is None or not folder.is_dir():
        raise _nothing_there(name)
    info = _scan()
    repo = next((repo for repo in info.repos if repo.repo_path.name == folder.name), None)
    if place.file is None:
        return _whole_repository(info, repo, folder)
    return _one_file(info, repo, place)


def _whole_repository(info: HFCacheInfo, repo: CachedRepoInfo | None, folder: Path) -> Removal:
    partials = {path: _size(path) for path in _partials(folder)}
    items = [f"interrupted transfer, {size_text(size)}" for size in partials.values()]
    if repo is None or not repo.revisions:
        # An interrupted first transfer leaves no revision that huggingface-hub would know.
        n_bytes = sum(_size(path) for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        return Removal(items or [str(folder)], n_bytes, lambda: shutil.rmtree(folder))
    strategy = info.delete_revisions(*(revision.commit_hash for revision in repo.revisions))
    for revision in sorted(repo.revisions, key=lambda revision: revision.commit_hash):
        for file in sorted(revision.files, key=lambda file: file.file_path):
            name = file.file_path.relative_to(revision.snapshot_path).as_posix()
            items.append(f"{repo.repo_id}/{name}, revision {revision.commit_hash[:8]}, {size_text(file.size_on_disk)}")
    return Removal(items, strategy.expected_freed_size + sum(partials.values()), strategy.execute)


def _one_file(info: HFCacheInfo, repo: CachedRepoInfo | None, place: Place) -> Removal:
    whole, links, items = [], set[Path](), []
    going: set[CachedFileInfo] = set()
    for revision in repo.revisions if repo else ():
        matching = {file for file in revision.files if file.file_path == revision.snapshot_path / str(place.file)}
        if not matching:
            continue
        going |= matching
        items += [f"{place}, revision {revision.commit_hash[:8]}, {size_text(f.size_on_disk)}" for f in matching]
        if matching == revision.files:
            whole.append(revision.commit_hash)
        else:
            links |= {file.file_path for file in matching}
    if repo is None or not going:
        raise _nothing_there(str(place))
    # The same content under another name, or in a revision that stays, needs its blob.
    kept = {f.blob_path for revision in repo.revisions for f in revision.files if f not in going}
    blobs = {file.blob_path: file.size_on_disk for file in going if file.blob_path not in kept}
    strategy = info.delete_revisions(*whole)
    if links:
        strategy = replace(strategy, blobs=strategy.blobs | (blobs.keys() - links))

    def execute() -> None:
        for link in links:
            link.unlink(missing_ok=True)
        strategy.execute()

    return Removal(sorted(items), sum(blobs.values()), execute)


def _nothing_there(name: str) -> IcarusError:
    return IcarusError(f"there is no {name} in {cache_folder()}", "`icarus-local models list` names what is there")


def _scan() -> HFCacheInfo:
    from huggingface_hub import scan_cache_dir

    return scan_cache_dir()


def _repository_folder(repo: str) -> Path:
    return cache_folder() / f"models--{repo.replace('/', '--')}"


def _partials(folder: Path) -> list[Path]:
    return sorted((folder / "blobs").glob("*.incomplete"))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def cached_copy(place: Place, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(place.repo, str(place.file), revision=revision)
    return Path(path) if isinstance(path, str) else None


def _not_cached(place: Place) -> Path:
    raise IcarusError(
        f"{place} is not in {cache_folder()}, and the Hub may not be asked", "Leave --local-files-only out to fetch it"
    )


def transfer(place: Place, url: str, remote: HfFileMetadata, tell: Tell) -> None:
    """Brings the file into the cache as a blob, which `hf_hub_download` then links instead of fetching it."""
    from huggingface_hub import constants
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    etag = remote.etag or ""
    if remote.commit_hash is None or not _ETAG.fullmatch(etag):
        raise IcarusError(
            f"{place} cannot be fetched: what answers at {constants.ENDPOINT} is no Hub",
            "Check HF_ENDPOINT and the proxy",
        )
    folder = _repository_folder(place.repo)
    blob = folder / "blobs" / etag
    partial = blob.with_name(f"{etag}.incomplete")
    # The lock that huggingface-hub takes for this blob.
    lock = cache_folder() / ".locks" / folder.name / f"{etag}.lock"
    for path in (blob, lock):
        path.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        if blob.exists() or remote.size is None:
            return
        if _size(partial) > remote.size:
            partial.unlink()
        missing, free = remote.size - _size(partial), shutil.disk_usage(blob.parent).free
        if missing > free:
            raise IcarusError(
                f"{place} needs {size_text(missing)} and {size_text(free)} are free in {cache_folder()}", MOVE_CACHE
            )
        if remote.size > constants.MAX_HTTP_DOWNLOAD_SIZE:
            return  # The Hub gives a file of that size only to huggingface-hub's own transfers.
        gone_on = f", {size_text(missing)} of them missing" if missing < remote.size else ""
        tell(f"{place}: {size_text(remote.size)}{gone_on}")
        _receive(url, partial, remote.size, Path(str(place.file)).name)
        _check_sha256(place, partial, etag)
        partial.replace(blob)


def _receive(url: str, partial: Path, size: int, shown: str) -> None:
    """Appends to `partial` until it is whole; tries again for as long as every try brings something."""
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    while True:
        before = _size(partial)
        try:
            with partial.open("ab") as file:
                http_get(url, file, resume_size=before, headers=headers, expected_size=size, displayed_filename=shown)
        except HfHubHTTPError:
            raise
        except transport_error():
            if _size(partial) <= before:
                raise
        else:
            return


def _check_sha256(place: Place, partial: Path, etag: str) -> None:
    """A large file's ETag is its SHA-256, which shows whether the pieces of several transfers are one file."""
    if not _SHA256.fullmatch(etag):
        return
    with partial.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != etag:
        partial.unlink()
        raise IcarusError(
            f"{place} was damaged on the way: its SHA-256 is {digest[:12]}…, the Hub's {etag[:12]}…",
            "Run the command again: nothing of it was kept",
        )
