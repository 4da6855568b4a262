"""The file of a measurement: every finished run is in it, so that one which was stopped goes on where it was."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout
from pydantic import ValidationError

from icarus_local.bench.records import Case, Run
from icarus_local.bench.summary import summary
from icarus_local.errors import IcarusError

FORMAT = 2


class BenchFileError(IcarusError):
    """A file of measurements cannot be read, written, or gone on with."""


class RunsFile:
    """Finished runs, kept in a file where one is named; a context in which no other process writes it.

    Attributes:
        identity: what must be the same for runs to be one measurement; `workflows` are hashes by name.
        machine: in words. runs: in order.
    """

    def __init__(self, path: Path | None, identity: dict[str, Any], machine: dict[str, Any]) -> None:
        """Begins with no runs; where there is a file, it is read and written when the context is entered."""
        self._path, self.identity, self.machine = path, identity, machine
        self.runs: list[Run] = []

    def __enter__(self) -> Self:
        """Takes what the file holds already, and writes it: that it can be is known before hours are spent.

        Raises:
            BenchFileError: it is no such file, or was measured with something else (what); another process measures
                into it; or it cannot be written.
        """
        with ExitStack() as stack:
            path = self._path
            if path is not None:
                if not path.parent.is_dir():
                    raise BenchFileError(f"there is no folder {path.parent} to write {path.name} into", "Make it first")
                stack.enter_context(_held(path))
                if path.exists():
                    known, self.runs = read_runs(path)
                    self._check(path, known)
                self._write(path)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

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
        """Keeps a finished run.

        Raises:
            BenchFileError: the file cannot be written.
        """
        self.runs.append(run)
        if self._path is not None:
            self._write(self._path)

    def _write(self, path: Path) -> None:
        """Writes the file anew: beside its place, then renamed, so that it is always whole."""
        content = {
            "format": FORMAT,
            "identity": self.identity,
            "machine": self.machine,
            **summary(self.runs),
            "runs": [run.model_dump() for run in self.runs],
        }
        beside = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            beside.write_text(_lines(content), "utf-8")
            beside.replace(path)
        except OSError as error:
            raise BenchFileError(f"{path} cannot be written: {error.strerror}", "Give another --out") from error
        finally:
            with contextlib.suppress(OSError):
                beside.unlink()


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Holds a file against other measurements; the system lets go of it when the process ends, however it does."""
    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise BenchFileError(
            f"another process measures into {path}", "Wait until it has ended, or give another --out"
        ) from error
    except OSError as error:
        raise BenchFileError(f"{path} cannot be written: {error.strerror}", "Give another --out") from error
    try:
        yield
    finally:
        # While it is held, so that nobody is left with a lock on a file that is gone.
        with contextlib.suppress(OSError):
            Path(lock.lock_file).unlink()
        lock.release()


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
