"""The device that the device tests use is one: named in the registry, not the CPU, and it computes."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from icarus_local.ggml.library import DEVICE_TYPE_CPU, STATUS_SUCCESS, TYPE_F32, load
from icarus_local.ggml.prototypes import InitParams
from tests.devices.rpc import DEVICE_VARIABLE, in_subprocess, registry

Matrix = npt.NDArray[np.float32]


def product(device: int, weights: Matrix, rows: Matrix) -> Matrix:
    """`rows @ weights.T`, all three in the device's memory."""
    ggml = load()
    context = ggml.ggml_init(InitParams(1 << 20, None, True))
    inputs = {
        ggml.ggml_new_tensor(context, TYPE_F32, 2, (ctypes.c_int64 * 2)(*data.shape[::-1])): data
        for data in (weights, rows)
    }
    output = ggml.ggml_mul_mat(context, *inputs)
    graph = ggml.ggml_new_graph_custom(context, 16, False)
    ggml.ggml_build_forward_expand(graph, output)
    buffer = ggml.ggml_backend_alloc_ctx_tensors_from_buft(context, ggml.ggml_backend_dev_buffer_type(device))
    for tensor, data in inputs.items():
        ggml.ggml_backend_tensor_set(tensor, data.ctypes.data, 0, data.nbytes)
    backend = ggml.ggml_backend_dev_init(device, None)
    assert ggml.ggml_backend_graph_compute(backend, graph) == STATUS_SUCCESS
    result = np.empty((len(rows), len(weights)), np.float32)
    ggml.ggml_backend_tensor_get(output, result.ctypes.data, 0, result.nbytes)
    ggml.ggml_backend_free(backend)
    ggml.ggml_backend_buffer_free(buffer)
    ggml.ggml_free(context)
    return result


def type_and_products(name: str) -> dict[str, Any]:
    device = registry().ggml_backend_dev_by_name(name.encode())
    rng = np.random.default_rng(1)
    weights, rows = (rng.standard_normal((n, 64), np.float32) for n in (48, 5))
    return {
        "type": registry().ggml_backend_dev_type(device),
        "on device": product(device, weights, rows).tolist(),
        "on CPU": product(load().ggml_backend_dev_by_type(DEVICE_TYPE_CPU), weights, rows).tolist(),
        "exact": (rows.astype(np.float64) @ weights.T.astype(np.float64)).tolist(),
    }


def killed(name: str, file: str) -> None:
    """Leaves its server's address and ends as a crash would."""
    Path(file).write_bytes(load().ggml_backend_dev_description(registry().ggml_backend_dev_by_name(name.encode())))
    os.kill(os.getpid(), signal.SIGKILL)


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_the_device_computes_in_its_own_memory() -> None:
    found = in_subprocess(type_and_products)
    assert found["type"] != DEVICE_TYPE_CPU
    # Values have a deviation of 8; a device may multiply in half precision.
    assert np.abs(np.subtract(found["on device"], found["exact"])).max() < 0.05
    if DEVICE_VARIABLE not in os.environ:
        assert found["on device"] == found["on CPU"]


@pytest.mark.skipif(DEVICE_VARIABLE in os.environ, reason="about the RPC device")
def test_a_server_ends_with_its_client_however_that_ends(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=f"killed ended with -{signal.SIGKILL}"):
        in_subprocess(killed, str(tmp_path / "endpoint"))
    host, port = (tmp_path / "endpoint").read_text().split(":")
    deadline = time.monotonic() + 30
    while listens(host, int(port)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
