"""A step that finds no memory, and the next that finds it again: `python -m tests.engine.starved BASE`.

In a process of its own: it limits its memory, and what it looks for would end it.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from icarus_local.engine.engine import Engine
from icarus_local.errors import IcarusError
from icarus_local.ggml.library import load


def address_space() -> int:
    """Bytes of this process's address space."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmSize")).split()[1]) * 1024


def main() -> None:
    """Prints what became of two steps larger than any that was reserved for."""
    ggml = load()
    allocate = ggml.ggml_gallocr_alloc_graph

    def starved(allocator: int, graph: int) -> bool:
        resource.setrlimit(resource.RLIMIT_AS, (address_space() - 1_000_000, -1))
        try:
            return bool(allocate(allocator, graph))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (-1, -1))

    with Engine(Path(sys.argv[1]), n_ctx=256, n_ubatch=4096, n_threads=1, device="cpu") as engine:
        sequence = engine.cells.create()
        engine.forward(encode=[(sequence, [5] * 10)])
        before = engine.kv_bytes(sequence)
        rows = [(sequence, None)] * 4096
        for function in (starved, allocate):
            ggml.__dict__["ggml_gallocr_alloc_graph"] = function
            try:
                print(f"{len(engine.forward(decode=rows).decoder)} rows", flush=True)
            except IcarusError as error:
                print(error, flush=True)
            assert engine.kv_bytes(sequence) == before


if __name__ == "__main__":
    main()
