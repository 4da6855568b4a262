"""`icarus-train loss`: how well an adapter predicts the answers of any records, beside the base."""

from __future__ import annotations

from pathlib import Path

import click

from icarus_models.commands.common import FILE, embedded, tell


@click.command()
@click.option(
    "--adapter",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="The adapter folder of a run.",
)
@click.option("--data", type=FILE, required=True, help="Records, .jsonl.")
@click.option("--base", type=FILE, help="GGUF base. [default: the embedded one]")
@click.option("--agents-file", type=FILE, help="Agents and their instructions, besides the shipped ones.")
@click.option("--max-tokens", default=256, show_default=True, type=click.IntRange(16), help="Longer ones are left out.")
def loss(*, adapter: Path, data: Path, base: Path | None, agents_file: Path | None, max_tokens: int) -> None:
    """Measure the loss of an adapter on records that it was not trained on, and the base's.

    Nats per supervised token, in fp32, as a run's held-out loss is.
    """
    from icarus_models.measured_loss import measured_loss

    found = measured_loss(adapter, data, base or embedded(), agents_file=agents_file, max_tokens=max_tokens, tell=tell)
    tell(f"{data}: base {found.base:.4f}, {found.method} {found.agent} {found.adapter:.4f} nats a supervised token")
