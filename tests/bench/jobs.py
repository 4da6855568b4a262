"""Jobs over the tiny base, for the tests of what systems do; nothing of them depends on time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from icarus_local.bench.measurement import prepared
from icarus_local.bench.records import Case, Job, Setup
from icarus_local.bench.workflow import Turn, Workflow
from icarus_local.engine.engine import Engine
from tests.tiny import Tiny

CONTEXT = 512


@contextmanager
def tiny_setup(tiny: Tiny, agents: int) -> Iterator[Setup]:
    """Random adapters of rank 8 over the tiny base, as the command makes them."""
    with Engine(tiny.path, n_ctx=256, n_threads=1) as engine, prepared(engine, agents, rank=8) as setup:
        yield setup


def workflow(*turns: dict[str, Any], **keys: Any) -> Workflow:
    """A workflow of turns that hand over with 16 tokens and answer with 8, where nothing else is said."""
    default = {"role": "speaker", "hand_over": 16, "answer": 8}
    made = tuple(Turn(**{**default, **turn}) for turn in turns or ({},))
    return Workflow(**{"name": "tried", "agents": 3, "contexts": (CONTEXT,), "turns": made, **keys})


def case_of(script: Workflow, agents: int | None = None, warm_turns: int = 6) -> Case:
    """A case of CONTEXT tokens."""
    return Case(
        workflow=script.name,
        agents=agents or script.agents,
        context=CONTEXT,
        answer_tokens=None,
        warm_turns=warm_turns,
    )


def job(setup: Setup, system: str, script: Workflow, warm_turns: int = 6) -> Job:
    """One repeat of such a case."""
    return Job(setup=setup, workflow=script, case=case_of(script, warm_turns=warm_turns), system=system, seed=0)
