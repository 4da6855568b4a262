"""A session on a tiny real engine with three agents, as tests of the chat hold conversations with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from icarus_local.chat.agents import Agent, base_agent
from icarus_local.chat.events import AnswerDone, Event
from icarus_local.chat.roster import Roster
from icarus_local.chat.session import Session
from icarus_local.engine.engine import Engine
from icarus_local.errors import RequestError
from icarus_local.text.sampler import Sampling
from icarus_local.text.template import ChatTemplate
from icarus_local.text.tokenizer import Tokenizer
from tests.agents import add_agents, convert
from tests.tiny import Tiny


def tiny_agents(tiny: Tiny, directory: Path) -> list[Agent]:
    """Two agents with random adapters, one greedy and one sampled, and the base."""
    peft = add_agents(tiny.model, {"one": 0.3, "two": 0.3})
    files = {name: convert(peft, name, tiny.path, directory) for name in ("one", "two")}
    return [
        Agent(name="a", adapter=str(files["one"]), instruction="Be a.", max_tokens=12),
        Agent(name="b", adapter=str(files["two"]), max_tokens=9, sampling=Sampling(temperature=1.0, seed=4)),
        base_agent().model_copy(update={"max_tokens": 7}),
    ]


def make_session(
    base: Path,
    agents: Sequence[Agent],
    stack: ExitStack,
    n_ctx: int = 1024,
    speculate: bool | None = None,
    template: str | None = None,
    system: str = "sys",
    known: Sequence[Agent] | None = None,
    max_adapters: int | None = None,
) -> Session:
    """A session on the CPU with an f32 cache.

    `template` is a chat template to use instead of the base's own; `known` are those who are found by their names,
    where they are not those who take part.
    """
    engine = stack.enter_context(
        Engine(base, n_ctx=n_ctx, kv_type="f32", n_threads=1, device="cpu", max_adapters=max_adapters)
    )
    tokenizer = Tokenizer(base)
    stack.callback(tokenizer.close)
    source = template or tokenizer.template_source
    assert source is not None
    chat_template = ChatTemplate(source, tokenizer)
    roster = make_roster(agents if known is None else known, engine, tokenizer.sha256, chat_template.sha256)
    for agent in agents:
        roster.add(agent.name)
    return Session(engine, tokenizer, chat_template, roster, system, speculate=speculate)


def make_roster(
    known: Sequence[Agent], engine: Engine, tokenizer_sha256: str = "", template_sha256: str = "", **options: Any
) -> Roster:
    """Nobody yet, but these agents are found by their names; `known` may change meanwhile."""
    return Roster(engine, partial(choose, known), Path, tokenizer_sha256, template_sha256, **options)


def choose(known: Sequence[Agent], name: str) -> Agent:
    """As the command line does."""
    for agent in known:
        if agent.name == name:
            return agent
    raise RequestError(f"there is no agent {name!r}")


def done(events: Iterable[Event]) -> list[AnswerDone]:
    """The answers among events."""
    return [event for event in events if isinstance(event, AnswerDone)]


def agree(session: Session) -> None:
    """What is cached is the beginning of what the history renders to, and nothing else takes cells."""
    cells = session.engine.cells
    cached = cells.tokens(session.sequence).tolist()
    if session.conversation.turns[-1].role == "assistant":
        # The last token may wait for its step.
        assert session.conversation.prompt()[: len(cached)] == cached
