"""Which themes there are: Textual's, and the terminal's own colours."""

from __future__ import annotations

import os
from typing import Any

from textual.app import App
from textual.theme import Theme

from icarus_local.errors import RequestError

TERMINAL = "terminal"


def native_colours() -> bool | None:
    """`App`'s `ansi_color`. Where NO_COLOR is set all colours are left out then; else Textual makes greys of them, and
    black on black of the terminal's own.
    """
    return True if "NO_COLOR" in os.environ else None


def theme_names(app: App[Any]) -> tuple[str, ...]:
    """All that may be chosen, in order."""
    return (TERMINAL, *sorted(name for name in app.available_themes if name != TERMINAL))


def apply(app: App[Any], name: str) -> None:
    """Gives the app a theme.

    Raises:
        RequestError: there is none of that name; it lists those that there are.
    """
    if name not in theme_names(app):
        raise RequestError(f"there is no theme {name!r}", f"There are {', '.join(theme_names(app))}")
    if name == TERMINAL and TERMINAL not in app.available_themes:
        app.register_theme(_terminal())
    app.theme = name


def _terminal() -> Theme:
    """Text and background as the terminal has them, and its sixteen colours for the rest.

    Whether it is dark or light is not known: what is chosen brings its own background.
    """
    return Theme(
        name=TERMINAL,
        ansi=True,
        primary="ansi_blue",
        secondary="ansi_cyan",
        warning="ansi_yellow",
        error="ansi_red",
        success="ansi_green",
        accent="ansi_magenta",
        variables={
            "ansi-background": "ansi_default",
            "ansi-foreground": "ansi_default",
            "block-cursor-background": "ansi_blue",
            "block-cursor-foreground": "ansi_bright_white",
            "border": "ansi_blue",
            "border-blurred": "ansi_bright_black",
            "input-selection-background": "ansi_blue",
            "input-selection-foreground": "ansi_bright_white",
            "screen-selection-background": "ansi_blue",
            "screen-selection-foreground": "ansi_bright_white",
            "scrollbar": "ansi_blue",
            "scrollbar-background": "ansi_default",
            "scrollbar-background-hover": "ansi_default",
            "scrollbar-background-active": "ansi_default",
        },
    )
