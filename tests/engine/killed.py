"""Saves states over and over until it is killed: `python -m tests.engine.killed BASE FILE` (tests.kills)."""

from __future__ import annotations

import sys
from pathlib import Path

from icarus_local.engine.engine import Engine
from icarus_local.engine.state import save_state
from tests.kills import serve


def main() -> None:
    """Two states by turns, of 900 and of 901 tokens; the first is there before anything is killed."""
    path = Path(sys.argv[2])
    with Engine(Path(sys.argv[1]), n_ctx=1024, n_threads=1, device="cpu") as engine:
        sequence = engine.cells.create()
        engine.forward(encode=[(sequence, [token % 250 for token in range(900)])])
        longer = engine.cells.fork(sequence)
        engine.forward(encode=[(longer, [7])])
        save_state(engine, sequence, path)

        def work() -> None:
            while True:
                save_state(engine, longer, path)
                save_state(engine, sequence, path)

        serve(work)


if __name__ == "__main__":
    main()
