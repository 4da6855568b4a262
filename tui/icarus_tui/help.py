"""What `/help` says: the keys as they are bound now, and the commands."""

from __future__ import annotations

from collections.abc import Iterator

from textual.app import App
from textual.binding import BindingsMap, Keymap
from textual.dom import DOMNode

from icarus_local.chat.lines import help_lines
from icarus_tui.prompt import Prompt
from icarus_tui.transcript import Transcript

_INTRODUCTION = """\
A line is a question to all agents in turn; @name QUESTION asks one of them, or several. @FILE in it adds that file.
You may type ahead: what waits comes back by Up in the empty input, to be changed or dropped.
Where the program asks, y agrees; a line that says something else leaves things as they are.
Stopped before anything was said, a question goes back into the input."""


def help_text(app: App[None], keymap: Keymap) -> str:
    """The whole help; `keymap` says which keys are not the ones that the program comes with."""
    typing = [*_keys(Prompt, app, keymap), *_keys(type(app.screen), app, keymap), *_keys(type(app), app, keymap)]
    browsing = _keys(Transcript, app, keymap)
    return "\n".join(
        [_INTRODUCTION, f"Keys: {'; '.join(typing)}.", f"While browsing: {'; '.join(browsing)}.", *help_lines(True)]
    )


def _keys(kind: type[DOMNode], app: App[None], keymap: Keymap) -> Iterator[str]:
    """Each action's keys with what they do."""
    bound = BindingsMap(kind.BINDINGS)
    bound.apply_keymap(keymap)
    keys: dict[str, list[str]] = {}
    for key, binding in bound:
        shown = app.get_key_display(binding.with_key(key, binding.key_display))
        keys.setdefault(binding.description, []).append(shown)
    for description, names in keys.items():
        yield f"{'/'.join(dict.fromkeys(names))} {description[:1].lower()}{description[1:]}"
