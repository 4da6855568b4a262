"""Saves a growing conversation until it is killed: `python -m tests.chat.store_killed FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from icarus_local.chat.store import SavedTurn, Store


def main() -> None:
    """A turn at a time; says the id, and how many turns are saved."""
    store = Store(Path(sys.argv[1]))
    session = store.create(Path("base.gguf"), "ab", ["a"])
    print(session, flush=True)
    turns: list[SavedTurn] = []
    with store.held(session):
        while True:
            n = len(turns)
            turns.append(SavedTurn("user", f"question {n}", None) if n % 2 == 0 else SavedTurn("a", f"{n}", (n, n + 1)))
            store.save(session, turns)
            print(len(turns), flush=True)


if __name__ == "__main__":
    main()
