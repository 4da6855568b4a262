"""What the project's commands have in common: errors become one line and an exit code, `--debug` shows more."""

from __future__ import annotations

import logging
import sys
from typing import Any

import click

from icarus_local.errors import IcarusError

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

debug_option = click.option("--debug", is_flag=True, help="Show log lines and the whole trace of an error.")


class CommandGroup(click.Group):
    """A command whose group has a `--debug` option (`debug_option`)."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command.

        Raises:
            IcarusError: only with `--debug`, so that its trace is shown.
        """
        debug = bool(ctx.params.get("debug"))
        logging.basicConfig(
            level=logging.DEBUG if debug else logging.CRITICAL,
            stream=sys.stderr,
            format="%(levelname)s %(name)s: %(message)s",
        )
        try:
            return super().invoke(ctx)
        except IcarusError as error:
            if debug:
                raise
            click.echo(f"{self.name}: {error}", err=True)
            ctx.exit(error.exit_code)
