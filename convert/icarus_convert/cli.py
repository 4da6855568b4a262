"""The command `icarus-convert`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

from icarus_local import __version__
from icarus_local.errors import IcarusError


class _Group(click.Group):
    """Shows an IcarusError as one line; `--debug` lets the trace through."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except IcarusError as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"icarus-convert: {error}", err=True)
            ctx.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show log lines and the whole trace of an error.")
def main(debug: bool) -> None:
    """Convert what Hugging Face's libraries write into the GGUF files that icarus-local reads."""
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.CRITICAL,
        stream=sys.stderr,
        format="%(levelname)s %(name)s: %(message)s",
    )


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

    The file is a LoRA that llama.cpp loads too; but llama.cpp applies it to K and V's inputs as well, which is another
    function than the one it was trained for.
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
