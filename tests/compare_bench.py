"""Compares two files of `icarus-local bench workflow --out` and names what became worse than llama.cpp by over 10 %.

    python tests/compare_bench.py OLD.json NEW.json

Two days' seconds say little of a shared machine, so every figure is divided by that of a llama.cpp system in the same
file first. Cases and systems that NEW lacks are named. Exits with 1 where there are regressions, with 2 where nothing
can be compared: a file cannot be read, they share no case, or base, KV type, threads, rank or a workflow differ.
Versions, code and machine may.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icarus_local.bench.records import Case
from icarus_local.bench.runs_file import read_runs
from icarus_local.bench.summary import summary
from icarus_local.bench.system import ICARUS
from icarus_local.errors import IcarusError

ALLOWED = 1.10
# Figures that are better when they are small, and the one that is better when it is large.
_SMALL = ("p50_s", "p95_s", "mean_s", "ttft_s", "total_s", "kv_bytes", "rss_bytes")
_LARGE = ("tok_s",)
_CONDITIONS = ("base", "kv_type", "threads", "rank")


@dataclass(frozen=True)
class Measured:
    """What a file holds: conditions by name, and each case's figures by system."""

    identity: dict[str, Any]
    cases: dict[Case, dict[str, Any]]


def read(path: Path) -> Measured:
    """Raises BenchFileError where it is no such file; figures are those of its runs, as they are reckoned today."""
    identity, runs = read_runs(path)
    keys = Case.model_fields
    results = summary(runs)["results"]
    return Measured(identity, {Case(**{key: found[key] for key in keys}): found["systems"] for found in results})


def differences(old: Measured, new: Measured) -> list[str]:
    """Conditions that keep the two from being compared."""
    a, b = old.identity, new.identity
    found = [key for key in _CONDITIONS if a.get(key) != b.get(key)]
    before, after = a.get("workflows", {}), b.get("workflows", {})
    return found + [f"workflow {name}" for name in before if name in after and before[name] != after[name]]


def missing(old: Measured, new: Measured) -> list[str]:
    """What was measured before and is not now, in words."""
    lacking = [f"{case}: not measured any more" for case in old.cases if case not in new.cases]
    for case in old.cases.keys() & new.cases.keys():
        gone = [name for name in old.cases[case] if name not in new.cases[case]]
        lacking += [f"{case}: {name} not measured any more" for name in gone]
    return lacking


def ratios(systems: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """(llama.cpp system, figure, ours over theirs), turned so that more is worse."""
    ours = systems.get(ICARUS, {})
    for name, theirs in systems.items():
        if name == ICARUS:
            continue
        for key in (*_SMALL, *_LARGE):
            a, b = ours.get(key), theirs.get(key)
            if a and b:
                yield name, key, b / a if key in _LARGE else a / b


def regressions(old: Measured, new: Measured) -> tuple[list[str], int]:
    """What became worse, in words, and how many figures were compared."""
    found, n = [], 0
    for case, systems in new.cases.items():
        earlier = {(name, key): ratio for name, key, ratio in ratios(old.cases.get(case, {}))}
        for name, key, ratio in ratios(systems):
            if (name, key) not in earlier:
                continue
            n += 1
            worse = ratio / earlier[name, key]
            if worse > ALLOWED:
                found.append(
                    f"{case}: {key} over {name}'s was {earlier[name, key]:.3f} and is {ratio:.3f}, "
                    f"{100 * (worse - 1):.0f} % worse"
                )
    return found, n


def main(arguments: list[str]) -> int:
    """Prints the regressions; gives the exit code."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        old, new = (read(Path(path)) for path in arguments)
    except IcarusError as error:
        print(error, file=sys.stderr)
        return 2
    differing = differences(old, new)
    if differing:
        print(f"the two files were measured with other values of {', '.join(differing)}", file=sys.stderr)
        return 2
    found, n = regressions(old, new)
    if not n:
        print("the two files have no case and system in common", file=sys.stderr)
        return 2
    print("\n".join([*missing(old, new), *found, f"{len(found)} of {n} figures are over 10 % worse"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
