"""The command `icarus-local` and its options."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from icarus_local import __version__
from icarus_local.cli.engine_options import EngineOptions, engine_options
from icarus_local.cli.group import CONTEXT_SETTINGS, CommandGroup, debug_option
from icarus_local.cli.models import models


@click.group("icarus-local", cls=CommandGroup, context_settings=CONTEXT_SETTINGS)
@click.version_option(__version__)
@debug_option
def main(debug: bool) -> None:
    """Several specialist agents on one machine over one shared KV cache."""


main.add_command(models)


_AGENTS_FILE = click.option(
    "--agents-file", type=click.Path(path_type=Path), help="TOML with more agents, or others of these names."
)


@main.command()
@click.option(
    "--agents",
    default="coder,reviewer",
    show_default=True,
    help="Who answers, in this order: names of `icarus-local agents`, or NAME=FILE.gguf for an adapter of one's own.",
)
@_AGENTS_FILE
@engine_options
@click.option("--max-tokens", type=click.IntRange(min=1), help="Longest answer. [default: the agent's own]")
@click.option("--chat-template", type=click.Path(path_type=Path), help="Jinja file to use instead of the base's own.")
@click.option("--instruction-only", is_flag=True, help="Let an agent whose adapter does not fit speak as the base.")
@click.option(
    "--drafts/--no-drafts",
    default=None,
    help="Guess tokens ahead from the conversation. [default: where that changes no bit of an answer]",
)
@click.option(
    "--resume",
    is_flag=False,
    flag_value="",
    metavar="[ID]",
    help="Go on with a saved conversation, the latest where no ID is given.",
)
@click.option(
    "--rounds", type=click.IntRange(1, 100), default=1, show_default=True, help="Times that the agents answer in turn."
)
@click.option("--parallel", is_flag=True, help="All agents answer at once, none reading the others.")
@click.option("--stats", is_flag=True, help="At the end, what was reused and encoded in all.")
@click.option(
    "--state-kv-type",
    type=click.Choice(["f16", "q8_0"]),
    help="Save K and V in a smaller type than the cache's; what is restored then is not bit for bit what was computed.",
)
@click.option("--no-save", "save", flag_value=False, default=True, help="Leave nothing of this conversation on disk.")
@click.option("--plain", is_flag=True, help="Read lines and stream answers, on a terminal too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per answer on stdout.")
def chat(**options: Any) -> None:
    """Talk with several agents who share one conversation and one KV cache.

    A line is a question to all agents in turn; `@reviewer …` asks one. `/help` lists the commands. Ctrl-C stops an
    answer, Ctrl-D ends the chat.
    """
    from icarus_local.cli.chat import ChatOptions, run_chat
    from icarus_local.cli.opening import SessionOptions

    shown = {field.name: options.pop(field.name) for field in dataclasses.fields(ChatOptions)}
    run_chat(SessionOptions(**options), ChatOptions(**shown))


@main.command()
@engine_options
def doctor(engine: EngineOptions) -> None:
    """Show devices, the base and its memory, and prove that its logits are libllama's."""
    from icarus_local.cli.doctor import run_doctor

    run_doctor(engine)


@main.command()
@_AGENTS_FILE
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def agents(agents_file: Path | None, as_json: bool) -> None:
    """List the agents: the base, the shipped ones, those of your own folder, and those of a file."""
    from icarus_local.cli.agents import run_agents

    run_agents(agents_file, as_json)


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


@main.group()
def sessions() -> None:
    """Saved conversations. An ID may be cut short; `icarus-local chat --resume ID` goes on with one."""


@sessions.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_sessions(as_json: bool) -> None:
    """List them, the latest first."""
    from icarus_local.cli.sessions import run_list

    run_list(as_json)


@sessions.command("show")
@click.argument("session", metavar="ID")
def show_session(session: str) -> None:
    """Print what was said."""
    from icarus_local.cli.sessions import run_show

    run_show(session)


@sessions.command("export")
@click.argument("session", metavar="ID")
@click.option(
    "--format", "form", type=click.Choice(["md", "jsonl"]), default="md", show_default=True, help="Of the text."
)
def export_session(session: str, form: str) -> None:
    """Print a conversation as Markdown, or as one JSON object a turn."""
    from icarus_local.cli.sessions import run_export

    run_export(session, form)


@sessions.command("rm")
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove_sessions(ids: tuple[str, ...], yes: bool) -> None:
    """Remove conversations, their KV states included."""
    from icarus_local.cli.sessions import run_remove

    run_remove(ids, yes)
