"""The external editor: the terminal is its own meanwhile."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from textual.app import App, SuspendNotSupported

from icarus_local.chat.figures import printable
from icarus_local.errors import RequestError

_DEFAULTS = ("notepad",) if sys.platform == "win32" else ("nano", "vi")
_HINT = "Set editor under [screen] in the settings, or $VISUAL"


def edit(app: App[object], text: str, command: str = "") -> str | None:
    """Lets the person change a text in an editor and gives what it became; None where it stayed the same.

    Args:
        command: the editor with its options; "" for $VISUAL, else $EDITOR, else what the system has.

    Raises:
        RequestError: there is no such editor, it failed, or this terminal cannot be lent to it.
    """
    words = _words(command or os.environ.get("VISUAL") or os.environ.get("EDITOR") or _installed())
    try:
        # Folder and file are for their owner only. Windows gives no file to two programs: it is closed meanwhile.
        with tempfile.TemporaryDirectory(prefix="icarus-") as folder:
            file = Path(folder) / "question.md"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            with open(os.open(file, flags, 0o600), "wb") as handle:
                handle.write(text.encode("utf-8", "replace"))
            with app.suspend():
                failure = _failure([*words, str(file)])
            if failure:
                raise RequestError(f"the editor {words[0]} {failure}; the text is as before", _HINT)
            edited = printable(file.read_text("utf-8", errors="replace"))
    except SuspendNotSupported as error:
        raise RequestError("this terminal cannot be lent to an editor") from error
    except OSError as error:
        raise RequestError(f"the text for the editor cannot be kept: {error.strerror}") from error
    # Editors end the last line.
    edited = edited.removesuffix("\n")
    return None if edited == text.removesuffix("\n") else edited


def _words(command: str) -> list[str]:
    windows = sys.platform == "win32"
    try:
        # The backslashes of a path there would be escapes.
        words = [word.strip('"') if windows else word for word in shlex.split(command, posix=not windows)]
    except ValueError as error:
        raise RequestError(f"the editor's command {command!r} cannot be read: {error}", _HINT) from error
    if not words:
        raise RequestError("there is no editor", _HINT)
    return words


def _installed() -> str:
    return next((name for name in _DEFAULTS if shutil.which(name)), "")


def _failure(command: list[str]) -> str:
    """Runs it and says what went wrong, if anything did: an error here would leave the terminal as it is now."""
    # Ctrl-C is the editor's meanwhile; it comes to this process too.
    before, wakes = signal.signal(signal.SIGINT, lambda *_: None), signal.set_wakeup_fd(-1)
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    finally:
        signal.set_wakeup_fd(wakes)
        signal.signal(signal.SIGINT, before)
    return f"failed with exit code {code}" if code else ""
