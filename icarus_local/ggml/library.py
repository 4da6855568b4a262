"""Finds, loads and checks the native libraries that llama-cpp-python installs, and routes their logs."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from icarus_local.errors import LibraryError
from icarus_local.ggml.prototypes import LogCallback, bind

logger = logging.getLogger(__name__)

# Graphs are built on ggml's C API, which makes no promise between versions: these are the ones that the tests ran on.
TESTED_GGML_VERSIONS = ("0.25.3",)
ALLOW_UNTESTED = "ICARUS_ALLOW_UNTESTED_GGML"

STATUS_SUCCESS = 0
STATUS_ABORTED = 1
DEVICE_TYPE_CPU = 0
BUFFER_USAGE_WEIGHTS = 1
PREC_F32 = 10  # GGML_PREC_F32

TYPE_F32, TYPE_F16, TYPE_I32, TYPE_I64 = 0, 1, 26, 27
TYPE_Q4_0, TYPE_Q8_0 = 2, 8
HINT_HADAMARD = 1  # GGML_HINT_SRC0_IS_HADAMARD

_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUED = 5  # GGML_LOG_LEVEL_CONT: the rest of the line before


class Ggml:
    """The bound functions of libggml as attributes, named as in C."""

    def __init__(self, functions: dict[str, Any], directory: Path) -> None:
        self.directory = directory
        self.__dict__.update(functions)
        self.version = str(functions["ggml_version"]().decode())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"{name} has no prototype in icarus_local.ggml.prototypes")


class _LogRouter:
    """Joins the fragments that C code logs into lines and hands them to `logging`."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)
        self._line = ""
        self._level = logging.DEBUG

    def __call__(self, level: int, text: bytes | None, _user_data: int | None) -> None:
        if level != _CONTINUED:
            self._level = _LEVELS.get(level, logging.DEBUG)
        self._line += (text or b"").decode("utf-8", "replace")
        *lines, self._line = self._line.split("\n")
        for line in lines:
            if line.strip():
                self._logger.log(self._level, "%s", line)


# C keeps only the address of a callback: these references keep the callbacks alive as long as the process.
_ggml_log = LogCallback(_LogRouter("icarus_local.ggml.log"))
_llama_log = LogCallback(_LogRouter("icarus_local.llama.log"))


def _library_file(directory: Path, name: str) -> Path:
    patterns = {"win32": (f"{name}.dll", f"lib{name}.dll"), "darwin": (f"lib{name}.dylib",)}
    for file in patterns.get(sys.platform, (f"lib{name}.so",)):
        if (directory / file).is_file():
            return directory / file
    raise LibraryError(
        f"{directory} holds no {name} library",
        "Reinstall llama-cpp-python: pip install --force-reinstall --no-cache-dir 'llama-cpp-python>=0.3.36,<0.3.37'",
    )


@functools.cache
def load() -> Ggml:
    """Loads libggml once per process.

    Raises:
        LibraryError: llama-cpp-python is missing, its ggml lacks a symbol, or is of a version that was not tested
            (set ICARUS_ALLOW_UNTESTED_GGML=1 to try it all the same).
    """
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise LibraryError("llama-cpp-python is not installed", "pip install 'llama-cpp-python>=0.3.36,<0.3.37'")
    directory = Path(spec.submodule_search_locations[0]) / "lib"
    if sys.platform == "win32":
        os.add_dll_directory(str(directory))
    libraries = []
    for name in ("ggml-base", "ggml-cpu", "ggml"):
        file = _library_file(directory, name)
        try:
            libraries.append(ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL))
        except OSError as error:
            raise LibraryError(f"{file} cannot be loaded: {error}", "Reinstall llama-cpp-python") from error
    try:
        ggml = Ggml(bind(libraries), directory)
    except AttributeError as error:
        raise LibraryError(
            f"libggml in {directory} has no function {error}", "Install llama-cpp-python>=0.3.36,<0.3.37"
        ) from error
    if ggml.version not in TESTED_GGML_VERSIONS and not os.environ.get(ALLOW_UNTESTED):
        raise LibraryError(
            f"libggml {ggml.version} in {directory} was not tested with this program (tested: "
            f"{', '.join(TESTED_GGML_VERSIONS)})",
            f"Install llama-cpp-python>=0.3.36,<0.3.37, or set {ALLOW_UNTESTED}=1 to try it",
        )
    # Without a handler anywhere, `logging` would print C's warnings on stderr, over whatever is drawn there.
    logging.getLogger("icarus_local").addHandler(logging.NullHandler())
    ggml.ggml_log_set(_ggml_log, None)
    return ggml


@functools.cache
def load_llama() -> Any:
    """The ctypes module of libllama (`llama_cpp.llama_cpp`), its backend initialised and its log routed."""
    load()
    import llama_cpp.llama_cpp as llama

    llama.llama_log_set(_llama_log, ctypes.c_void_p(0))
    llama.llama_backend_init()
    # llama_log_set replaces ggml's callback too: put ours back, so that each library logs under its own name.
    load().ggml_log_set(_ggml_log, None)
    return llama


def strlen_address() -> int:
    """Address of libc's `strlen`, for callbacks that must run without Python."""
    libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
    address = ctypes.cast(libc.strlen, ctypes.c_void_p).value
    assert address is not None
    return address
