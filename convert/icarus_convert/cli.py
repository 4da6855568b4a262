"""The command `icarus-convert`."""

from __future__ import annotations

import click

from icarus_convert.adapter_command import adapter
from icarus_convert.base_command import base
from icarus_convert.inspect_command import inspect
from icarus_convert.verify_command import verify
from icarus_local import __version__
from icarus_local.cli.group import CONTEXT_SETTINGS, CommandGroup, debug_option


@click.group("icarus-convert", cls=CommandGroup, context_settings=CONTEXT_SETTINGS)
@click.version_option(__version__)
@debug_option
def main(debug: bool) -> None:
    """Convert what Hugging Face's libraries write into the GGUF files that icarus-local reads."""


for command in (adapter, inspect, verify):
    main.add_command(command)
main.add_command(base)
