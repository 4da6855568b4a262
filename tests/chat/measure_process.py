"""What a process of its own for the engine costs: `python -m tests.chat.measure_process [REPEATS]` on SmolLM2.

An engine in a thread of the program, and one in a process, take turns; medians.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from icarus_local.chat.events import AnswerDone, TextDelta
from icarus_local.chat.process import EngineProcess
from icarus_local.chat.requests import Ask
from icarus_local.chat.session import Session
from icarus_local.chat.worker import Worker
from icarus_local.cli.engine_options import EngineOptions
from icarus_local.cli.opening import SessionOptions, open_session

OPTIONS = SessionOptions(EngineOptions(), agents="coder,base", max_tokens=200, save=False)
QUESTION = "Tell a long story about a fox, a crow and a piece of cheese."


def in_thread(stack: ExitStack) -> Worker:
    def make() -> Session:
        return open_session(OPTIONS, stack, None, lambda _text, _fraction: None)[0]

    return stack.enter_context(Worker(make))


def in_process(stack: ExitStack) -> EngineProcess:
    return stack.enter_context(EngineProcess(partial(open_session, OPTIONS)))


def once(make: Callable[[ExitStack], Worker | EngineProcess]) -> dict[str, float]:
    start = time.perf_counter()
    with ExitStack() as stack:
        chat: Worker | EngineProcess = make(stack)
        opened = time.perf_counter() - start
        asked = time.perf_counter()
        first = 0.0
        tok_s: list[float] = []
        for event in chat.submit(Ask(QUESTION, ("coder",))):
            if isinstance(event, TextDelta) and not first:
                first = time.perf_counter() - asked
            if isinstance(event, AnswerDone):
                tok_s.append(event.tok_s)
        whole = time.perf_counter() - asked
    return {"open s": opened, "first text s": first, "answer s": whole, "tok/s": tok_s[0]}


def peak_mib(pid: int | str) -> int:
    """Of a process, on Linux."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


def show_memory(kind: str) -> None:
    """Prints peaks of this process, and of the engine's where it has one."""
    with ExitStack() as stack:
        chat = KINDS[kind](stack)
        list(chat.submit(Ask(QUESTION, ("coder",))))
        engine = f", and {peak_mib(chat._child._process.pid)} MiB in the engine's" if kind == "process" else ""
        print(f"{kind:8} peak resident {peak_mib('self')} MiB{engine}")


KINDS: dict[str, Callable[[ExitStack], Any]] = {"thread": in_thread, "process": in_process}


def main() -> None:
    if sys.argv[1:] and sys.argv[1] in KINDS:
        show_memory(sys.argv[1])
        return
    repeats = int(sys.argv[1]) if sys.argv[1:] else 7
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(repeats):
        for kind, make in KINDS.items():
            runs[kind].append(once(make))
    for kind, results in runs.items():
        medians = {name: statistics.median(run[name] for run in results) for name in results[0]}
        print(f"{kind:8} " + ", ".join(f"{name} {value:.3f}" for name, value in medians.items()))
    for kind in KINDS:
        subprocess.run([sys.executable, "-m", "tests.chat.measure_process", kind], check=True)


if __name__ == "__main__":
    main()
