"""`icarus-convert inspect`: what a file is."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def inspect(path: Path, as_json: bool) -> None:
    """Show what a base or an adapter is; FILE is a GGUF, or a folder of PEFT or MLX."""
    from icarus_convert.describe import describe, lines

    found = describe(path)
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=True))
        return
    for line in lines(found):
        click.echo(line)
