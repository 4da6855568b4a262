"""The command `icarus-local` and its options."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import click

from icarus_local import __version__
from icarus_local.cli.engine_options import EngineOptions, engine_options
from icarus_local.cli.group import CONTEXT_SETTINGS, CommandGroup, debug_option
from icarus_local.cli.models import models
from icarus_local.settings import read_settings, settings_file


@click.group("icarus-local", cls=CommandGroup, context_settings=CONTEXT_SETTINGS)
@click.version_option(__version__)
@debug_option
def main(debug: bool) -> None:
    """Several specialist agents on one machine over one shared KV cache."""


main.add_command(models)


_AGENTS_FILE = click.option(
    "--agents-file", type=click.Path(path_type=Path), help="TOML with more agents, or others of these names."
)


class _Chat(click.Command):
    """A command whose options have the settings for defaults."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        settings = read_settings(settings_file()).chat.model_dump(exclude_none=True)
        return super().make_context(info_name, args, parent, default_map=settings, **extra)


@main.command(cls=_Chat)
@click.option(
    "--agents",
    help="Who answers, in this order: names of `icarus-local agents`, or NAME=FILE.gguf for an adapter of one's own. "
    "[default: coder,reviewer where they fit the base, else the base itself]",
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
    answer, Ctrl-D ends the chat. What the settings say about [chat] holds where no option is given.
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


@bench.command()
@click.argument("names", metavar="NAME…", nargs=-1)
@engine_options
@click.option("--agents", type=click.IntRange(1, 64), multiple=True, help="How many; may be given several times.")
@click.option(
    "--context",
    "contexts",
    type=click.IntRange(min=1),
    multiple=True,
    help="Longest prompt and its answer, in tokens; may be given several times.",
)
@click.option(
    "--answer-tokens",
    type=click.IntRange(min=1),
    multiple=True,
    help="Tokens of every answer; may be given several times.",
)
@click.option("--turns-warm", type=click.IntRange(min=1), help="Least number of turns after each agent's first.")
@click.option(
    "--systems",
    help="Which ones, with commas between them.  [default: icarus,swap,separate,separate_capped, and llama_server "
    "where its program is given]",
)
@click.option(
    "--llama-server",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    metavar="PROGRAM",
    help="Path of llama.cpp's llama-server, to measure it too.",
)
@click.option("--repeats", type=click.IntRange(1, 100), help="Of the whole; figures are medians over them.")
@click.option("--quick", is_flag=True, help="Three agents, one round, one repeat: about ten minutes for all workflows.")
@click.option("--rank", type=click.IntRange(1, 256), default=16, show_default=True, help="Of the random adapters.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.json",
    help="Keep every finished run here, and go on with what is missing.",
)
@_JSON
def workflow(engine: EngineOptions, **options: Any) -> None:
    """Time agents that work in turn over one cache, and over llama.cpp's ways to serve them.

    NAME is rounds, react, reflexion, panel, or the path of a TOML file. What an option leaves open is the file's.
    Every system has a process of its own, the same base, adapters, threads and cache type, and the same tokens to say
    (llama_server: as many): swap is one llama.cpp context whose adapter is set for each turn, separate has one for each
    agent, separate_capped has room for two; llama_server is llama.cpp's server, with a slot for each. All are on the
    CPU; `--n-ctx` is what the contexts need.
    """
    from icarus_local.cli.bench_workflow import WorkflowOptions, run_bench_workflow

    run_bench_workflow(engine, WorkflowOptions(**options))


@bench.command()
@click.argument("file", metavar="FILE.json", type=click.Path(path_type=Path))
@click.option("-o", "folder", type=click.Path(path_type=Path), metavar="FOLDER", required=True, help="Where to.")
def plot(file: Path, folder: Path) -> None:
    """Draw what `bench workflow --out` wrote, as PNG and SVG; needs the extra `bench`."""
    from icarus_local.cli.bench_workflow import run_bench_plot

    run_bench_plot(file, folder)


@bench.command("roofline")
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
@click.option("--rank", type=click.IntRange(1, 256), default=16, show_default=True, help="Of the random adapter.")
@_REPEATS
@_JSON
def show_roofline(engine: EngineOptions, **options: Any) -> None:
    """Show how far steps are from what the machine's memory and arithmetic allow.

    Bandwidth is measured by numpy over buffers larger than the caches, the peak by ggml's own matrix product, both with
    the engine's threads. `--n-ctx` is what the contexts need.
    """
    from icarus_local.cli.bench_workflow import run_bench_roofline

    run_bench_roofline(engine, **options)


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


@sessions.command("search")
@click.argument("text", metavar="TEXT")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def search_sessions(text: str, as_json: bool) -> None:
    """List what was said that holds TEXT, upper and lower case being the same, the latest conversation first."""
    from icarus_local.cli.sessions import run_search

    run_search(text, as_json)


@sessions.command("rename")
@click.argument("session", metavar="ID")
@click.argument("title", metavar="TITLE")
def rename_session(session: str, title: str) -> None:
    """Give a conversation a title; "" gives it the beginning of its first question again."""
    from icarus_local.cli.sessions import run_rename

    run_rename(session, title)


@sessions.command("export")
@click.argument("session", metavar="ID")
@click.option(
    "--format", "form", type=click.Choice(["md", "jsonl"]), default="md", show_default=True, help="Of the text."
)
def export_session(session: str, form: Literal["md", "jsonl"]) -> None:
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
