"""What crosses between the processes of a measurement and is kept in its file: cases, jobs and what they took."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from icarus_local.bench.workflow import Workflow


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Case(_Record):
    """What is measured with all systems; `answer_tokens` is None where the workflow's file holds.

    Attributes:
        warm_turns: the least number of turns after each agent's first.
    """

    workflow: str
    agents: int
    context: int
    answer_tokens: int | None
    warm_turns: int

    def __str__(self) -> str:
        agents = "1 agent" if self.agents == 1 else f"{self.agents} agents"
        answers = "" if self.answer_tokens is None else f", answers of {self.answer_tokens}"
        return f"{self.workflow}, {agents}, {self.context} tokens of context{answers}"


class Setup(_Record):
    """What all systems of a measurement have in common.

    Attributes:
        adapters: at least as many files as there are agents. kv_bytes_per_token: K and V of one token over all layers.
        repack: whether icarus repacks weights; llama.cpp has a rule of its own.
        llama_server: the program, where it is measured too.
    """

    base: Path
    adapters: tuple[Path, ...]
    kv_type: str
    n_threads: int
    repack: bool
    n_vocab: int
    kv_bytes_per_token: int
    llama_server: Path | None = None


class Job(_Record):
    """One system, one case, one repeat. `seed` is the same for all systems of a repeat."""

    setup: Setup
    workflow: Workflow
    case: Case
    system: str
    seed: int


class Turned(_Record):
    """A `TurnTime`, and whether the agent spoke for the first time."""

    agent: int
    cold: bool
    latency_s: float
    ttft_s: float
    busy_s: float
    encoded: int
    generated: int


class Record(_Record):
    """What a job took; `rss_bytes` is None where the system does not say."""

    turns: tuple[Turned, ...]
    kv_bytes: int
    kv_used_bytes: int
    rss_bytes: int | None


class Failure(_Record):
    """An error that is meant for people, on its way to the process that shows it."""

    error: str
    hint: str


class Run(_Record):
    """One system in one repeat of a case, finished.

    Attributes:
        wall_s: seconds that all of it took, loading and warm-up included.
        other_cores: cores that other processes kept busy meanwhile, on average; None where the system does not say.
    """

    case: Case
    system: str
    repeat: int
    record: Record
    wall_s: float
    other_cores: float | None
