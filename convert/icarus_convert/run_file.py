"""`icarus_run.json`, which icarus-train writes beside its adapters: how one was trained, and on what."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from icarus_convert.json_file import read_json_object
from icarus_convert.source import Training
from icarus_local.engine.adapter_file import TRAINED_ICARUS, TRAINED_ORDINARY
from icarus_local.errors import AdapterError

RUN_FILE = "icarus_run.json"
RUN_FORMAT = 1

_METHODS = {"icarus": TRAINED_ICARUS, "lora": TRAINED_ORDINARY}
_SHA256 = re.compile(r"[0-9a-f]{64}")


def read_training(folder: Path, files: list[Path]) -> Training:
    """What a folder's run file says of the weights in `files`; nothing where there is none.

    Raises:
        AdapterError: it cannot be read, or was written for other weights.
    """
    path = folder / RUN_FILE
    if not path.is_file():
        return Training()
    run = read_json_object(path)
    if run.get("format") != RUN_FORMAT:
        raise AdapterError(f"{path} is of format {run.get('format')!r}; this program reads {RUN_FORMAT}", "Update it")
    method = run.get("method")
    if not isinstance(method, str) or method not in _METHODS:
        raise AdapterError(f"{path}: method is {method!r}, not one of {', '.join(_METHODS)}", "Fetch or train it again")
    trained_on = _sha256(path, run, "adapter_sha256")
    if method == "icarus" and not trained_on:
        raise AdapterError(f"{path} does not say which weights it is for (adapter_sha256)", "Fetch or train both again")
    if trained_on and (len(files) > 1 or trained_on != _file_sha256(files[0])):
        raise AdapterError(f"{files[0]} is not the file that {path.name} was written for", "Fetch or train both again")
    return Training(
        trained=_METHODS[method],
        base_family_id=_sha256(path, run, "base_family_id"),
        template_sha256=_sha256(path, run, "template_sha256"),
        tokenizer_sha256=_sha256(path, run, "tokenizer_sha256"),
    )


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256(path: Path, run: dict[str, Any], key: str) -> str:
    value = run.get(key)
    if value is None:
        return ""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise AdapterError(f"{path}: {key} is {value!r}, not a SHA-256 in hexadecimal", "Fetch or train it again")
    return value
