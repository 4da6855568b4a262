"""Who takes part: agents found by name and made ready to speak, their adapters read, checked and resident."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from icarus_local.chat.agents import Agent
from icarus_local.chat.events import AgentsChanged, AgentState
from icarus_local.chat.figures import mib
from icarus_local.chat.requests import AddAgent, ReloadAgent, RemoveAgent, check_name
from icarus_local.engine.adapter_file import TRAINED_ORDINARY, Adapter, read_adapter, read_rank
from icarus_local.engine.engine import Engine
from icarus_local.errors import AdapterError, IcarusError, RequestError


@dataclass(frozen=True, slots=True)
class ReadyAgent:
    """An agent and its adapter in the engine; `adapter_id` None speaks as the base. `notices` are for the person.

    `given` is how it was named. `file` and `state` are the adapter's, as it was read.
    """

    agent: Agent
    adapter_id: int | None
    notices: tuple[str, ...] = ()
    file: Path | None = None
    state: tuple[int, int] = (0, 0)
    given: str = ""

    def change_on_disk(self) -> str:
        """What to tell where the adapter's file is no longer what was loaded; "" where it is."""
        if self.file is None or _state(self.file) == self.state:
            return ""
        return f"{self.file} has changed or gone since it was loaded: {self.name} speaks as it was"

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.agent.name


