"""Serves this machine's CPU as an RPC device: `python -m tests.devices.server BACKEND ENDPOINT THREADS`.

Ends when its stdin does, that is, with the process that started it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path

from icarus_local.ggml.library import DEVICE_TYPE_CPU, load
from tests.devices.rpc import rpc_function


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main(file: str, endpoint: str, threads: str) -> None:
    devices = (ctypes.c_void_p * 1)(load().ggml_backend_dev_by_type(DEVICE_TYPE_CPU))
    size, text = ctypes.c_size_t, ctypes.c_char_p
    serve = rpc_function(
        Path(file), "ggml_backend_rpc_start_server", None, text, text, size, size, ctypes.POINTER(ctypes.c_void_p)
    )
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    serve(endpoint.encode(), None, int(threads), 1, devices)
    sys.exit(f"no server at {endpoint}")


if __name__ == "__main__":
    main(*sys.argv[1:])
