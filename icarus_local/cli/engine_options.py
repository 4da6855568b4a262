"""The options of every command that opens an engine: which base, on which device, with how much memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from icarus_local.cli.bases import find_base

if TYPE_CHECKING:
    from icarus_local.engine.base import Report
    from icarus_local.engine.engine import Engine

KV_CHOICES = ("f16", "f32", "q8_0", "q4_0")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """As given on the command line; None leaves the choice to the engine, whose `Engine` says what each means."""

    base: str | None = None
    n_ctx: int | None = None
    kv_type: str = "f16"
    threads: int | None = None
    device: str = "auto"
    gpu_layers: int | None = None
    repack: bool | None = None
    max_adapters: int | None = None

    def open(self, report: Report | None = None) -> Engine:
        """An `Engine` on the base that these options name; `report` is told how far it is.

        Raises:
            IcarusError: no base, a base that cannot be used, no such device, or not enough memory.
        """
        from icarus_local.engine.engine import Engine

        return Engine(
            find_base(self.base),
            self.n_ctx,
            self.kv_type,
            n_threads=self.threads,
            device=self.device,
            gpu_layers=self.gpu_layers,
            repack=self.repack,
            max_adapters=self.max_adapters,
            report=report,
        )


def _layers(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """A number of layers, or `auto` (None)."""
    if value is None or value.lower() == "auto":
        return None
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is neither a number of layers nor auto")
    return int(value)


_OPTIONS = (
    click.option(
        "--base",
        metavar="FILE",
        help="GGUF of the base: a path, or OWNER/NAME/FILE.gguf on the Hub. [default: the embedded one]",
    ),
    click.option(
        "--n-ctx", type=click.IntRange(min=1), help="Tokens the cache holds. [default: the model's, at most 4096]"
    ),
    click.option("--kv-type", type=click.Choice(KV_CHOICES), default="f16", show_default=True, help="Type of K and V."),
    click.option("--threads", type=click.IntRange(1, 512), help="CPU threads. [default: all of four, half of more]"),
    click.option(
        "--device",
        metavar="NAME",
        default="auto",
        show_default=True,
        help="`cpu`, or a device that `icarus-local doctor` names; `auto` is the first GPU, else the CPU.",
    ),
    click.option(
        "--gpu-layers",
        callback=_layers,
        metavar="N|auto",
        help="Layers on the device, the last ones first and the head as one more. [default: auto, what fits]",
    ),
    click.option(
        "--repack/--no-repack",
        default=None,
        help="Copy the CPU's weights into the order of its matrix kernels. [default: where most of them can be]",
    ),
    click.option(
        "--max-adapters",
        type=click.IntRange(min=1),
        help="Adapters in memory at a time; the least recently used is read again when needed. [default: all]",
    ),
)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command, which receives them as `engine`, an `EngineOptions`."""
    names = [field.name for field in fields(EngineOptions)]

    @functools.wraps(command)
    def packed(*arguments: Any, **options: Any) -> Any:
        engine = EngineOptions(**{name: options.pop(name) for name in names})
        return command(*arguments, engine=engine, **options)

    for option in reversed(_OPTIONS):
        packed = option(packed)
    return packed
