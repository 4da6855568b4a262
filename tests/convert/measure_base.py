"""Run as a program: converts a small model and then a large one, and prints the most memory that Python and numpy had
for the large one beyond what they had before, and by how much the process grew, both in bytes.
"""

from __future__ import annotations

import resource
import sys
import tracemalloc
from pathlib import Path

from icarus_convert.hf_base import convert_base


def resident() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    small, large, out, outtype = sys.argv[1:5]
    convert_base(small, Path(out), force=True)
    before = resident()
    tracemalloc.start()
    convert_base(large, Path(out), force=True, outtype=outtype)
    print(tracemalloc.get_traced_memory()[1], resident() - before)
