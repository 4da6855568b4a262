"""`icarus-convert verify`: an adapter's file proved on its base."""

from __future__ import annotations

from pathlib import Path

import click

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("adapter", metavar="ADAPTER", type=_PATH)
@click.option("--base", required=True, metavar="FILE", help="GGUF of the base; OWNER/NAME/FILE.gguf on the Hub.")
@click.option("--peft", type=_PATH, help="PEFT folder that it was made of, to compare with PyTorch (extra `train`).")
@click.option("--adapter", "peft_adapter", help="Which adapter, where that folder holds several.")
@click.option("--hf-base", type=_PATH, help="The base for PyTorch as a Hugging Face folder. [default: the GGUF]")
@click.option("--threads", type=click.IntRange(1, 512), help="CPU threads. [default: all of four, half of more]")
def verify(
    *,
    adapter: Path,
    base: str,
    peft: Path | None,
    peft_adapter: str | None,
    hf_base: Path | None,
    threads: int | None,
) -> None:
    """Prove that an adapter's tensors landed, that logits move, and that the shared cache does not.

    With --peft its logits must also be those of ICaRus's two streams in PyTorch, and not those of PEFT's ordinary
    forward. Ends with 1 where a proof fails.
    """
    from icarus_convert.find_source import locate
    from icarus_convert.verify import verify as proofs
    from icarus_local.errors import AdapterError

    failed = []
    for proof in proofs(
        adapter, locate(base), peft=peft, peft_adapter=peft_adapter, hf_base=hf_base, n_threads=threads
    ):
        click.echo(f"{'FAILED' if proof.failed else 'ok':<6}  {proof.name:<27}  {proof.detail}")
        if proof.failed:
            failed.append(proof.name.strip())
    if failed:
        raise AdapterError(f"{adapter} is not proved: {', '.join(failed)}", "Convert it again from its source")
