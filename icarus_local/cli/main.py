"""The command `icarus-local` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from icarus_local import __version__
from icarus_local.cli.engine_options import EngineOptions, engine_options
from icarus_local.cli.group import CONTEXT_SETTINGS, CommandGroup, debug_option


@click.group("icarus-local", cls=CommandGroup, context_settings=CONTEXT_SETTINGS)
@click.version_option(__version__)
@debug_option
def main(debug: bool) -> None:
    """Several specialist agents on one machine over one shared KV cache."""


@main.command()
@click.option(
    "--agents",
    default="coder,reviewer",
    show_default=True,
    help="Who answers, in this order: names of the catalog, `base` for the base model, NAME=FILE.gguf for an adapter.",
)
@engine_options
@click.option("--max-tokens", type=click.IntRange(min=1), help="Longest answer. [default: the agent's own]")
@click.option("--chat-template", type=click.Path(path_type=Path), help="Jinja file to use instead of the base's own.")
@click.option("--instruction-only", is_flag=True, help="Let an agent whose adapter does not fit speak as the base.")
@click.option(
    "--drafts/--no-drafts",
    default=None,
    help="Guess tokens ahead from the conversation. [default: where that changes no bit of an answer]",
)
@click.option("--plain", is_flag=True, help="Read lines and stream answers, on a terminal too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per answer on stdout.")
def chat(**options: Any) -> None:
    """Talk with several agents who share one conversation and one KV cache.

    A line is a question to all agents in turn; `@reviewer …` asks one. Ctrl-C stops an answer, Ctrl-D ends the chat.
    """
    from icarus_local.cli.chat import ChatOptions, run_chat

    run_chat(ChatOptions(**options))


@main.command()
@engine_options
def doctor(engine: EngineOptions) -> None:
    """Show devices, the base and its memory, and prove that its logits are libllama's."""
    from icarus_local.cli.doctor import run_doctor

    run_doctor(engine)


@main.group()
def bench() -> None:
    """Measure on this machine, beside llama.cpp, through the same llama-cpp-python and the same file."""


_REPEATS = click.option("--repeats", type=click.IntRange(1, 100), default=5, show_default=True, help="Rounds.")
_JSON = click.option("--json", "as_json", is_flag=True, help="JSON on stdout instead of a table.")


@bench.command()
@engine_options
@click.option(
    "--context",
    "contexts",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1024,),
    show_default=True,
    help="Tokens before each measured step; may be given several times.",
)
@click.option("--rank", type=click.IntRange(1, 256), default=16, show_default=True, help="Of the random adapters.")
@_REPEATS
@_JSON
def step(engine: EngineOptions, **options: Any) -> None:
    """Time prefill, one row, an encoder and decoder row together, and 2, 4 and 8 agents at once.

    Medians of rounds in which all kinds of step take turns. `--n-ctx` is what the contexts need.
    """
    from icarus_local.cli.bench import run_bench_step

    run_bench_step(engine, **options)


@bench.command()
@engine_options
@click.option("--agent", default="coder", show_default=True, help="Who edits, as in `chat --agents`.")
@_REPEATS
@_JSON
def drafts(engine: EngineOptions, **options: Any) -> None:
    """Time an answer that repeats most of a file, with drafts and without."""
    from icarus_local.cli.bench import run_bench_drafts

    run_bench_drafts(engine, **options)
