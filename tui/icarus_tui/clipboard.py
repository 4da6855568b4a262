"""Puts text on a clipboard: the terminal's, by an escape sequence, and the machine's, by a program that it has."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress

from textual.app import App

from icarus_local.chat.figures import counted

_TIMEOUT_S = 3.0
_MAX_SEQUENCE = 74_994  # bytes of base64; several terminals drop longer sequences
_SILENT_TERMINALS = ("dumb", "linux", "vt100", "vt220", "")


async def copy(app: App[object], text: str) -> str:
    """Copies `text` and says what came of it.

    The terminal is asked wherever it may understand that, since it is the clipboard of the person who sits before it,
    over SSH too; whether it heeds it cannot be known.
    """
    if not text:
        return "there is nothing to copy"
    text = text.encode("utf-8", "replace").decode("utf-8")  # models may write lone surrogates
    amount = counted(len(text), "character")
    asked = sys.platform == "win32" or os.environ.get("TERM", "") not in _SILENT_TERMINALS
    if asked:
        app.copy_to_clipboard(text)
    for command in _programs(os.environ):
        if await _takes(command, text):
            return f"{amount} copied by {os.path.basename(command[0])}"
    if not asked:
        return (
            "nothing was copied: neither this terminal nor a program here takes it; the terminal's own means may help"
        )
    if len(base64.b64encode(text.encode("utf-8"))) > _MAX_SEQUENCE:
        return f"{amount} sent to the terminal's clipboard; some terminals refuse as many"
    return f"{amount} sent to the terminal's clipboard; some terminals do not heed it"


def _programs(environment: Mapping[str, str]) -> Iterator[list[str]]:
    """The commands that may take a copy on their input, the most fitting first, as far as they are installed."""
    known = [
        (sys.platform == "darwin", ["pbcopy"]),
        ("WAYLAND_DISPLAY" in environment, ["wl-copy"]),
        ("DISPLAY" in environment, ["xclip", "-selection", "clipboard"]),
        ("DISPLAY" in environment, ["xsel", "--clipboard", "--input"]),
        ("TERMUX_VERSION" in environment, ["termux-clipboard-set"]),
        (sys.platform == "win32" or "WSL_DISTRO_NAME" in environment, ["clip.exe"]),
    ]
    for fits, (name, *arguments) in known:
        if fits and (path := shutil.which(name)):
            yield [path, *arguments]


async def _takes(command: list[str], text: str) -> bool:
    """Whether the program took the text in time; one that hangs, as `xclip` without its display may, is ended."""
    # clip.exe reads UTF-16, by the mark at its beginning.
    data = text.encode("utf-16" if command[0].endswith("clip.exe") else "utf-8")
    quiet = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=quiet, stderr=quiet
        )
    except OSError:
        return False
    try:
        await asyncio.wait_for(process.communicate(data), _TIMEOUT_S)
    except (TimeoutError, OSError):
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return False
    return process.returncode == 0
