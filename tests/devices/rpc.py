"""A device that is not the CPU on every machine: ggml's RPC backend, served by a process of its own on loopback.

llama-cpp-python is built without that backend; two of its source files make it, against the installed libggml.

A registered device stays for the life of the process, where libllama computes on it too, and either end aborts when the
other fails: so whatever uses the device goes through `in_subprocess`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icarus_local.ggml.library import load
from icarus_local.paths import cache_dir

ROOT = Path(__file__).parent.parent.parent
DEVICE_VARIABLE = "ICARUS_TEST_DEVICE"

_PACKAGE = "llama-cpp-python"
_GGML = "vendor/llama.cpp/ggml"
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-pthread")
_DEFINES = ("-DNDEBUG", "-DGGML_BACKEND_DL", "-DGGML_BACKEND_SHARED", "-DGGML_BACKEND_BUILD", "-DGGML_SHARED")
_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
_SERVER_THREADS = 1  # with more, threads of both ends that spin at barriers starve each other on few cores


def in_subprocess(function: Callable[..., Any], *arguments: str, timeout: float = 300) -> Any:
    """Calls a module's `function(device_name(), *arguments)` in a process of its own; the result travels as JSON.

    Raises:
        AssertionError: the process failed; the text ends with its stderr and the server's.
    """
    if not os.environ.get(DEVICE_VARIABLE):
        backend_library()  # here, where a test can be skipped
    name = function.__name__
    code = (
        f"import json, sys; from {function.__module__} import {name}; from {__name__} import device_name; "
        f"print(json.dumps({name}(device_name(), *sys.argv[1:])))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, f"{name} ended with {result.returncode}:\n{result.stderr[-4000:]}"
    return json.loads(result.stdout.splitlines()[-1])


def device_name() -> str:
    """The registry's name of the device under test: the one that ICARUS_TEST_DEVICE names, else an RPC device."""
    return os.environ.get(DEVICE_VARIABLE) or rpc_device()


@functools.cache
def rpc_device() -> str:
    """Starts a server, adds its device to this process's registry, and names it; the server ends with this process."""
    file = backend_library()
    endpoint = _start_server(file)
    ggml = registry()
    served = rpc_function(file, "ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)(endpoint.encode())
    assert served, f"{endpoint} serves no device"
    ggml.ggml_backend_register(served)
    return str(ggml.ggml_backend_dev_name(ggml.ggml_backend_reg_dev_get(served, 0)).decode())


def registry() -> ctypes.CDLL:
    """Functions of ggml's registry that the runtime does not call."""
    library = ctypes.CDLL(str(load().directory / f"libggml{_SUFFIX}"))
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("ggml_backend_load", pointer, [text]),
        ("ggml_backend_register", None, [pointer]),
        ("ggml_backend_dev_by_name", pointer, [text]),
        ("ggml_backend_dev_name", text, [pointer]),
        ("ggml_backend_dev_type", ctypes.c_int, [pointer]),
        ("ggml_backend_reg_dev_get", pointer, [pointer, ctypes.c_size_t]),
        ("ggml_backend_reg_get_proc_address", pointer, [pointer, text]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def rpc_function(file: Path, name: str, result: Any, *arguments: Any) -> Any:
    """A function that the RPC backend gives by name."""
    ggml = registry()
    backend = ggml.ggml_backend_load(os.fsencode(file))
    assert backend, f"{file} cannot be loaded"
    return ctypes.CFUNCTYPE(result, *arguments)(ggml.ggml_backend_reg_get_proc_address(backend, name.encode()))


def backend_library() -> Path:
    """The RPC backend for the installed libggml; without the means to build it the test is skipped, on CI it fails."""
    built = _build_once()
    if isinstance(built, Path):
        return built
    if os.environ.get("CI"):
        pytest.fail(built)
    pytest.skip(built)


@functools.cache
def _build_once() -> Path | str:
    """The file, from the cache where an earlier run left it, or why there is none."""
    version = importlib.metadata.version(_PACKAGE)
    base = load().directory / f"libggml-base{_SUFFIX}"
    key = hashlib.sha256(base.read_bytes() + os.fsencode(base)).hexdigest()[:16]
    target = cache_dir() / "tests" / f"ggml-rpc-{version}-{key}{_SUFFIX}"
    if target.exists():
        return target
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        return "no C++ compiler"
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the cache's own folder: a rename within a file system is atomic, and pip must not write into a checkout.
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        work = Path(name)
        ggml = _fetch_sources(version, work)
        if isinstance(ggml, str):
            return ggml
        _compile(compiler, ggml, base, work / target.name)
        (work / target.name).replace(target)
    return target


def _fetch_sources(version: str, work: Path) -> Path | str:
    """ggml's sources of the installed llama-cpp-python, from where pip is told to look, or why there are none."""
    # pip asks the build backend for metadata on the way, which compiles nothing.
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--retries=1", "--no-deps", f"--no-binary={_PACKAGE}"]
    done = subprocess.run(
        [*pip, f"--dest={work}", f"{_PACKAGE}=={version}"], cwd=work, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return f"pip cannot fetch the sources of {_PACKAGE} {version}: {done.stderr[-500:]}"
    with tarfile.open(next(work.glob("*.tar.gz"))) as archive:
        for member in archive:
            if f"/{_GGML}/" in member.name and member.name.endswith((".h", ".cpp")):
                archive.extract(member, work, filter="data")
    return next(work.glob(f"*/{_GGML}"))


def _compile(compiler: str, ggml: Path, base: Path, target: Path) -> None:
    sources = [str(ggml / "src" / "ggml-rpc" / name) for name in ("ggml-rpc.cpp", "transport.cpp")]
    includes = [f"-I{ggml / 'include'}", f"-I{ggml / 'src'}"]
    link = [str(base), f"-Wl,-rpath,{base.parent}", "-o", str(target)]
    done = subprocess.run(
        [compiler, *_FLAGS, *_DEFINES, *includes, *sources, *link], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def _start_server(file: Path) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"127.0.0.1:{port}"
    # The server ends when its stdin does. Nothing here closes the other end, so it lives until this process is gone,
    # however it goes: to free a buffer whose server has ended would abort.
    stdin, _until_exit = os.pipe()
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.devices.server", str(file), endpoint, str(_SERVER_THREADS)],
        cwd=ROOT,
        stdin=stdin,
        stdout=subprocess.DEVNULL,
    )
    os.close(stdin)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return endpoint
    server.kill()
    raise AssertionError(f"no RPC server at {endpoint}: exit status {server.wait()}")