class Roster:
    """The agents of a conversation, in the order in which they speak. To be used from the engine's thread.

    Attributes:
        agents: those who are ready.
    """

    def __init__(
        self,
        engine: Engine,
        choose: Callable[[str], Agent],
        locate: Callable[[str], Path],
        tokenizer_sha256: str,
        template_sha256: str,
        *,
        instruction_only: bool = False,
    ) -> None:
        """Begins with nobody.

        Args:
            engine: where the adapters become resident.
            choose: gives the agent of a name, or of what else a person gives for one; raises RequestError.
            locate: gives the file of an adapter by its name in `Agent`; raises AdapterError.
            tokenizer_sha256: of the base's vocabulary.
            template_sha256: of the chat template in use.
            instruction_only: an agent whose adapter does not fit speaks as the base with its instruction, marked so.
        """
        self._engine, self._choose, self._locate = engine, choose, locate
        self._tokenizer_sha256, self._template_sha256 = tokenizer_sha256, template_sha256
        self._instruction_only = instruction_only
        self.agents: tuple[ReadyAgent, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names, in the order in which they speak."""
        return tuple(ready.name for ready in self.agents)

    @property
    def states(self) -> tuple[AgentState, ...]:
        """What there is to know of them now."""
        return tuple(map(self._state_of, self.agents))

    def _state_of(self, ready: ReadyAgent) -> AgentState:
        n_bytes, resident = 0, True
        if ready.adapter_id is not None:
            n_bytes = self._engine.bytes_of_adapter(ready.adapter_id)
            resident = self._engine.is_resident(ready.adapter_id)
        adapter = "" if ready.file is None else str(ready.file)
        return AgentState(ready.name, ready.given, adapter, n_bytes, resident, ready.agent.max_tokens)

    # -- who comes and goes --------------------------------------------------------------------------------------------

    def change(self, request: AddAgent | RemoveAgent | ReloadAgent) -> AgentsChanged:
        """Serves a request, and says what was done.

        Raises:
            IcarusError: it cannot be; the roster is as it was.
        """
        match request:
            case AddAgent():
                ready = self.add(request.agent)
                told, notices = f"{ready.name} takes part from now on{self._in_memory(ready)}", ready.notices
            case ReloadAgent():
                ready = self.reload(request.agent)
                told, notices = f"{ready.name} was read again{self._in_memory(ready)}", ready.notices
            case RemoveAgent():
                self.remove(request.agent)
                told, notices = f"{request.agent} takes part no more", ()
        return AgentsChanged(self.states, told, notices)

    def _in_memory(self, ready: ReadyAgent) -> str:
        return (
            ", without an adapter" if ready.adapter_id is None else f": {mib(self._state_of(ready).n_bytes)}, in memory"
        )

    def reserve(self, given: Sequence[str]) -> None:
        """Makes room for the adapters of all these agents at once; what is wrong with one of them, `add` says.

        Raises:
            IcarusError: there is not enough memory for them.
        """
        ranks = []
        for name in given:
            with contextlib.suppress(IcarusError):
                adapter = self._choose(name).adapter_for(self._engine.base.family_id)
                if adapter is not None:
                    ranks.append(read_rank(self._locate(adapter)))
        self._engine.reserve_adapters(ranks)

    def add(self, given: str) -> ReadyAgent:
        """Lets an agent take part, behind the others.

        Raises:
            AdapterError: its adapter is missing, damaged, or not for this base, with what would serve.
            RequestError: there is none of that name, or one takes part already.
        """
        agent = self._choose(given)
        if agent.name in self.names:
            raise RequestError(f"the agent {agent.name} takes part already", "Each agent is named once")
        ready = self._ready(agent, given, self._instruction_only)
        self.agents = (*self.agents, ready)
        return ready

    def remove(self, name: str) -> None:
        """Lets an agent take part no more, and frees its adapter; RequestError where it is not there, or the last."""
        ready = self._of(name)
        if len(self.agents) == 1:
            raise RequestError(f"{name} is the only agent here", "Add another before")
        self.agents = tuple(other for other in self.agents if other is not ready)
        self._free(ready)

    def reload(self, name: str) -> ReadyAgent:
        """Reads an agent's description and adapter anew.

        Raises:
            RequestError: it is not there. IcarusError: what is there now cannot be used, and the agent stays as it was.
        """
        old = self._of(name)
        try:
            # One that speaks by an adapter goes on doing so.
            again = self._ready(self._choose(old.given), old.given, self._instruction_only and old.adapter_id is None)
        except IcarusError as error:
            raise type(error)(f"{name} stays as it was: {error.what}", error.hint) from error
        self.agents = tuple(again if other is old else other for other in self.agents)
        self._free(old)
        return again

    def _of(self, name: str) -> ReadyAgent:
        check_name(name, self.names)
        return next(ready for ready in self.agents if ready.name == name)

    def _free(self, ready: ReadyAgent) -> None:
        if ready.adapter_id is not None:
            self._engine.remove_adapter(ready.adapter_id)

    # -- making ready --------------------------------------------------------------------------------------------------

    def _ready(self, agent: Agent, given: str, instruction_only: bool) -> ReadyAgent:
        try:
            return self._load(agent, given)
        except AdapterError as error:
            if not instruction_only:
                raise AdapterError(
                    f"agent {agent.name}: {error.what}",
                    f"{error.hint + '. ' if error.hint else ''}Or give --instruction-only to let it speak as the base",
                ) from error
            notice = f"{agent.name} speaks as the base, by its instruction only: {error.what}"
            return ReadyAgent(agent, None, (notice,), given=given)

    def _load(self, agent: Agent, given: str) -> ReadyAgent:
        if agent.is_base:
            return ReadyAgent(agent, None, given=given)
        base = self._engine.base
        name = agent.adapter_for(base.family_id)
        if name is None:
            raise AdapterError(
                f"it has no adapter for this base, whose family is {base.family_id[:12]}",
                f"Train one: icarus-train run --agent {agent.name} --base {base.path} --data DATA.jsonl -o RUN; then "
                "name it in its adapters",
            )
        file = self._locate(name)
        state = _state(file)
        adapter = read_adapter(file)
        if adapter.tokenizer_sha256 and adapter.tokenizer_sha256 != self._tokenizer_sha256:
            raise AdapterError(
                f"{adapter.path} was trained with another vocabulary than this base has",
                "Use the base that it was trained on",
            )
        notices = _notices(agent.name, adapter)
        if adapter.template_sha256 and adapter.template_sha256 != self._template_sha256:
            notices.append(f"{agent.name} was trained with another chat template; its answers may suffer")
        return ReadyAgent(agent, self._engine.add_adapter(adapter), tuple(notices), file, state, given)


def _notices(name: str, adapter: Adapter) -> list[str]:
    """What a person should be told of how an adapter came about."""
    notices = []
    if not any(np.any(pair.b) and np.any(pair.a) for pair in adapter.pairs.values()):
        notices.append(f"{name}: its adapter holds only zeros, so it speaks as the base")
    if adapter.dropped_kv:
        left_out = ", ".join(adapter.dropped_kv)
        notices.append(f"{name}: {left_out} were left out of its adapter, so it is not what was trained")
    elif adapter.assumed and adapter.trained == TRAINED_ORDINARY:
        notices.append(f"{name} was trained the ordinary way: a shared cache is not what it learnt to read")
    elif adapter.assumed:
        notices.append(f"{name}: whoever converted {adapter.path.name} assumed that it was trained on the frozen cache")
    return notices


def _state(file: Path) -> tuple[int, int]:
    """Size and time of change of a file; zeros where there is none."""
    try:
        found = file.stat()
    except OSError:
        return (0, 0)
    return found.st_size, found.st_mtime_ns
