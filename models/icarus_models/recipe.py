"""A training run's recipe: one typed schema, read from TOML and from flags. No torch here."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from icarus_local.errors import RequestError

# All that ICaRus lets an agent adapt, as transformers names it.
TARGET_MODULES = ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# Where things lie, how they are watched and when they stop for a while: none of it changes the weights. What files hold
# is compared by their hashes.
_WITHOUT_EFFECT = {
    "base", "tokenizer_gguf", "data", "heldout", "agents_file", "teacher", "out", "max_minutes", "report"
}  # fmt: skip


def _names(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


class Recipe(BaseModel):
    """What decides a run's outcome, and where its files are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    agent: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$", description="Whose answers are learnt.")
    agents_file: Path | None = Field(None, description="Agents and their instructions, besides the shipped ones.")
    method: Literal["icarus", "lora"] = Field("icarus", description="ICaRus, or an ordinary LoRA to compare with.")
    base: str | None = Field(
        None, description="GGUF file, Hugging Face folder, or OWNER/NAME on the Hub. [default: the embedded one]"
    )
    tokenizer_gguf: Path | None = Field(
        None, description="GGUF that the agent will run on, where the base is not one: its tokenizer counts."
    )
    data: Path = Field(description="Training records, .jsonl.")
    heldout: Path | None = Field(None, description="Held-out records, .jsonl.")
    out: Path = Field(description="Run folder.")
    teacher: Path | None = Field(None, description="PEFT folder of an ordinary LoRA to learn from (distill).")

    rank: int = Field(16, ge=1, le=512)
    alpha: float = Field(32.0, gt=0)
    rslora: bool = Field(False, description="Scale by alpha/sqrt(rank) instead of alpha/rank.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Of the LoRA's input.")
    modules: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        TARGET_MODULES, min_length=1, description="What is adapted, with commas between; ICaRus allows these."
    )

    optimizer: Literal["adamw", "adafactor", "sgd", "adamw_8bit"] = "adamw"
    learning_rate: float = Field(2e-4, gt=0, le=1, description="The peak.")
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", description="After the warm-up.")
    warmup: float = Field(0.05, ge=0, lt=1, description="Share of the steps.")
    weight_decay: float = Field(0.0, ge=0, le=1)
    max_grad_norm: float = Field(1.0, gt=0)
    epochs: float = Field(1.0, gt=0)
    max_steps: int | None = Field(None, ge=1, description="Instead of epochs.")
    batch: int = Field(4, ge=1, description="Rows that are computed together.")
    accumulation: int = Field(1, ge=1, description="Batches to an optimiser step.")
    max_tokens: int = Field(256, ge=16, description="Longer records are left out; rows are packed up to it.")
    pack: bool = Field(False, description="Several records to a row; none sees another.")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="auto is bf16 where the GPU computes in it, else fp32."
    )
    four_bit: bool = Field(False, description="The frozen base in 4 bits (QLoRA): bitsandbytes, CUDA.")
    gradient_checkpointing: bool = Field(False, description="A third more time, much less memory.")
    seed: int = Field(0, ge=0, lt=2**32)

    patience: int | None = Field(
        None,
        ge=1,
        description="Stop after so many held-out losses (one at every save) without a better; keep the best.",
    )
    save_steps: int = Field(50, ge=1, description="Between two checkpoints.")
    max_minutes: float | None = Field(None, gt=0, description="Stop after that time; --resume goes on.")
    report: Literal["none", "tensorboard"] = "none"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        stray = [name for name in self.modules if name not in TARGET_MODULES]
        if self.method == "icarus" and stray:
            raise ValueError(f"modules: ICaRus adapts {', '.join(TARGET_MODULES)}, not {', '.join(stray)}")
        if self.patience and self.heldout is None:
            raise ValueError("patience: needs heldout")
        if self.teacher and (self.method != "icarus" or self.heldout is None):
            raise ValueError("teacher: is for the method icarus, with heldout to measure what was learnt")
        return self

    def outcome(self) -> dict[str, Any]:
        """What, with the hashes of the files, decides the weights: a run is resumed with the same only."""
        without = _WITHOUT_EFFECT | (set() if self.patience else {"save_steps"})
        return self.model_dump(mode="json", exclude=without)

    def steps(self, rows: int) -> int:
        """Optimiser steps, for an epoch of that many rows."""
        return self.max_steps or max(1, math.ceil(rows * self.epochs / (self.batch * self.accumulation)))


def read_recipe(file: Path | None, flags: Mapping[str, Any]) -> Recipe:
    """The recipe of a TOML file, whose paths are relative to it, with what flags say instead.

    Raises:
        RequestError: no such file, no TOML, a key that does not exist, or a value out of range: which, and why.
    """
    content: dict[str, Any] = {}
    if file is not None:
        try:
            content = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise RequestError(f"the recipe {file} cannot be read: {error.strerror}") from error
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise RequestError(f"the recipe {file} is no TOML: {error}") from error
        content = {key: _beside(file, key, value) for key, value in content.items()}
    try:
        return Recipe(**{**content, **flags})
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        where = f"the recipe {file}" if file is not None and (key in content or not key) else "the recipe"
        reason = first["msg"].removeprefix("Value error, ")
        hint = f"Give it in a recipe, or with --{key.replace('_', '-')}" if first["type"] == "missing" else ""
        raise RequestError(f"{where}: {f'key {key}: ' if key else ''}{reason}", hint) from error


def _beside(file: Path, key: str, value: Any) -> Any:
    """A path as it is meant from the recipe's folder; a base that is not there may be one on the Hub."""
    field = Recipe.model_fields.get(key)
    if field is None or not isinstance(value, str) or (key != "base" and "Path" not in str(field.annotation)):
        return value
    path = file.parent / Path(value).expanduser()
    return str(path) if key != "base" or path.exists() else value
