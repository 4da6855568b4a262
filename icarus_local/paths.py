"""Where the program keeps its files; `ICARUS_HOME` puts all of them under one directory.

Nothing here makes a directory: whoever writes into one makes it.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

_APP = "icarus-local"


def cache_dir() -> Path:
    """What can be computed again."""
    home = os.environ.get("ICARUS_HOME")
    return Path(home).expanduser() / "cache" if home else platformdirs.user_cache_path(_APP, appauthor=False)


def state_dir() -> Path:
    """What must not be lost: conversations."""
    home = os.environ.get("ICARUS_HOME")
    return Path(home).expanduser() / "state" if home else platformdirs.user_state_path(_APP, appauthor=False)


def config_dir() -> Path:
    """What a person wrote: agents of their own."""
    home = os.environ.get("ICARUS_HOME")
    return Path(home).expanduser() / "config" if home else platformdirs.user_config_path(_APP, appauthor=False)
