"""Which agents there are: the base, the shipped catalog, the user's folder, a file, and adapters of one's own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from icarus_local.chat.agents import BASE_NAME, Agent, base_agent, read_agents_file
from icarus_local.errors import AdapterError, IcarusError, RequestError
from icarus_local.paths import config_dir


@dataclass(frozen=True, slots=True)
class KnownAgent:
    """An agent and, in words, where it comes from."""

    agent: Agent
    source: str


def agents_folder() -> Path:
    """Where the user's own agents files lie, `*.toml`."""
    return config_dir() / "agents"


def known_agents(agents_file: Path | None) -> dict[str, KnownAgent]:
    """All agents by name. What is nearer to the command line replaces what is farther: catalog, user's folder, file.

    Raises:
        RequestError: a file that cannot be read or is wrong.
    """
    known = {BASE_NAME: KnownAgent(base_agent(), "the base model")}
    known |= {agent.name: KnownAgent(agent, "the catalog") for agent in _catalog()}
    files = sorted(agents_folder().glob("*.toml")) if agents_folder().is_dir() else []
    for file in [*files, *([agents_file] if agents_file else [])]:
        known |= {agent.name: KnownAgent(agent, str(file)) for agent in read_agents_file(file)}
    return known


def _catalog() -> list[Agent]:
    try:
        from icarus_models.catalog import agents
    except ImportError:
        return []
    return agents()


def choose_agent(given: str, max_tokens: int | None = None, agents_file: Path | None = None) -> Agent:
    """The agent of a name that is known, or of NAME=FILE.gguf for an adapter of one's own.

    Raises:
        RequestError: an unknown name, with the known ones; a name that no agent can have.
    """
    known = {name: found.agent for name, found in known_agents(agents_file).items()}
    name, own, adapter = (text.strip() for text in given.partition("="))
    if own and name == BASE_NAME:
        raise RequestError(f"{BASE_NAME} is the base model itself and takes no adapter", "Give another name")
    if own and name not in known:
        known[name] = _new_agent(name)
    if name not in known:
        raise RequestError(
            f"there is no agent {name!r}",
            f"Known are {', '.join(known)}, or give NAME=FILE.gguf, or --agents-file FILE.toml",
        )
    changes: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
    if own:
        changes |= {"adapter": adapter, "adapters": {}}
    return known[name].model_copy(update=changes)


def _new_agent(name: str) -> Agent:
    try:
        return Agent(name=name)
    except ValidationError as error:
        raise RequestError(f"{name!r} cannot be an agent's name", "Use letters, digits, _ and -") from error


def locate_adapter(name: str) -> Path:
    """The file of an adapter: a path, the adapter of an agent of the catalog, or OWNER/NAME/FILE.gguf on the Hub.

    Raises:
        AdapterError: there is none, or it cannot be fetched.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    of_catalog = next((agent.adapter for agent in _catalog() if agent.name == name), None)
    if of_catalog is not None:
        return Path(of_catalog)
    if name.count("/") < 2 or path.is_absolute() or not name.endswith(".gguf"):
        raise AdapterError(
            f"there is no adapter {name}", "Give the path of a .gguf file, or OWNER/NAME/FILE.gguf on the Hub"
        )
    from icarus_local.hub import fetch

    try:
        return fetch(name)
    except IcarusError as error:
        raise AdapterError(error.what, error.hint) from error


def run_agents(agents_file: Path | None, as_json: bool) -> None:
    """Prints all agents, one a line or as JSON."""
    known = known_agents(agents_file)
    if as_json:
        click.echo(json.dumps([{**found.agent.model_dump(), "source": found.source} for found in known.values()]))
        return
    width = max(len(name) for name in known)
    for name, found in known.items():
        click.echo(f"{name:<{width}}  {_adapters(found.agent)}  ({found.source})")
        if found.agent.instruction:
            click.echo(f"{'':<{width}}  {found.agent.instruction}")


def _adapters(agent: Agent) -> str:
    names = [agent.adapter] if agent.adapter else []
    names += [f"{adapter} on {family[:12]}" for family, adapter in agent.adapters.items()]
    return ", ".join(names) or "no adapter"
