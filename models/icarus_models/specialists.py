"""The four specialists that the project trains and measures: how each is given the word, in training as in a chat."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from icarus_local.chat.agents import Agent
from icarus_models.catalog import agents

NAMES = ("coder", "reviewer", "math", "tools")
_NOT_SHIPPED = (
    Agent(
        name="math",
        instruction="Reply as math: calculate step by step and end with `Answer: NUMBER`.",
        max_tokens=200,
    ),
    Agent(
        name="tools",
        instruction='Reply as tools: one JSON call of a function above, {"name": …, "arguments": {…}}, or say "No '
        'function fits."',
        max_tokens=120,
    ),
)


def specialists() -> list[Agent]:
    """The catalog's agents, and those of the four that it does not ship."""
    shipped = agents()
    names = {agent.name for agent in shipped}
    return [*shipped, *(agent for agent in _NOT_SHIPPED if agent.name not in names)]


def specialist(name: str) -> Agent:
    """The agent of that name; one without an instruction where it is none of them."""
    return next((agent for agent in specialists() if agent.name == name), None) or Agent(name=name)


def recipe_file(name: str) -> Path:
    """The recipe that one of the four is trained by."""
    return Path(str(files("icarus_models"))) / "recipes" / f"{name}.toml"
