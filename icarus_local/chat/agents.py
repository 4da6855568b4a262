"""What an agent is: a name, an adapter on the shared base, an instruction given at its turn, and how it samples."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from icarus_local.errors import RequestError
from icarus_local.text.sampler import Sampling

BASE_NAME = "base"
_FAMILY = re.compile(r"[0-9a-f]{12,64}")
_MAX_FILE = 1 << 20  # bytes of an agents file


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _family(value: Any) -> Any:
    if not isinstance(value, str) or not _FAMILY.fullmatch(value):
        raise ValueError("a family id is 12 to 64 of the digits 0-9 and a-f (`icarus-local doctor` shows it)")
    return value


AdapterName = Annotated[str, BeforeValidator(_as_text), Field(min_length=1, max_length=4096)]


class Agent(BaseModel):
    """One specialist. Without an adapter it speaks as the base model.

    An adapter is named by the path of its file, by the agent of the catalog whose adapter it is, or by
    `OWNER/NAME/FILE.gguf` on the Hub.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")
    adapter: AdapterName | None = Field(default=None, description="for any base that has none in `adapters`")
    adapters: dict[Annotated[str, BeforeValidator(_family)], AdapterName] = Field(
        default={}, description="by the family id of a base, or its first 12 digits and more"
    )
    instruction: str = Field(default="", max_length=4096, description="said at the agent's turn, in the shared context")
    sampling: Sampling = Sampling()
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    max_tokens: int = Field(default=512, ge=1)
    accepts: str = Field(default="", max_length=256, description="an answer that begins so ends the rounds")

    @property
    def hand_over(self) -> str:
        """What the conversation says to give this agent the word."""
        return self.instruction or f"{self.name}, please answer."

    def ends_rounds(self, answer: str) -> bool:
        """Whether this answer accepts what was said before; upper and lower case are the same."""
        return bool(self.accepts) and answer.strip().casefold().startswith(self.accepts.casefold())

    @property
    def is_base(self) -> bool:
        """Whether it is meant to speak as the base."""
        return self.adapter is None and not self.adapters

    def adapter_for(self, family_id: str) -> str | None:
        """The adapter that is named for a base, or None where none is."""
        return next((name for family, name in self.adapters.items() if family_id.startswith(family)), self.adapter)


def base_agent() -> Agent:
    """The base model itself, which every conversation has."""
    return Agent(name=BASE_NAME)


def read_agents_file(path: Path) -> list[Agent]:
    """The agents of a TOML file, a table `[[agents]]` each; paths of adapters are relative to the file.

    Raises:
        RequestError: a file that cannot be read, is no TOML, or names an agent wrongly: which, which key, and why.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RequestError(f"the agents file {path} cannot be read: {error.strerror}") from error
    if len(raw) > _MAX_FILE:
        raise RequestError(f"the agents file {path} has {len(raw) >> 10} KiB; at most {_MAX_FILE >> 10} are read")
    try:
        content = tomllib.loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RequestError(f"the agents file {path} is no TOML: {error}") from error
    stray = sorted(set(content) - {"agents"})
    tables = content.get("agents")
    if stray or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        what = f"knows nothing of {', '.join(stray)}" if stray else "holds no [[agents]]"
        raise RequestError(f"the agents file {path} {what}", 'Write [[agents]] and, below it, name = "…"')
    agents = [_agent(path, table) for table in tables]
    for i, agent in enumerate(agents):
        if agent.name in [other.name for other in agents[:i]]:
            raise RequestError(f"{path} names the agent {agent.name} twice")
    return agents


def _agent(path: Path, table: dict[str, Any]) -> Agent:
    name = table.get("name", "without a name")
    try:
        agent = Agent(**table)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if part != "[key]")
        raise RequestError(f"{path}, agent {name}: key {key}: {first['msg']}") from error
    if agent.name == BASE_NAME:
        raise RequestError(f"{path} names an agent {BASE_NAME}, which is the base model itself", "Give another name")
    changes: dict[str, Any] = {"adapters": {key: _beside(path, value) for key, value in agent.adapters.items()}}
    if agent.adapter is not None:
        changes["adapter"] = _beside(path, agent.adapter)
    return agent.model_copy(update=changes)


def _beside(path: Path, name: str) -> str:
    """`name` as an absolute path where such a file lies beside an agents file; else as it is."""
    file = path.parent / Path(name).expanduser()
    return str(file.resolve()) if file.is_file() else name
