"""The shipped bases and agents, and bases worth fetching, read from catalog.toml. Free of torch, for the runtime."""

from __future__ import annotations

import importlib.metadata
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from icarus_local.chat.agents import Agent
from icarus_local.errors import IcarusError

EMBEDDED = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Base:
    """A base that a Python package ships: `path` is None where it is not installed; the project's `extra` brings it."""

    name: str
    title: str
    path: Path | None
    sha256: str
    licence: str
    extra: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A base on the Hub that is known to work: `name` is OWNER/REPOSITORY/FILE.gguf."""

    name: str
    title: str
    licence: str


def agents() -> list[Agent]:
    """The shipped agents, with absolute adapter paths; whether the files are there is for the caller to check.

    Raises `IcarusError` naming the agent and the key for a catalog that is broken.
    """
    result = []
    for entry in _catalog()["agents"]:
        adapter = _package_folder() / entry["adapter"] if "adapter" in entry else None
        try:
            result.append(Agent(**{**entry, "adapter": adapter}))
        except ValidationError as error:
            raise IcarusError(f"catalog.toml, agent {entry.get('name')}: {error.errors()[0]['msg']}") from error
    return result


def bases() -> list[Base]:
    """The shipped bases, found inside the installed distributions without importing them."""
    return [
        Base(
            name=entry["name"],
            title=entry["title"],
            path=_installed_file(entry["distribution"], entry["file"]),
            sha256=entry["sha256"],
            licence=entry["licence"],
            extra=entry["extra"],
        )
        for entry in _catalog()["bases"]
    ]


def offers() -> list[Offer]:
    """Bases to fetch where there is none, the smallest first."""
    return [Offer(**entry) for entry in _catalog()["offers"]]


def embedded_base() -> Base | None:
    """The default base, or None where its package is not installed."""
    return next((base for base in bases() if base.name == EMBEDDED and base.path), None)


def _installed_file(distribution: str, name: str) -> Path | None:
    try:
        listed = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for entry in listed:
        if entry.name == name:
            path = Path(str(entry.locate()))
            return path if path.is_file() else None
    return None


def _package_folder() -> Path:
    return Path(str(files("icarus_models")))


def _catalog() -> dict[str, Any]:
    return tomllib.loads((_package_folder() / "catalog.toml").read_text(encoding="utf-8"))
