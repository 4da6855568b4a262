"""What records are made of, and how a file's worth of them is chosen: different, short enough, in a seeded order."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Any

from icarus_local.errors import IcarusError

Record = dict[str, Any]
# Records that are taken or left together.
Group = tuple[Record, ...]
Fits = Callable[[Record], bool]
_MAX_MISSES = 5_000  # groups in a row that are too long or were there before


def user(text: str) -> Record:
    """A person's message."""
    return {"role": "user", "content": text}


def reply(agent: str, text: str, weight: int = 1) -> Record:
    """An agent's message; `weight` 0 keeps it as context."""
    message: Record = {"role": "assistant", "agent": agent, "content": text}
    return message if weight else {**message, "weight": 0}


def fenced(code: str) -> str:
    """Code as the agents write it."""
    return f"```python\n{code.rstrip()}\n```"


def held_out(name: str, one_in: int = 10) -> bool:
    """Whether what has that name (a task, module, question, template, function) is kept aside."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % one_in == 0


def distinct(groups: Iterator[Group], fits: Fits, size: int, rng: random.Random) -> list[Record]:
    """`size` records of `groups`, all different, every one of a group short enough; shuffled.

    Where a group of several would exceed `size` it is cut.

    Raises:
        IcarusError: there are not that many.
    """
    chosen: dict[str, Record] = {}
    misses = 0
    while len(chosen) < size:
        group = next(groups, ())
        keys = [repr(record) for record in group]
        if group and not any(key in chosen for key in keys) and all(map(fits, group)):
            chosen.update(zip(keys, group, strict=True))
            misses = 0
            continue
        misses += 1
        if not group or misses == _MAX_MISSES:
            raise IcarusError(
                f"only {len(chosen)} of {size} different records fit", "Ask for fewer, or give a larger --max-tokens"
            )
    result = list(chosen.values())[:size]
    rng.shuffle(result)
    return result
