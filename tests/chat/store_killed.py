"""Saves a conversation over and over until it is killed: `python -m tests.chat.store_killed FOLDER` (tests.kills)."""

from __future__ import annotations

import sys
from pathlib import Path

from icarus_local.chat.store import SavedTurn, Store
from tests.kills import say, serve

BASE = Path("base.gguf")


def version(n: int) -> list[SavedTurn]:
    """What is saved as number n: from one to the next it grows or shrinks, and turns leave the context or come back."""
    turns = [
        SavedTurn("user", f"question {i}", None, in_context=i > n % 13)
        if i % 2 == 0
        else SavedTurn("a", f"answer {i}", (i, i + 1), in_context=i > n % 13, thought=1)
        for i in range(10 + n * 7 % 11)
    ]
    return [*turns, SavedTurn("user", f"{n}", None)]


def main() -> None:
    """One conversation whose latest version is the one that was saved last; says which."""
    store = Store(Path(sys.argv[1]))
    session = store.create(BASE, "ab", ["a"])
    store.save(session, version(0))

    def work() -> None:
        n = int(store.turns(session)[-1].text)
        with store.held(session):
            while True:
                n += 1
                store.save(session, version(n))
                say(str(n))

    serve(work)


if __name__ == "__main__":
    main()
