"""Where the program keeps its files; `ICARUS_HOME` puts all of them under one directory.

Nothing here makes a directory: whoever writes into one makes it.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

_APP = "icarus-local"


def _under_home(part: str) -> Path | None:
    home = os.environ.get("ICARUS_HOME")
    return Path(home).expanduser() / part if home else None


def cache_dir() -> Path:
    """What can be computed again."""
    return _under_home("cache") or platformdirs.user_cache_path(_APP, appauthor=False)


def state_dir() -> Path:
    """Conversations, saved KV states, logs."""
    return _under_home("state") or platformdirs.user_state_path(_APP, appauthor=False)


def config_dir() -> Path:
    """What the user wrote."""
    return _under_home("config") or platformdirs.user_config_path(_APP, appauthor=False)
