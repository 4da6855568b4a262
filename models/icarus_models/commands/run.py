"""`icarus-train run` and `distill`: one training run, by a recipe and by flags for every key of it."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click
from pydantic.fields import FieldInfo

from icarus_local.errors import IcarusError
from icarus_models.commands.common import FILE, PATH, embedded, tell
from icarus_models.recipe import Recipe, read_recipe

_Command = Callable[..., None]


def flags(leave_out: set[str], require: set[str]) -> Callable[[_Command], _Command]:
    """An option for every key of a recipe, named as the key is; what is not given stays as the recipe has it."""

    def add(command: _Command) -> _Command:
        for name, field in reversed(Recipe.model_fields.items()):
            if name not in leave_out:
                command = _option(name, field, required=name in require)(command)
        return command

    return add


def _option(name: str, field: FieldInfo, required: bool) -> Callable[[_Command], _Command]:
    kind = _plain(field.annotation)
    flag, text = f"--{name.replace('_', '-')}", field.description or ""
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
    if not field.is_required() and field.default is not None:
        default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        text = f"{text} [default: {default}]".strip()
    short = ["-o"] if name == "out" else []
    return click.option(*short, flag, name, type=_click_type(kind), required=required, help=text)


def _plain(annotation: Any) -> Any:
    """The type of a key that may be None."""
    if isinstance(annotation, types.UnionType):
        return next(part for part in typing.get_args(annotation) if part is not type(None))
    return annotation


def _click_type(kind: Any) -> click.ParamType[Any]:
    if typing.get_origin(kind) is Literal:
        return click.Choice(typing.get_args(kind))
    types_of: dict[Any, click.ParamType[Any]] = {int: click.INT, float: click.FLOAT, Path: PATH}
    return types_of.get(kind, click.STRING)


@click.command()
@click.argument("recipe", type=FILE, required=False)
@flags(leave_out={"teacher"}, require=set())
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in the run folder.")
def run(*, recipe: Path | None, resume: bool, **given: Any) -> None:
    """Train an agent's adapter on a frozen base.

    RECIPE is a TOML file of keys as the options are named, learning_rate for --learning-rate; options come first.
    """
    train_by(read_recipe(recipe, _said(given)), resume)


@click.command()
@click.argument("recipe", type=FILE, required=False)
@flags(leave_out={"method"}, require={"teacher"})
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in the run folder.")
def distill(*, recipe: Path | None, resume: bool, **given: Any) -> None:
    """Turn an ordinary LoRA, K and V and all, into an ICaRus adapter.

    The student's distribution at every token of an answer is drawn to the teacher's. Records without an answer,
    {"prompt": …}, are answered by the teacher. On the held-out records, which have answers, it is measured how much of
    the teacher's gain over the base is kept.
    """
    train_by(read_recipe(recipe, _said(given)), resume)


def _said(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def train_by(recipe: Recipe, resume: bool) -> Path:
    """Trains by a recipe, whose base may lie on the Hub; gives the adapter's folder.

    Raises:
        IcarusError: as `training.train`.
    """
    from icarus_convert.find_source import locate_base

    base = locate_base(recipe.base, tell=tell) if recipe.base else embedded()
    if base.is_dir() and recipe.tokenizer_gguf is None:
        raise IcarusError(
            f"{base}: for a Hugging Face folder the tokenizer comes from the GGUF that the agent will run on",
            "Give it with --tokenizer-gguf FILE.gguf",
        )
    from icarus_models.training import train

    return train(recipe, base, tell, resume=resume)
