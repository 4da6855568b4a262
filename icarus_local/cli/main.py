"""The command `icarus-local`: its options, and errors turned into one line and an exit code."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import click

from icarus_local import __version__
from icarus_local.errors import IcarusError

_NO_BASE = 2


class _Group(click.Group):
    """Shows an IcarusError as one line; `--debug` lets the trace through."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except IcarusError as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"icarus-local: {error}", err=True)
            from icarus_local.cli.bases import NoBaseError

            ctx.exit(_NO_BASE if isinstance(error, NoBaseError) else 1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show log lines and the whole trace of an error.")
def main(debug: bool) -> None:
    """Several specialist agents on one machine over one shared KV cache."""
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.CRITICAL,
        stream=sys.stderr,
        format="%(levelname)s %(name)s: %(message)s",
    )


_base_option = click.option(
    "--base",
    metavar="FILE",
    help="GGUF of the base: a path, or OWNER/NAME/FILE.gguf on the Hub. [default: the embedded one]",
)


@main.command()
@click.option(
    "--agents",
    default="coder,reviewer",
    show_default=True,
    help="Who answers, in this order; `base` is the base model.",
)
@_base_option
@click.option(
    "--n-ctx", type=click.IntRange(min=1), help="Tokens the cache holds. [default: the model's, at most 4096]"
)
@click.option("--kv-type", type=click.Choice(["f16", "f32"]), default="f16", show_default=True, help="Type of K and V.")
@click.option("--threads", type=click.IntRange(1, 512), help="CPU threads. [default: all of four, half of more]")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Longest answer. [default: the agent's own]")
@click.option("--chat-template", type=click.Path(path_type=Path), help="Jinja file to use instead of the base's own.")
@click.option("--instruction-only", is_flag=True, help="Let an agent whose adapter does not fit speak as the base.")
@click.option("--plain", is_flag=True, help="Read lines and stream answers, on a terminal too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per answer on stdout.")
def chat(**options: Any) -> None:
    """Talk with several agents who share one conversation and one KV cache.

    A line is a question to all agents in turn; `@reviewer …` asks one. Ctrl-C stops an answer, Ctrl-D ends the chat.
    """
    from icarus_local.cli.chat import ChatOptions, run_chat

    run_chat(ChatOptions(**options))


@main.command()
@_base_option
def doctor(base: str | None) -> None:
    """Show versions, devices and the base, and prove that encoder logits are libllama's."""
    from icarus_local.cli.doctor import run_doctor

    run_doctor(base)
