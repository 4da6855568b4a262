"""A process for each run: its memory is its own, and what ends it costs that run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import IO

from pydantic import TypeAdapter, ValidationError

from icarus_local.bench.records import Failure, Job, Record
from icarus_local.errors import EngineDiedError, IcarusError

_CHILD = [sys.executable, "-m", "icarus_local.bench.workflow_child"]
_ANSWER: TypeAdapter[Record | Failure] = TypeAdapter(Record | Failure)
_ENDS_S = 5.0
_END_OF_STDERR = 400  # characters of what a process that died said


def run_child(job: Job) -> Record:
    """Measures a job in a process of its own, which ends with this one.

    Raises:
        IcarusError: the system's own. EngineDiedError: the process ended without an answer.
    """
    # A file, not a pipe: one that is full while nobody reads would stop the process.
    with TemporaryFile() as stderr:
        with _started(stderr) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            # Where it has ended already, its status and last words say why.
            with contextlib.suppress(OSError):
                process.stdin.write(job.model_dump_json().encode() + b"\n")
                process.stdin.flush()
            output, status = process.stdout.read(), process.wait()
        try:
            answer = _ANSWER.validate_json(output)
        except ValidationError as error:
            raise EngineDiedError(
                f"the process that measures {job.system} ended with status {status}: "
                f"{last_words(stderr) or 'it said nothing'}",
                "Where memory ran out, give fewer --agents or a smaller --context",
            ) from error
    if isinstance(answer, Failure):
        raise IcarusError(f"{job.system}: {answer.error}", answer.hint)
    return answer


@contextmanager
def _started(stderr: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The process; its stdin is open until it has ended, since it ends with that."""
    process = subprocess.Popen(_CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
    try:
        yield process
    finally:
        # With its stdin it ends what it has started itself, too.
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_S)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # what was not read any more
                if pipe is not None:
                    pipe.close()


def last_words(stderr: IO[bytes]) -> str:
    """The end of what a process wrote."""
    stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - 4 * _END_OF_STDERR))
    return stderr.read().decode("utf-8", "replace").strip()[-_END_OF_STDERR:]
