"""What else the machine did during a run: what other programs take falsifies every time that is taken."""

from __future__ import annotations

import os
import time
from pathlib import Path

MOST_OTHER_CORES = 0.15  # above it, a run should be measured again
_STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq and steal of proc_stat(5)


class LoadMeter:
    """Takes the time of a run, and of what ran beside it, from when this is made.

    The run is what children do; they count once they were waited for.
    """

    def __init__(self) -> None:
        self._start, self._busy, self._ours = time.perf_counter(), busy_s(), children_s()

    @property
    def wall_s(self) -> float:
        """Seconds since."""
        return time.perf_counter() - self._start

    @property
    def other_cores(self) -> float | None:
        """Cores that other processes, or other guests of the host, kept busy since; None where the system is silent."""
        busy = busy_s()
        if busy is None or self._busy is None:
            return None
        return max(0.0, busy - self._busy - (children_s() - self._ours)) / self.wall_s


def busy_s() -> float | None:
    """Seconds that all processors together were busy since the start of the system; Linux alone says."""
    try:
        ticks = _STAT.read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    return sum(int(ticks[i]) for i in _BUSY) / os.sysconf("SC_CLK_TCK")


def children_s() -> float:
    """Processor seconds of this process's children that were waited for."""
    times = os.times()
    return times.children_user + times.children_system
