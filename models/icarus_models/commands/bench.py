"""`icarus-train bench`: what a step of ICaRus costs beside one of an ordinary LoRA."""

from __future__ import annotations

from pathlib import Path

import click

from icarus_models.commands.common import EXISTING, embedded, tell

_MIB = 1 << 20


@click.command()
@click.option("--base", type=EXISTING, help="GGUF file or Hugging Face folder. [default: the embedded one]")
@click.option("--batch", default=4, show_default=True, type=click.IntRange(1), help="Rows.")
@click.option("--length", default=256, show_default=True, type=click.IntRange(2), help="Tokens of a row.")
@click.option(
    "--share", default=0.5, show_default=True, type=click.FloatRange(0, 1, min_open=True), help="Supervised tokens."
)
@click.option("--rank", default=16, show_default=True, type=click.IntRange(1))
@click.option(
    "--repeats", default=5, show_default=True, type=click.IntRange(1), help="Rounds of both methods in turns."
)
def bench(*, base: Path | None, batch: int, length: int, share: float, rank: int, repeats: int) -> None:
    """Measure a training step: ICaRus beside an ordinary LoRA, same batch, medians of alternating rounds.

    Nothing else should run meanwhile.
    """
    from icarus_models.step_bench import METHODS, Setting, measure

    found = measure(Setting(base or embedded(), batch, length, share, rank, repeats), tell)
    for method in METHODS:
        tell(f"{method:<8}{found.seconds[method]:8.2f} s a step{found.peak[method] / _MIB:10,.0f} MiB at most")
    part = found.encoder / found.seconds["icarus"]
    tell(
        f"ICaRus: {found.ratio:.2f} times the time, {found.peak['icarus'] / found.peak['lora']:.2f} times the memory; "
        f"{100 * part:.0f} % of its time is the frozen base's pass"
    )
