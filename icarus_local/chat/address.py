"""Whom a line is meant for: `@name question` asks one agent, anything else all of them."""

from __future__ import annotations

import re

_ADDRESSED = re.compile(r"\s*@(?P<name>[\w-]+)[,:]?(\s+(?P<text>.*))?", re.DOTALL)


def split_address(line: str) -> tuple[str, tuple[str, ...]]:
    """The question in a line, and the names of the agents asked; no name means all."""
    match = _ADDRESSED.fullmatch(line)
    return (match["text"] or "", (match["name"],)) if match else (line, ())
