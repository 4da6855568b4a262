"""One system in a process of its own: a job as a line on stdin, what it took on stdout; it ends with its stdin."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import asdict
from typing import Any, NoReturn

from icarus_local.bench.icarus_system import Icarus
from icarus_local.bench.llama_server import LlamaServer, end_servers
from icarus_local.bench.llama_system import LlamaPool
from icarus_local.bench.records import Failure, Job, Record, Turned
from icarus_local.bench.script import Script
from icarus_local.bench.system import CAP, ICARUS, LLAMA_SERVER, SEPARATE, SEPARATE_CAPPED, SWAP, System
from icarus_local.errors import IcarusError


def open_system(job: Job) -> System:
    """The job's system, loaded."""
    setup, case = job.setup, job.case
    adapters = setup.adapters[: case.agents]
    shared: dict[str, Any] = {"kv_type": setup.kv_type, "n_threads": setup.n_threads}
    if job.system == ICARUS:
        return Icarus(setup.base, adapters, case.context, repack=setup.repack, **shared)
    shared["kv_bytes_per_token"] = setup.kv_bytes_per_token
    if job.system == LLAMA_SERVER:
        assert setup.llama_server is not None
        return LlamaServer(setup.llama_server, setup.base, adapters, case.context, **shared)
    room = {SWAP: 1, SEPARATE_CAPPED: min(CAP, case.agents), SEPARATE: case.agents}[job.system]
    return LlamaPool(setup.base, adapters, case.context, room, **shared)


def measure(job: Job) -> Record:
    """Says the whole workflow: the lead round, then warm rounds, each from where the lead ended.

    Raises:
        IcarusError: as the system does.
    """
    script = Script(job.workflow, job.case, job.setup.n_vocab, job.seed)
    system = open_system(job)
    turns: list[Turned] = []
    spoken: set[int] = set()

    def say_round() -> None:
        for requests in script.round():
            for time in system.turn(requests):
                turns.append(Turned(cold=time.agent not in spoken, **asdict(time)))
                spoken.add(time.agent)

    try:
        system.begin()
        say_round()
        system.mark()
        for _ in range(script.n_warm_rounds):
            say_round()
            system.rewind()
            script.rewind()
        return Record(
            turns=tuple(turns),
            kv_bytes=system.kv_bytes,
            kv_used_bytes=system.kv_used_bytes,
            rss_bytes=system.rss_bytes,
        )
    finally:
        system.close()


def main() -> None:
    """Reads a job, writes a `Record` or a `Failure`."""
    answer: Record | Failure
    job = Job.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: _end())
    try:
        answer = measure(job)
    except IcarusError as error:
        answer = Failure(error=error.what, hint=error.hint)
    sys.stdout.write(answer.model_dump_json())


def _end_with_parent() -> None:
    """Ends this process when whoever started it is gone: it would go on at full load beside what is measured next."""
    # Not through sys.stdin: a thread that waits there holds a lock that the interpreter needs to end.
    while os.read(0, 1 << 12):
        pass
    _end()


def _end() -> NoReturn:
    end_servers()
    os._exit(1)


if __name__ == "__main__":
    main()
