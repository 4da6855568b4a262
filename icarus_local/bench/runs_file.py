"""The file of a measurement: every finished run is in it, so that one which was stopped goes on where it was."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from icarus_local.bench.records import Case, Run
from icarus_local.bench.summary import summary
from icarus_local.errors import IcarusError

FORMAT = 1


class BenchFileError(IcarusError):
    """A file of measurements cannot be read, written, or gone on with."""


class RunsFile:
    """Finished runs, kept in a file where one is named.

    Attributes:
        identity: what must be the same for runs to be one measurement; `workflows` are hashes by name.
        machine: in words. runs: in order.
    """

    def __init__(self, path: Path | None, identity: dict[str, Any], machine: dict[str, Any]) -> None:
        """Takes what a file holds already.

        Raises:
            BenchFileError: it is no such file, or was measured with something else (what).
        """
        self._path, self.identity, self.machine = path, identity, machine
        self.runs: list[Run] = []
        if path is None:
            return
        if not path.parent.is_dir():
            raise BenchFileError(f"there is no folder {path.parent} to write {path.name} into", "Make it first")
        if path.exists():
            known, self.runs = read_runs(path)
            self._check(path, known)

    def _check(self, path: Path, known: dict[str, Any]) -> None:
        before, now = known.get("workflows", {}), self.identity["workflows"]
        changed = [key for key, value in self.identity.items() if key != "workflows" and known.get(key) != value]
        changed += [f"workflow {name}" for name, sha256 in now.items() if before.get(name, sha256) != sha256]
        if changed:
            raise BenchFileError(
                f"{path} was measured with other values of {', '.join(changed)}",
                "Give another --out, or remove the file",
            )
        self.identity = {**self.identity, "workflows": {**before, **now}}

    def has(self, case: Case, system: str, repeat: int) -> bool:
        """Whether a run is finished."""
        return any((run.case, run.system, run.repeat) == (case, system, repeat) for run in self.runs)

    def add(self, run: Run) -> None:
        """Keeps a finished run, and writes the file anew: beside its place, then renamed, so that it is always whole.

        Raises:
            BenchFileError: the file cannot be written.
        """
        self.runs.append(run)
        if self._path is None:
            return
        content = {
            "format": FORMAT,
            "identity": self.identity,
            "machine": self.machine,
            **summary(self.runs),
            "runs": [run.model_dump() for run in self.runs],
        }
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        try:
            beside.write_text(_lines(content), "utf-8")
            beside.replace(self._path)
        except OSError as error:
            raise BenchFileError(f"{self._path} cannot be written: {error.strerror}") from error
        finally:
            beside.unlink(missing_ok=True)


def _lines(content: dict[str, Any]) -> str:
    """JSON with a line for each element of the lists at the top, so that two files can be compared line by line."""
    parts = []
    for key, value in content.items():
        if isinstance(value, list):
            inner = ",\n".join(json.dumps(_rounded(element)) for element in value)
            parts.append(f"{json.dumps(key)}: [\n{inner}\n]")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(_rounded(value))}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _rounded(value: Any) -> Any:
    """Times to the microsecond: what is below is noise."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def read_runs(path: Path) -> tuple[dict[str, Any], list[Run]]:
    """Identity and runs of a file.

    Raises:
        BenchFileError: it cannot be read, or is none that `bench workflow` wrote.
    """
    content = read_report(path)
    identity = content.get("identity")
    try:
        runs = [Run.model_validate_json(json.dumps(run)) for run in content["runs"]]
    except (KeyError, TypeError, ValidationError) as error:
        raise BenchFileError(
            f"{path} is no file of `bench workflow`: it holds no runs", "Give another --out"
        ) from error
    if not isinstance(identity, dict) or not isinstance(identity.get("workflows", {}), dict):
        raise BenchFileError(f"{path} is no file of `bench workflow`: it does not say what was measured")
    return identity, runs


def read_report(path: Path) -> dict[str, Any]:
    """What a file holds, its format checked.

    Raises:
        BenchFileError: it cannot be read, or is none that `bench workflow` wrote.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BenchFileError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BenchFileError(f"{path} is no JSON: {error}", "Give a file that `bench workflow --out` wrote") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BenchFileError(
            f"{path} is not of the format {FORMAT} of `bench workflow`", "Give a file that `bench workflow --out` wrote"
        )
    return content
