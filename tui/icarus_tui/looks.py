"""Text of models, people and errors as Textual may draw it: never markup, never a terminal's commands."""

from __future__ import annotations

import re

from textual.content import Content, Span
from textual.theme import Theme

from icarus_local.chat.figures import printable

# Readable on every background that Textual's themes have; more agents than colours take them in turn.
_ON_DARK = ("#8cc2ff", "#ffb86c", "#93e68c", "#ecabf5", "#f2d76b", "#7de0e0", "#ffacac", "#cbbcff")
_ON_LIGHT = ("#004f9e", "#7a3e00", "#1d5c1d", "#7d1f8a", "#5c4a00", "#00565c", "#971717", "#4b35a8")
_ANSI_ON_DARK = ("bright_blue", "bright_yellow", "bright_green", "bright_magenta", "bright_cyan", "bright_red")
_ANSI_ON_LIGHT = ("blue", "red", "green", "magenta", "cyan", "yellow")
_COLOURS = len(_ON_DARK)

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def colour(index: int) -> str:
    """The style of the agent who stands at `index` among the agents, in the variables of `agent_variables`."""
    return f"$agent-{index % _COLOURS}"


def agent_variables(theme: Theme) -> dict[str, str]:
    """The agents' colours as variables of a theme; the terminal's own where the theme uses them."""
    if theme.ansi:
        names = _ANSI_ON_DARK if theme.dark else _ANSI_ON_LIGHT
        colours: tuple[str, ...] = tuple(f"ansi_{name}" for name in names)
    else:
        colours = _ON_DARK if theme.dark else _ON_LIGHT
    return {f"agent-{index}": colours[index % len(colours)] for index in range(_COLOURS)}


def neutral(text: str) -> str:
    """`text`, character by character: what could steer the terminal or cannot be encoded is a replacement."""
    return _LONE_SURROGATE.sub("\ufffd", printable(text))


def literal(text: str, style: str = "") -> Content:
    """`text` as `neutral` gives it, in one style."""
    shown = neutral(text)
    return Content(shown, [Span(0, len(shown), style)] if style and shown else None)
