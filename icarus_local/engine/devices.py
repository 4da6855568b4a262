"""Compute devices as ggml's registry names them: which there are, what memory is free, what they can compute."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from icarus_local.errors import IcarusError, RequestError
from icarus_local.ggml.library import DEVICE_TYPE_CPU, load

_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU


@dataclass(frozen=True, slots=True)
class Device:
    """One device of the registry.

    Attributes:
        handle: address of the ggml device. buffer_type: address of the type of its own memory.
    """

    handle: int
    name: str
    description: str
    is_cpu: bool
    is_gpu: bool
    is_remote: bool
    buffer_type: int

    @property
    def memory(self) -> tuple[int, int]:
        """Free and total bytes as the device reports them; for the CPU, what the system can still give."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        load().ggml_backend_dev_memory(self.handle, ctypes.byref(free), ctypes.byref(total))
        return (host_memory() if self.is_cpu else free.value), total.value

    def supports(self, op: int) -> bool:
        """Whether the device computes a node with the operands in the buffers where they lie."""
        # ggml's RPC device says yes to everything and its server aborts later; the server is a CPU's in our tests.
        asked = cpu().handle if self.is_remote else self.handle
        return bool(load().ggml_backend_dev_supports_op(asked, op))


def devices() -> list[Device]:
    """All devices of the installed llama-cpp-python."""
    ggml = load()
    found = []
    for i in range(ggml.ggml_backend_dev_count()):
        handle = ggml.ggml_backend_dev_get(i)
        kind = ggml.ggml_backend_dev_type(handle)
        reg = ggml.ggml_backend_reg_name(ggml.ggml_backend_dev_backend_reg(handle)).decode()
        found.append(
            Device(
                handle=handle,
                name=ggml.ggml_backend_dev_name(handle).decode(),
                description=ggml.ggml_backend_dev_description(handle).decode(),
                is_cpu=kind == DEVICE_TYPE_CPU,
                is_gpu=kind in _GPU_TYPES,
                is_remote=reg == "RPC",
                buffer_type=ggml.ggml_backend_dev_buffer_type(handle),
            )
        )
    return found


def cpu() -> Device:
    """The CPU.

    Raises:
        IcarusError: ggml has none.
    """
    found = next((device for device in devices() if device.is_cpu), None)
    if found is None:
        raise IcarusError("ggml has no CPU device", "Reinstall llama-cpp-python")
    return found


def find_device(name: str) -> Device:
    """The device of that name; "cpu" is the CPU, "auto" the first GPU on this machine, or the CPU.

    Raises:
        RequestError: there is none of that name, with those that there are.
    """
    if name.lower() == "cpu":
        return cpu()
    known = devices()
    if name == "auto":
        return next((device for device in known if device.is_gpu and not device.is_remote), cpu())
    for device in known:
        if device.name.lower() == name.lower():
            if not device.is_cpu and not device.is_gpu:
                raise RequestError(f"the device {device.name} cannot hold a model by itself", "Give another --device")
            return device
    raise RequestError(
        f"there is no device {name!r}",
        f"There are {', '.join(device.name for device in known)}; docs/install.md says how to build for others",
    )


def host_memory() -> int:
    """Bytes of memory that can still be taken on this machine."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    ggml = load()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(
        ggml.ggml_backend_dev_by_type(DEVICE_TYPE_CPU), ctypes.byref(free), ctypes.byref(total)
    )
    return free.value or total.value


def free_memory(buffer_type: int) -> int | None:
    """Bytes that can still be allocated of a kind of memory; None where the device does not say."""
    device = next((device for device in devices() if device.buffer_type == buffer_type), None)
    if device is None:
        return host_memory()  # the CPU's repacked buffers
    free, total = device.memory
    return free if total else None


def check_memory(buffer_type: int, needed: int, what: str, hint: str) -> None:
    """Raises IcarusError where the device says that `needed` bytes for `what` are not free."""
    available = free_memory(buffer_type)
    if available is not None and needed > available:
        raise IcarusError(f"{what} takes {needed >> 20} MiB and {available >> 20} MiB are free", hint)
