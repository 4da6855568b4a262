"""The tensors of the KV cache: K and V of every layer in the memory of the layer's device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icarus_local.engine.architecture import Hyperparameters
from icarus_local.engine.devices import Device
from icarus_local.engine.placement import Placement
from icarus_local.engine.tensors import TensorGroup, TensorSpec
from icarus_local.errors import RequestError
from icarus_local.ggml.context import Context
from icarus_local.ggml.library import TYPE_F16, TYPE_F32, TYPE_I64, TYPE_Q4_0, TYPE_Q8_0, load

KV_TYPES = {"f16": TYPE_F16, "f32": TYPE_F32, "q8_0": TYPE_Q8_0, "q4_0": TYPE_Q4_0}
_QUANTISED = ("q8_0", "q4_0")
_BLOCK = 32  # values that share a scale in both quantised types
_ROTATION = 64  # llama.cpp rotates quantised K and V where the head size is a multiple of this


def kv_bytes_per_token(hp: Hyperparameters, kv_type: str) -> int:
    """Bytes of K and V that one token takes over all layers."""
    return 2 * hp.n_layer * int(load().ggml_row_size(KV_TYPES[kv_type], hp.n_embd_kv))


def check_kv_type(hp: Hyperparameters, kv_type: str) -> None:
    """Raises RequestError for a type that no device can keep this model's K and V in."""
    if kv_type not in KV_TYPES:
        raise RequestError(f"KV type {kv_type!r} is not one of {', '.join(KV_TYPES)}")
    if kv_type in _QUANTISED and hp.n_embd_head % _BLOCK:
        raise RequestError(
            f"a KV type of {kv_type} needs heads of a multiple of {_BLOCK} values; this base's have {hp.n_embd_head}",
            "Give --kv-type f16",
        )


def check_device(hp: Hyperparameters, kv_type: str, device: Device) -> None:
    """Raises RequestError where a device cannot write or read a cache of this type."""
    ggml, kind = load(), KV_TYPES[kv_type]
    with Context(16) as owner:
        context, tensor = owner.handle, owner.tensor
        cells = tensor(kind, hp.n_embd_kv, 256)
        write = ggml.ggml_set_rows(context, cells, tensor(TYPE_F32, hp.n_embd_kv, 2), tensor(TYPE_I64, 2))
        k = tensor(kind, hp.n_embd_head, 256, hp.n_head_kv)
        q, mask = tensor(TYPE_F32, hp.n_embd_head, 2, hp.n_head), tensor(TYPE_F16, 256, 2)
        read = ggml.ggml_flash_attn_ext(context, q, k, k, mask, 1.0, 0.0, hp.attn_softcap)
        for op, what in ((write, "write"), (read, "attend to")):
            if not device.supports(op):
                raise RequestError(
                    f"{device.name} cannot {what} a cache of the type {kv_type} with heads of {hp.n_embd_head} values",
                    "Give another --kv-type, or --device cpu",
                )


def hadamard(n: int) -> npt.NDArray[np.float32]:
    """The orthonormal Walsh-Hadamard matrix [n, n]; n is a power of two, and the matrix its own inverse."""
    matrix = np.array([[np.float32(1.0 / np.sqrt(np.float32(n)))]], np.float32)
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]]).astype(np.float32)
    return matrix


def _rotation_of_k(width: int) -> int:
    size = _ROTATION
    while width % (2 * size) == 0:
        size *= 2
    return size


class KvCache:
    """K and V of `n_cells` tokens, one row of n_embd_kv values each, and what rotates them where they are quantised.

    Attributes:
        n_cells: tokens. kv_type: one of KV_TYPES. kind: its ggml type. n_bytes: of all buffers.
        k_rotation, v_rotation: width of the blocks that are rotated, or 0.
    """

    def __init__(self, hp: Hyperparameters, placement: Placement, n_cells: int, kv_type: str) -> None:
        """Allocates, all zeros.

        Raises:
            RequestError: a device cannot do this type. IcarusError: no memory.
        """
        self._hp, self.n_cells, self.kv_type = hp, n_cells, kv_type
        self.kind = KV_TYPES[kv_type]
        layer_devices = {device.handle: device for device in placement.layers}
        for device in layer_devices.values():
            check_device(hp, kv_type, device)
        rotated = kv_type in _QUANTISED and hp.n_embd_head % _ROTATION == 0
        self.k_rotation = _rotation_of_k(hp.n_embd_head) if rotated else 0
        self.v_rotation = _ROTATION if rotated else 0
        specs = {
            f"{part}.{layer}": TensorSpec(self.kind, (hp.n_embd_kv, n_cells), placement.layers[layer].buffer_type)
            for layer in range(hp.n_layer)
            for part in "kv"
        }
        for size in {self.k_rotation, self.v_rotation} - {0}:
            for device in layer_devices.values():
                specs[f"rotation.{size}@{device.name}"] = TensorSpec(TYPE_F32, (size, size), device.buffer_type)
        self._device_names = [device.name for device in placement.layers]
        self._group = TensorGroup(specs, f"a KV cache of {n_cells} tokens", "Give a smaller --n-ctx or --kv-type q8_0")
        for name in specs:
            if name.startswith("rotation."):
                self._group.write(name, hadamard(specs[name].shape[0]))
        self.n_bytes = self._group.n_bytes

    def k(self, layer: int) -> int:
        """Address of K, [n_embd_kv, n_cells]."""
        return self._group[f"k.{layer}"]

    def v(self, layer: int) -> int:
        """Address of V, [n_embd_kv, n_cells]."""
        return self._group[f"v.{layer}"]

    def rotation(self, size: int, layer: int) -> int:
        """Address of the rotation matrix [size, size] on a layer's device."""
        return self._group[f"rotation.{size}@{self._device_names[layer]}"]

    def read(self, part: str, layer: int, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Bytes of K ("k") or V ("v") of some cells, [cells, bytes of a row]."""
        rows = self._group.read(f"{part}.{layer}").reshape(self.n_cells, -1)
        return rows[cells]

    def write(self, part: str, layer: int, cells: npt.NDArray[np.int64], rows: npt.NDArray[np.uint8]) -> None:
        """Puts what `read` gave into other cells; rows [cells, bytes of a row]."""
        size = rows.shape[1]
        # Cells that follow each other are written at once: the lowest free come first, so most do.
        for run in np.split(np.arange(len(cells)), np.flatnonzero(np.diff(cells) != 1) + 1):
            if len(run):
                data = np.ascontiguousarray(rows[run[0] : run[-1] + 1])
                self._group.write(f"{part}.{layer}", data, int(cells[run[0]]) * size)

    def close(self) -> None:
        """Frees the memory; may be called twice."""
        self._group.close()
