"""`icarus-train fetch`: training records from a dataset of the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

import click

from icarus_local.errors import IcarusError
from icarus_models.commands.common import PATH, tell, write_split


@click.command()
@click.argument("dataset", metavar="OWNER/NAME|FOLDER")
@click.option("-o", "--out", type=PATH, required=True, help="Folder for train.jsonl and heldout.jsonl.")
@click.option("--config", help="Which of the dataset's configurations.")
@click.option("--split", default="train", show_default=True)
@click.option("--revision", help="Branch, tag or commit. [default: main]")
@click.option("--question", metavar="COLUMN", help="Where questions stand, if its name does not tell.")
@click.option("--answer", metavar="COLUMN", help="Where answers stand.")
@click.option("--without-system", is_flag=True, help="Leave system messages out, instead of the rows that have one.")
@click.option("--train", "train_size", default=1200, show_default=True, type=click.IntRange(1), help="Most records.")
@click.option("--heldout", "heldout_size", default=100, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True)
def fetch(
    *,
    dataset: str,
    out: Path,
    config: str | None,
    split: str,
    revision: str | None,
    question: str | None,
    answer: str | None,
    without_system: bool,
    train_size: int,
    heldout_size: int,
    seed: int,
) -> None:
    """Write training data from a dataset of the Hugging Face Hub, or from a folder of files as it has them.

    Conversations are found in messages or conversations, questions and answers in prompt and answer, completion or
    response, question and answer, instruction and output, input and output. What a held-out row asks is asked by no row
    for training. source.json says what they came from.
    """
    from icarus_models.data.build import Split
    from icarus_models.data.hub_dataset import Source, commit_of, draw
    from icarus_models.records import named
    from icarus_models.run_files import write_json

    if (question is None) is not (answer is None):
        raise click.UsageError("--question and --answer go together")
    columns = (question, answer) if question is not None and answer is not None else None
    commit = commit_of(Source(dataset, revision=revision))
    source = Source(dataset, config, split, commit, columns, without_system)
    drawn = draw(source, (train_size, heldout_size), seed)
    if drawn.left_out:
        tell(f"{dataset}: {named(sorted(drawn.left_out), what='row')}")
    if not drawn.train:
        raise IcarusError(
            f"{dataset}: only {len(drawn.heldout)} rows can be used, {heldout_size} of them to be held out",
            "Give a smaller --heldout, or another --split",
        )
    out.mkdir(parents=True, exist_ok=True)
    facts = {"dataset": dataset, "config": config, "split": split, "commit": commit, "seed": seed}
    write_json(out / "source.json", facts)
    write_split(out, Split(drawn.train, drawn.heldout))
