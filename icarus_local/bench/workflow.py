"""Workflow files: who speaks in a round, with which hand-over, and how many tokens; read whole or refused by key."""

from __future__ import annotations

import hashlib
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from icarus_local.errors import IcarusError

MAX_AGENTS = 64
_MAX_FILE = 1 << 20  # bytes
_SHIPPED = resources.files("icarus_local.bench") / "workflows"

Tokens = Annotated[int, Field(ge=1, le=1 << 20)]


class WorkflowError(IcarusError):
    """A workflow file cannot be read or understood."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Turn(_Table):
    """One turn of a round; all lengths are in tokens.

    Attributes:
        role: what the speaker does, for people.
        speaker: number of the agent, from 0; without it the agents speak in order.
        hand_over: what gives the agent the word. tool_result: what a tool printed, pasted in before the answer.
        answer: what it says.
    """

    role: str = Field(min_length=1, max_length=64)
    speaker: int | None = Field(default=None, ge=0, lt=MAX_AGENTS)
    hand_over: Tokens
    tool_result: int = Field(default=0, ge=0, le=1 << 20)
    answer: Tokens

    @property
    def n_prompt(self) -> int:
        """Tokens that the turn adds to the conversation before its answer."""
        return self.hand_over + self.tool_result


class Workflow(_Table):
    """A conversation of agents over a shared context, as rounds of the same turns.

    Attributes:
        agents: how many there are where the command line does not say.
        contexts: the longest prompts to measure, in tokens; what the turns leave of one is the shared context.
        question: tokens that a person says before each round.
        at_once: all agents answer the same question, none reading the others.
        warm_turns: the least number of turns to measure after each agent's first. repeats: of the whole.
        turns: in order. Where there are more agents than turns, the turns begin again.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")
    description: str = Field(default="", max_length=400)
    agents: int = Field(ge=1, le=MAX_AGENTS)
    contexts: tuple[Tokens, ...] = Field(min_length=1, strict=False)
    question: int = Field(default=0, ge=0, le=1 << 20)
    at_once: bool = False
    warm_turns: int = Field(default=40, ge=1, le=10_000)
    repeats: int = Field(default=3, ge=1, le=100)
    turns: tuple[Turn, ...] = Field(min_length=1, max_length=1000, strict=False)

    @model_validator(mode="after")
    def _speakers(self) -> Self:
        named = {turn.speaker for turn in self.turns}
        if named == {None}:
            return self
        if None in named:
            raise ValueError("speaker stands at some turns only: give it at all of them, or at none")
        if self.at_once:
            raise ValueError("agents that answer at once speak in order: leave speaker out")
        if named != set(range(self.agents)):
            raise ValueError(f"speaker must name each of the {self.agents} agents, 0 to {self.agents - 1}")
        return self

    @property
    def names_speakers(self) -> bool:
        """Whether the turns say who speaks, so that the number of agents is the file's."""
        return self.turns[0].speaker is not None

    @property
    def sha256(self) -> str:
        """What tells this workflow from another of its name (hex), its words for people left out."""
        content = self.model_dump_json(exclude={"description", "contexts", "repeats", "warm_turns", "agents"})
        return hashlib.sha256(content.encode()).hexdigest()


def shipped() -> list[str]:
    """Names of the workflows that come with the program."""
    return sorted(file.name.removesuffix(".toml") for file in _SHIPPED.iterdir() if file.name.endswith(".toml"))


def read_workflow(name: str) -> Workflow:
    """A shipped workflow by its name, or one's own by the path of its file.

    Raises:
        WorkflowError: there is none, or it cannot be read, is no TOML, or has a key or value that is none (which).
    """
    if name in shipped():
        return _parsed(f"{name}.toml", (_SHIPPED / f"{name}.toml").read_bytes())
    path = Path(name).expanduser()
    if not path.is_file():
        raise WorkflowError(
            f"there is no workflow {name}", f"There are {', '.join(shipped())}; or give the path of a TOML file"
        )
    try:
        with path.open("rb") as handle:
            raw = handle.read(_MAX_FILE + 1)
    except OSError as error:
        raise WorkflowError(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > _MAX_FILE:
        raise WorkflowError(f"{path} is larger than {_MAX_FILE >> 10} KiB, which no workflow is")
    return _parsed(str(path), raw)


def _parsed(file: str, raw: bytes) -> Workflow:
    try:
        content: dict[str, Any] = tomllib.loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise WorkflowError(f"{file} is no TOML: {error}") from error
    try:
        return Workflow.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        words = first["msg"].removeprefix("Value error, ")
        raise WorkflowError(f"{file}: key {key}: {words}" if key else f"{file}: {words}") from error
