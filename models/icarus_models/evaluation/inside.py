"""What runs inside the sandbox's process: gives up its rights, then runs the program. Started by `sandbox`, only.

Arguments: the pipe to tell success by, the folder that may be written to, bytes of memory, seconds of CPU.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from types import CodeType
from typing import Any

# Reading is free, so that imports work; what else reaches out of the process raises an audit event.
_FORBIDDEN = (
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.kill",
    "os.putenv",
    "os.chmod",
    "os.chown",
    "os.link",
    "os.symlink",
    "os.setxattr",
    "shutil.",
    "ctypes.",
    "pty.",
    "signal.pthread_kill",
    "ftplib.",
    "http.",
    "urllib.",
    "smtplib.",
    "webbrowser.",
)
_PATHS = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.utime")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


def main() -> None:
    """Reads password and program from standard input, and gives the password back where the program ends well."""
    pipe, folder, memory, seconds = int(sys.argv[1]), os.path.realpath(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    password, _, source = sys.stdin.buffer.read().partition(b"\n")
    sys.argv = [""]
    _leave_the_network()
    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 1 << 20),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        # macOS knows no bound on the address space.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))
    program: CodeType = compile(source.decode("utf-8", "replace"), "answer.py", "exec", dont_inherit=True)
    sys.addaudithook(_guard(folder))
    names: dict[str, Any] = {"__name__": "answer"}
    exec(program, names)
    os.write(pipe, password)
    os._exit(0)


def _leave_the_network() -> None:
    """Where the system allows it: a network of its own, with nothing in it. The audit hook stands everywhere."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNET):
            libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)


def _guard(folder: str) -> Any:
    inside = folder + os.sep

    def allowed(path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return isinstance(path, int)  # a file that is open already
        return (os.path.realpath(os.fsdecode(path)) + os.sep).startswith(inside)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = bool(flags & _WRITING) or (isinstance(mode, str) and any(letter in mode for letter in "wax+"))
            if writes and not allowed(path):
                raise PermissionError(f"{path!r} is outside the folder")
        elif event in _PATHS:
            paths = arguments[:2] if event == "os.rename" else arguments[:1]
            if not all(map(allowed, paths)):
                raise PermissionError(f"{event} outside the folder")
        elif event.startswith(_FORBIDDEN):
            raise PermissionError(f"{event} is not for answers")

    return hook


if __name__ == "__main__":
    main()
