"""The four specialists that the project trains, measures and ships: who they are, and their recipes."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from icarus_local.chat.agents import Agent
from icarus_models.catalog import agents

NAMES = ("coder", "reviewer", "math", "tools")


def specialist(name: str) -> Agent:
    """The shipped agent of that name; one without an instruction where it is none of them."""
    return next((agent for agent in agents() if agent.name == name), None) or Agent(name=name)


def recipe_file(name: str) -> Path:
    """The recipe that one of the four is trained by."""
    return Path(str(files("icarus_models"))) / "recipes" / f"{name}.toml"
