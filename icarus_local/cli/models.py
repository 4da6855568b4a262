"""The commands `icarus-local models`: bases and adapters from the Hub, what is there, and removing them."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from icarus_local import hub, hub_place
from icarus_local.cli.bases import embedded_bases
from icarus_local.errors import IcarusError


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of the list; `name` is what `--base` or an agent is given."""

    name: str
    path: str
    n_bytes: int
    kind: str
    detail: str
    usable: bool


@click.group()
def models() -> None:
    """Bases and adapters: fetch them from the Hugging Face Hub, list them, remove them."""


@models.command()
@click.argument("names", nargs=-1, required=True, metavar="OWNER/NAME[/FILE.gguf]...")
@click.option("--revision", help="Branch, tag or commit. [default: main]")
@click.option("--local-files-only", is_flag=True, help="Ask nobody: only what is in the cache.")
def pull(names: Sequence[str], revision: str | None, local_files_only: bool) -> None:
    """Fetch files into huggingface-hub's cache and print their paths.

    Without FILE.gguf the repository's only .gguf file is meant; where it has several, they are listed. An interrupted
    transfer goes on where it stopped. HF_TOKEN, HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_OFFLINE are heeded.
    """
    for name in names:
        _pull(name, revision, local_files_only)


def _pull(name: str, revision: str | None, local_files_only: bool) -> None:
    def tell(line: str) -> None:
        click.echo(line, err=True)

    place = hub_place.parse(name)
    if place is not None and place.file is None:
        name = f"{place.repo}/{_only_file(place.repo, revision, local_files_only)}"
    try:
        path = hub.fetch(name, revision, local_files_only=local_files_only, tell=tell)
    except KeyboardInterrupt:
        tell("stopped; the same command goes on from here")
        raise
    click.echo(path)
    from icarus_local.model_file import inspect

    try:
        found = inspect(path)
    except IcarusError as error:
        raise IcarusError(f"{name} was fetched but cannot be used: {error}. It was kept") from error
    tell(f"{name}: {found.kind}, {found.detail}")


def _only_file(repo: str, revision: str | None, local_files_only: bool) -> str:
    """The name of a repository's only .gguf file."""
    files = hub.repository_ggufs(repo, revision, local_files_only=local_files_only)
    if len(files) == 1:
        return files[0][0]
    if not files:
        where = "in the cache" if local_files_only else "on the Hub"
        raise IcarusError(f"{repo} has no .gguf file {where}", "A PEFT adapter becomes one with icarus-convert adapter")
    for file, size in files:
        click.echo(f"{repo}/{file}  {'' if size is None else hub_place.size_text(size)}".rstrip(), err=True)
    raise IcarusError(f"{repo} has {len(files)} .gguf files", "Name one of these")


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def list_models(as_json: bool) -> None:
    """List bases and adapters by the names to give: embedded ones, and .gguf files in huggingface-hub's cache."""
    rows = _listed()
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=1))
        return
    if not rows:
        click.echo("nothing is here; `icarus-local models pull OWNER/NAME/FILE.gguf` fetches a model", err=True)
        return
    width = max(len(row.name) for row in rows)
    for row in rows:
        click.echo(f"{row.name:{width}}  {hub_place.size_text(row.n_bytes):>10}  {row.kind:7}  {row.detail}".rstrip())


def _listed() -> list[Listed]:
    rows = [_row(base.name, base.path) for base in embedded_bases() if base.path is not None]
    for gguf in hub.cached_ggufs():
        rows.append(_row(str(gguf.place) if gguf.current else str(gguf.path), gguf.path))
    for repo, n_bytes in sorted(hub.interrupted().items()):
        detail = "an interrupted transfer: pull it again to go on, or rm it"
        rows.append(Listed(repo, "", n_bytes, "partial", detail, usable=False))
    return rows


def _row(name: str, path: Path) -> Listed:
    from icarus_local.model_file import ModelFile, inspect

    try:
        found = inspect(path)
    except IcarusError as error:
        found = ModelFile("other", error.what, usable=False)
    return Listed(name, str(path), path.stat().st_size, found.kind, found.detail, found.usable)


@models.command()
@click.argument("name", metavar="OWNER/NAME[/FILE]")
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm(name: str, yes: bool) -> None:
    """Remove a repository, or one file of it, from huggingface-hub's cache, in all revisions.

    Content that another file of the repository shares stays.
    """
    _refuse_embedded(name)
    removal = hub.removal(name)
    for item in removal.items:
        click.echo(item)
    freed = hub_place.size_text(removal.n_bytes)
    if not yes:
        click.confirm(f"Remove this and free {freed}?", abort=True)
    try:
        removal.execute()
    except OSError as error:
        raise IcarusError(f"{error.filename} cannot be removed: {error.strerror}") from error
    click.echo(f"{freed} freed")


def _refuse_embedded(name: str) -> None:
    """An embedded base belongs to pip."""
    for base in embedded_bases():
        if base.path is not None and name in (base.name, str(base.path)):
            owners = importlib.metadata.packages_distributions().get(base.path.parent.name, [base.path.parent.name])
            raise IcarusError(f"{name} is part of an installed package", f"Remove it with: pip uninstall {owners[0]}")
