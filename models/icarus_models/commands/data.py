"""`icarus-train data`: the training data of one of the four specialists."""

from __future__ import annotations

from pathlib import Path

import click

from icarus_models.commands.common import EXISTING, FILE, PATH, embedded, write_split
from icarus_models.specialists import NAMES


@click.command()
@click.argument("agent", type=click.Choice(NAMES))
@click.option("-o", "--out", type=PATH, required=True, help="Folder for train.jsonl and heldout.jsonl.")
@click.option("--base", type=FILE, help="GGUF base: its tokenizer counts, and it answers the general questions.")
@click.option("--train", "train_size", default=1200, show_default=True, type=click.IntRange(1))
@click.option("--heldout", "heldout_size", default=100, show_default=True, type=click.IntRange(1))
@click.option("--max-tokens", default=256, show_default=True, type=click.IntRange(32), help="Longest record, rendered.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--pairs",
    is_flag=True,
    help="For reviewer: every function right and wrong in the same words, instead of one third right.",
)
@click.option("--bfcl", type=EXISTING, help="For tools: bfcl-eval's wheel (pip download --no-deps bfcl-eval).")
def data(
    *,
    agent: str,
    out: Path,
    base: Path | None,
    train_size: int,
    heldout_size: int,
    max_tokens: int,
    seed: int,
    pairs: bool,
    bfcl: Path | None,
) -> None:
    """Write the training data of a specialist.

    coder and reviewer need nothing but Python, math needs reasoning-gym (pip install 'icarus-local[data]').
    """
    write_data(
        agent,
        out,
        base or embedded(),
        general=out / "general.json",
        sizes=(train_size, heldout_size),
        max_tokens=max_tokens,
        seed=seed,
        pairs=pairs,
        bfcl=bfcl,
    )


def write_data(
    agent: str,
    out: Path,
    base: Path,
    *,
    general: Path,
    sizes: tuple[int, int],
    max_tokens: int,
    seed: int,
    pairs: bool,
    bfcl: Path | None,
) -> None:
    """Writes both files; `general` keeps the base's answers to general questions, the rest are the command's arguments.

    Raises:
        IcarusError: what the data comes from is missing, or there is not enough of it.
    """
    from icarus_local.text.tokenizer import Tokenizer
    from icarus_models.catalog import agents
    from icarus_models.data.build import Ingredients, build
    from icarus_models.data.general import answers
    from icarus_models.records import Renderer, dated_template

    out.mkdir(parents=True, exist_ok=True)
    talk = answers(base, general)
    tokenizer = Tokenizer(base)
    try:
        renderer = Renderer(tokenizer, dated_template(tokenizer), agents(), agent)
        split = build(
            agent,
            Ingredients(talk, bfcl, pairs),
            sizes,
            seed,
            fits=lambda record: len(renderer.sample(record).ids) <= max_tokens,
        )
    finally:
        tokenizer.close()
    write_split(out, split)
