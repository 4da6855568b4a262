"""What the commands share: the embedded base, and lines that are read while a command runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from icarus_local.errors import IcarusError

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
PATH = click.Path(path_type=Path)
EXISTING = click.Path(exists=True, path_type=Path)


def tell(line: str) -> None:
    """A line of progress."""
    click.echo(line)
    sys.stdout.flush()  # a run's log is read while it runs


def embedded() -> Path:
    """The file of the base that a package ships.

    Raises:
        IcarusError: the package is not installed.
    """
    from icarus_models.catalog import embedded_base

    base = embedded_base()
    if base is None or base.path is None:
        raise IcarusError(
            "no base was given and none is installed", "Give --base FILE, or install icarus-local[smollm2]"
        )
    return base.path
