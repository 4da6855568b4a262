"""Saves states over and over, until it is killed: `python -m tests.engine.killed BASE FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from icarus_local.engine.engine import Engine
from icarus_local.engine.state import save_state


def main() -> None:
    """Two states by turns, of 100 and of 101 tokens; says when the first is there."""
    with Engine(Path(sys.argv[1]), n_ctx=256, n_threads=1, device="cpu") as engine:
        sequence = engine.cells.create()
        engine.forward(encode=[(sequence, list(range(100)))])
        while True:
            save_state(engine, sequence, Path(sys.argv[2]))
            print("saved", flush=True)
            if engine.cells.length(sequence) == 100:
                engine.forward(encode=[(sequence, [100])])
            else:
                engine.cells.truncate(sequence, 100)


if __name__ == "__main__":
    main()
