"""Compares two files of `icarus-local bench workflow --out` and names what became worse than llama.cpp by over 10 %.

    python tests/compare_bench.py OLD.json NEW.json

Two days' seconds say little of a shared machine, so every figure is divided by that of a llama.cpp system in the same
file first. Exits with 1 where there are regressions, with 2 where nothing can be compared.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ALLOWED = 1.10
# Figures that are better when they are small, and the one that is better when it is large.
_SMALL = ("p50_s", "p95_s", "mean_s", "ttft_s", "total_s", "kv_bytes", "rss_bytes")
_LARGE = ("tok_s",)
_CASE = ("workflow", "agents", "context", "answer_tokens", "warm_turns")


def ratios(result: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """(llama.cpp system, figure, ours over theirs), turned so that more is worse."""
    systems = result["systems"]
    ours = systems.get("icarus", {})
    for name, theirs in systems.items():
        if name == "icarus":
            continue
        for key in (*_SMALL, *_LARGE):
            a, b = ours.get(key), theirs.get(key)
            if a and b:
                yield name, key, b / a if key in _LARGE else a / b


def regressions(old: dict[str, Any], new: dict[str, Any]) -> tuple[list[str], int]:
    """What became worse, in words, and how many figures were compared."""
    before = {_case(result): result for result in old["results"]}
    found, n = [], 0
    for result in new["results"]:
        known = before.get(_case(result))
        if known is None:
            continue
        earlier = {(name, key): ratio for name, key, ratio in ratios(known)}
        for name, key, ratio in ratios(result):
            if (name, key) not in earlier:
                continue
            n += 1
            worse = ratio / earlier[name, key]
            if worse > ALLOWED:
                case = ", ".join(f"{part} {result[part]}" for part in _CASE if result[part] is not None)
                found.append(
                    f"{case}: {key} over {name}'s was {earlier[name, key]:.3f} and is {ratio:.3f}, "
                    f"{100 * (worse - 1):.0f} % worse"
                )
    return found, n


def _case(result: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(result[part] for part in _CASE)


def main(arguments: list[str]) -> int:
    """Prints the regressions; gives the exit code."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    old, new = (json.loads(Path(path).read_text("utf-8")) for path in arguments)
    found, n = regressions(old, new)
    if not n:
        print("the two files have no case in common", file=sys.stderr)
        return 2
    print("\n".join([*found, f"{len(found)} of {n} figures are over 10 % worse"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
