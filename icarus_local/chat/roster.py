"""Makes agents ready to speak: adapters read, checked against base, tokenizer and template, and resident."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from icarus_local.chat.agents import Agent
from icarus_local.engine.adapter_file import TRAINED_ORDINARY, Adapter, read_adapter
from icarus_local.engine.engine import Engine
from icarus_local.errors import AdapterError, RequestError


@dataclass(frozen=True, slots=True)
class ReadyAgent:
    """An agent and its resident adapter; `adapter_id` None speaks as the base. `notices` are for the person.

    `file` and `state` are the adapter's, as it was read.
    """

    agent: Agent
    adapter_id: int | None
    notices: tuple[str, ...] = ()
    file: Path | None = None
    state: tuple[int, int] = (0, 0)

    def change_on_disk(self) -> str:
        """What to tell where the adapter's file is no longer what was loaded; "" where it is."""
        if self.file is None or _state(self.file) == self.state:
            return ""
        return f"{self.file} has changed or gone since it was loaded: {self.name} speaks as it was"

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.agent.name


def make_ready(
    agents: Iterable[Agent],
    engine: Engine,
    locate: Callable[[str], Path],
    tokenizer_sha256: str,
    template_sha256: str,
    *,
    instruction_only: bool = False,
) -> list[ReadyAgent]:
    """Loads the agents' adapters.

    Args:
        agents: in the order in which they speak.
        engine: where the adapters become resident.
        locate: gives the file of an adapter by its name in `Agent`; raises AdapterError.
        tokenizer_sha256: of the base's vocabulary.
        template_sha256: of the chat template in use.
        instruction_only: an agent whose adapter does not fit speaks as the base with its instruction, marked so.

    Raises:
        AdapterError: an adapter is missing, damaged, or not for this base, with what would serve.
        RequestError: two agents of one name, or none.
    """
    ready: list[ReadyAgent] = []
    for agent in agents:
        if any(other.name == agent.name for other in ready):
            raise RequestError(f"the agent {agent.name} is named twice")
        try:
            ready.append(_load(agent, engine, locate, tokenizer_sha256, template_sha256))
        except AdapterError as error:
            if not instruction_only:
                raise AdapterError(
                    f"agent {agent.name}: {error.what}",
                    f"{error.hint + '. ' if error.hint else ''}Or give --instruction-only to let it speak as the base",
                ) from error
            ready.append(
                ReadyAgent(agent, None, (f"{agent.name} speaks as the base, by its instruction only: {error.what}",))
            )
    if not ready:
        raise RequestError("no agent was named", "Give --agents NAME,NAME")
    return ready


def _load(
    agent: Agent, engine: Engine, locate: Callable[[str], Path], tokenizer_sha256: str, template_sha256: str
) -> ReadyAgent:
    if agent.is_base:
        return ReadyAgent(agent, None)
    name = agent.adapter_for(engine.base.family_id)
    if name is None:
        raise AdapterError(
            f"it has no adapter for this base, whose family is {engine.base.family_id[:12]}",
            f"Train one: icarus-train run --agent {agent.name} --base {engine.base.path}; then name it in its adapters",
        )
    file = locate(name)
    state = _state(file)
    adapter = read_adapter(file)
    _check_tokenizer(adapter, tokenizer_sha256)
    notices = []
    if not any(np.any(pair.b) and np.any(pair.a) for pair in adapter.pairs.values()):
        notices.append(f"{agent.name}: its adapter holds only zeros, so it speaks as the base")
    if adapter.dropped_kv:
        left_out = ", ".join(adapter.dropped_kv)
        notices.append(f"{agent.name}: {left_out} were left out of its adapter, so it is not what was trained")
    elif adapter.assumed and adapter.trained == TRAINED_ORDINARY:
        notices.append(f"{agent.name} was trained the ordinary way: a shared cache is not what it learnt to read")
    elif adapter.assumed:
        notices.append(
            f"{agent.name}: whoever converted {adapter.path.name} assumed that it was trained on the frozen cache"
        )
    if adapter.template_sha256 and adapter.template_sha256 != template_sha256:
        notices.append(f"{agent.name} was trained with another chat template; its answers may suffer")
    return ReadyAgent(agent, engine.add_adapter(adapter), tuple(notices), file, state)


def _state(file: Path) -> tuple[int, int]:
    """Size and time of change of a file; zeros where there is none."""
    try:
        found = file.stat()
    except OSError:
        return (0, 0)
    return found.st_size, found.st_mtime_ns


def _check_tokenizer(adapter: Adapter, tokenizer_sha256: str) -> None:
    if adapter.tokenizer_sha256 and adapter.tokenizer_sha256 != tokenizer_sha256:
        raise AdapterError(
            f"{adapter.path} was trained with another vocabulary than this base has",
            "Use the base that it was trained on",
        )
