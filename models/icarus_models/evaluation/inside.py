"""What runs inside the sandbox's process: gives up its rights, then runs the program. Started by `sandbox`, only.

Arguments: the pipe to tell success by, the folder that may be written to, bytes of memory, seconds of CPU.
"""

from __future__ import annotations

import contextlib
import os
import posix
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
    "sqlite3.",
    "resource.",
    "ftplib.",
    "http.",
    "urllib.",
    "smtplib.",
    "webbrowser.",
)
# What writes files by a C library, or makes special ones, without an audit event.
_MODULES = ("_dbm", "_gdbm")
_CALLS = ("mkfifo", "mknod")
_PATHS = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.utime")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MAX_FILES = 100  # that it makes, folders among them; their size is bounded, too
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
    for module in (os, posix):
        for name in _CALLS:
            setattr(module, name, _refused)
    sys.addaudithook(_Guard(folder))
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


def _refused(*_: Any, **__: Any) -> None:
    raise PermissionError("special files are not for answers")


class _Guard:
    """The audit hook: refuses what reaches out of the process, or writes outside `folder`."""

    def __init__(self, folder: str) -> None:
        self._inside = folder + os.sep
        self._made = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            self._opens(*arguments)
        elif event in _PATHS:
            paths = arguments[:2] if event == "os.rename" else arguments[:1]
            if not all(map(self._allowed, paths)):
                raise PermissionError(f"{event} outside the folder")
            if event == "os.mkdir":
                self._count()
        elif event == "import" and arguments[0] in _MODULES:
            raise ImportError(f"{arguments[0]} is not for answers")
        elif event.startswith(_FORBIDDEN):
            raise PermissionError(f"{event} is not for answers")

    def _opens(self, path: Any, mode: object, flags: int) -> None:
        if isinstance(path, int):
            return  # it is open already
        # os.open, which has no mode, opens no folder: so no call begins at one (dir_fd), and a path means what it says.
        if mode is None and os.path.isdir(path):
            raise IsADirectoryError(f"{path!r} is a folder")
        if flags & _WRITING or (isinstance(mode, str) and any(letter in mode for letter in "wax+")):
            if not self._allowed(path):
                raise PermissionError(f"{path!r} is outside the folder")
            if not os.path.lexists(path):
                self._count()

    def _allowed(self, path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return isinstance(path, int)  # a file that is open already
        return (os.path.realpath(os.fsdecode(path)) + os.sep).startswith(self._inside)

    def _count(self) -> None:
        self._made += 1
        if self._made > _MAX_FILES:
            raise PermissionError(f"more than {_MAX_FILES} files")


if __name__ == "__main__":
    main()
