"""The command `icarus-train`."""

from __future__ import annotations

import click

from icarus_local import __version__
from icarus_local.cli.group import CONTEXT_SETTINGS, CommandGroup, debug_option
from icarus_models.commands.bench import bench
from icarus_models.commands.data import data
from icarus_models.commands.evaluate import evaluate
from icarus_models.commands.fetch import fetch
from icarus_models.commands.loss import loss
from icarus_models.commands.run import distill, run
from icarus_models.commands.specialists import specialists


@click.group("icarus-train", cls=CommandGroup, context_settings=CONTEXT_SETTINGS)
@click.version_option(__version__)
@debug_option
def main(debug: bool) -> None:
    """Train specialist agents that share one KV cache (ICaRus), and measure them."""


for command in (data, fetch, run, distill, bench, evaluate, loss, specialists):
    main.add_command(command)
