"""JSON files that hold an object, read with errors in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from icarus_local.errors import AdapterError

_MAX_BYTES = 1 << 26


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        AdapterError: it cannot be read, or holds something else.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise AdapterError(f"{path} has {path.stat().st_size} bytes, too many for its kind", "Fetch it again")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise AdapterError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{path} is no JSON: {error}", "Fetch or save it again") from error
    if not isinstance(value, dict):
        raise AdapterError(f"{path} holds no JSON object", "Fetch or save it again")
    return value
