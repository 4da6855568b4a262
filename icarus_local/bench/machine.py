"""The machine that is measured on, in words and numbers, and the memory that a process has taken."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from icarus_local import __version__
from icarus_local.ggml.library import load

_PACKAGE = Path(__file__).parents[1]
_MEASURED = ("bench", "engine", "ggml")  # whose code the figures depend on


def describe() -> dict[str, Any]:
    """CPU, cores, memory and system, for a person who compares two reports."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """What computes: figures of two reports compare only where these are the same."""
    return {
        "icarus_local": __version__,
        "llama_cpp_python": importlib.metadata.version("llama-cpp-python"),
        "ggml": load().version,
    }


def code_sha256() -> str:
    """Of the sources that compute and measure (hex): one version number holds for many states of them."""
    digest = hashlib.sha256()
    for file in sorted(file for part in _MEASURED for file in (_PACKAGE / part).rglob("*.py")):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(_PACKAGE).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return None


def largest_cache_bytes() -> int:
    """Bytes of the largest cache that one core sees; 32 MiB where the system does not say."""
    sizes = [file.read_text().strip() for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) << 10 for size in sizes if size.endswith("K")), default=32 << 20)


def peak_rss_bytes(pid: int | None = None) -> int | None:
    """The most memory that a process has had resident, mapped weights included; None where the system is silent.

    Args:
        pid: of a process that runs; None for this one. Only Linux tells of others.
    """
    status = Path(f"/proc/{'self' if pid is None else pid}/status")
    if status.exists():
        # Not getrusage, whose maximum begins with that of the process that started this one.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32" or pid is not None:
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
