"""The command `icarus-convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from icarus_local import __version__
from icarus_local.cli.group import CONTEXT_SETTINGS, CommandGroup, debug_option


@click.group("icarus-convert", cls=CommandGroup, context_settings=CONTEXT_SETTINGS)
@click.version_option(__version__)
@debug_option
def main(debug: bool) -> None:
    """Convert what Hugging Face's libraries write into the GGUF files that icarus-local reads."""


@main.command()
@click.argument("peft_dir", type=click.Path(path_type=Path))
@click.option("--base", required=True, type=click.Path(path_type=Path), help="GGUF of the base, in any quantisation.")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="Adapter file to write.")
@click.option("--name", help="The adapter's name. [default: the file's]")
@click.option(
    "--outtype", type=click.Choice(["f32", "f16"]), default="f32", show_default=True, help="Type of its tensors."
)
@click.option(
    "--assume-icarus", is_flag=True, help="Take an adapter of unknown training as trained on the frozen cache."
)
@click.option("--force", is_flag=True, help="Overwrite the file.")
def adapter(peft_dir: Path, base: Path, out: Path, **options: Any) -> None:
    """Convert a PEFT LoRA folder, trained on a frozen base's cache, for that base.

    llama.cpp loads the file too, but computes another function with it: there the cache comes from adapted hidden
    states.
    """
    from icarus_convert.write import convert_adapter

    written = convert_adapter(peft_dir, base, out, **options)
    click.echo(
        f"{out}: {written.name}, {len(written.pairs)} weights of rank {written.rank} at most, "
        f"{out.stat().st_size / 2**20:.1f} MiB, for {written.base_name} (family {written.family_id[:12]})"
    )
    if written.assumed:
        click.echo(
            f"icarus-convert: the file says that its training was assumed, not known ({written.trained})", err=True
        )
    if not any(np.any(pair.b) for pair in written.pairs.values()):
        click.echo("icarus-convert: every lora_B is zero: this adapter is the base", err=True)
