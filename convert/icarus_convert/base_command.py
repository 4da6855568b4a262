"""The command `icarus-convert base`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("source", metavar="SRC")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="GGUF file to write.")
@click.option(
    "--outtype",
    type=click.Choice(["auto", "f32", "f16", "bf16"]),
    default="auto",
    show_default=True,
    help="Type of its matrices; auto keeps the model's own.",
)
@click.option("--quantize", "quantize_to", metavar="TYPE", help="Quantise it, such as to Q4_K_M.")
@click.option("--pre", metavar="NAME", help="llama.cpp's name of the pre-tokenizer, where it is not recognised.")
@click.option("--name", help="The model's name. [default: the folder's or repository's]")
@click.option("--revision", help="Branch, tag or commit on the Hub. [default: main]")
@click.option("--local-files-only", is_flag=True, help="Take the model from the Hub's cache and ask nobody.")
@click.option("--threads", type=click.IntRange(0), default=0, help="To quantise with. [default: all]")
@click.option("--force", is_flag=True, help="Overwrite the file.")
def base(source: str, out: Path, **options: Any) -> None:
    """Convert a Hugging Face model into a GGUF base.

    SRC is a folder with config.json, tokenizer.json and safetensors files, or OWNER/NAME of a model on the Hub. Texts
    in many scripts and code are tokenised with the model's own tokenizer and with llama.cpp's: all ids must agree.
    """
    from icarus_convert.hf_base import convert_base

    written = convert_base(source, out, **options, tell=_tell, progress=_progress)
    click.echo(
        f"{out}: {written.name}, {written.architecture} in {written.kind}, {written.n_bytes / 2**20:.1f} MiB, "
        f"pre-tokenizer {written.pre}, family {written.family_id[:12]}"
    )


def _tell(line: str) -> None:
    click.echo(f"icarus-convert: {line}", err=True)


def _progress(what: str, done: int, n: int) -> None:
    """One line that counts on a terminal, and one at the end anywhere."""
    if sys.stderr.isatty():
        click.echo(f"\ricarus-convert: {done} of {n} tensors {what}", err=True, nl=done == n)
    elif done == n:
        click.echo(f"icarus-convert: {n} tensors {what}", err=True)
