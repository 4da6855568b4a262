"""`icarus-convert adapter`: one adapter for one base."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from icarus_convert.prepare import Prepared
    from icarus_local.engine.adapter_file import Adapter


@click.command()
@click.argument("source", metavar="SRC")
@click.option(
    "--base",
    metavar="BASE",
    help="GGUF of the base in any quantisation, or its Hugging Face folder; or one on the Hub.",
)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Adapter file to write. [default: SRC's name, here]")
@click.option("--name", help="The adapter's name. [default: the file's]")
@click.option("--adapter", help="Which adapter, where SRC holds several.")
@click.option("--revision", help="Branch, tag or commit on the Hub. [default: main]")
@click.option("--local-files-only", is_flag=True, help="Ask nobody: only what is in huggingface-hub's cache.")
@click.option(
    "--outtype",
    type=click.Choice(["f32", "f16", "q8_0"]),
    help="Type of its tensors; f16 where rows do not fill q8_0's blocks of 32.  [default: f32]",
)
@click.option(
    "--assume-icarus", is_flag=True, help="Take an adapter of unknown training as trained on the frozen cache."
)
@click.option("--drop-kv", is_flag=True, help="Leave K and V out, and print what that costs on a probe text.")
@click.option("--dry-run", is_flag=True, help="Print where every tensor goes, and write nothing.")
@click.option("--threads", type=click.IntRange(1, 512), help="CPU threads of the probe. [default: as for chat]")
@click.option("--force", is_flag=True, help="Overwrite the file.")
def adapter(
    *,
    source: str,
    base: str | None,
    out: Path | None,
    name: str | None,
    adapter: str | None,
    revision: str | None,
    local_files_only: bool,
    outtype: str | None,
    assume_icarus: bool,
    drop_kv: bool,
    dry_run: bool,
    threads: int | None,
    force: bool,
) -> None:
    """Convert a LoRA that was trained on a frozen base's cache, for that base.

    SRC is a folder that PEFT or Unsloth saved, or MLX (lora only); OWNER/NAME on the Hub with one of these; or a
    llama.cpp LoRA in GGUF, whose tensors stay as they are.

    llama.cpp loads the file too, but computes another function with it: there the cache comes from adapted hidden
    states.
    """
    from icarus_convert.find_source import locate, locate_base
    from icarus_convert.prepare import prepare
    from icarus_convert.write import check_out, write

    fetching: dict[str, Any] = {"local_files_only": local_files_only, "tell": lambda line: click.echo(line, err=True)}
    path = locate(source, adapter, revision, **fetching)
    base_path = locate_base(base, **fetching) if base is not None else _no_base(path, adapter)
    # abspath gives `.` and `..` a name, and a symbolic link its own.
    target = out or Path(f"{name or Path(os.path.abspath(source)).name.removesuffix('.gguf')}.gguf")
    if not dry_run:
        check_out(target, (base_path, path), force)
    prepared = prepare(path, base_path, adapter=adapter, assume_icarus=assume_icarus, drop_kv=drop_kv)
    if dry_run:
        show_plan(prepared)
        return
    written = write(prepared, target, name=name, outtype=outtype, force=force)
    show_written(prepared, written)
    if prepared.mapped is not None and (drop_kv or outtype not in (None, "f32")):
        show_cost(prepared, written, outtype or "f32", threads)


def _no_base(path: Path, adapter: str | None) -> Path:
    """Says which base is wanted.

    Raises:
        IcarusError: always.
    """
    from icarus_convert.find_source import read_source
    from icarus_convert.gguf_lora import is_gguf
    from icarus_local.errors import IcarusError

    hint = "Give a GGUF of the model that it was trained on with --base"
    if not is_gguf(path):
        hint = read_source(path, adapter, keep_kv=True).which_base
    raise IcarusError(f"which base {path} is for must be said", hint)


def show_plan(prepared: Prepared) -> None:
    """Every tensor of the source, and where it goes."""
    click.echo(f"{prepared.path} ({prepared.layout}) for {prepared.base.name}, {prepared.base.path}")
    click.echo(f"training: {prepared.training.trained}{', assumed to be icarus' if prepared.assumed else ''}")
    if prepared.mapped is None:
        for tensor, pair in prepared.found.pairs.items() if prepared.found else ():
            (rank, n_in), n_out = pair.a.shape, pair.b.shape[0]
            click.echo(f"  {tensor} [{n_in} to {n_out}], rank {rank}, alpha/r as its key says: stays as it is")
        click.echo(f"keys would be added to {prepared.path.name}; nothing was written")
        return
    for row in prepared.mapped.plan:
        sizes = {"A": (row.rank, row.n_in), "B": (row.n_out, row.rank)}
        for part, tensor, suffix in zip("AB", row.tensors, ("lora_a", "lora_b"), strict=True):
            target = f"{row.target}.{suffix}" if row.target else "nowhere"
            notes = row.notes if part == "B" or not row.target else ()
            scale = f", times {row.scale:g}" if part == "B" and row.target else ""
            extra = "".join(f"; {note}" for note in notes)
            rows, columns = sizes[part]
            click.echo(f"  {tensor} [{rows}, {columns}] -> {target}, rank {row.rank}{scale}{extra}")
    click.echo(f"{len(prepared.mapped.pairs)} weights of {len(prepared.mapped.plan)} modules; nothing was written")


def show_written(prepared: Prepared, written: Adapter) -> None:
    """What was written, and what its reader should know."""
    import numpy as np

    click.echo(
        f"{written.path}: {written.name}, {len(written.pairs)} weights of rank {written.rank} at most, "
        f"{written.path.stat().st_size / 2**20:.1f} MiB, for {written.base_name} (family {written.family_id[:12]})"
    )
    notes = []
    if written.dropped_kv:
        notes.append(f"the file says that {', '.join(written.dropped_kv)} were left out: it is not what was trained")
    elif written.assumed:
        notes.append(f"the file says that its training was assumed, not known ({written.trained})")
    if prepared.mapped is None:
        notes.append("its scale is alpha/r, as llama.cpp applies it: that of an rsLoRA would be lost")
    if not any(np.any(pair.b) for pair in written.pairs.values()):
        notes.append("every lora_B is zero: this adapter is the base")
    for note in notes:
        click.echo(f"icarus-convert: {note}", err=True)


def show_cost(prepared: Prepared, written: Adapter, outtype: str, threads: int | None) -> None:
    """What type and dropped modules cost on the probe text; a base that cannot be run says so."""
    from icarus_convert.measure import cost_of_dropping, rounding
    from icarus_local.errors import IcarusError

    try:
        if written.dropped_kv:
            ours, alone = cost_of_dropping(prepared, written, threads)
            click.echo(f"against the whole adapter, applied the ordinary way: {ours}")
            click.echo(f"the base alone against it: {alone}")
        if outtype != "f32":
            click.echo(f"{outtype} against f32: {rounding(prepared, written, threads)}")
    except IcarusError as error:
        click.echo(f"icarus-convert: what that costs could not be measured: {error}", err=True)
