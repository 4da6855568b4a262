"""The frozen base model: the weights of one GGUF file, checked before ggml sees them, each on its device."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from icarus_local.engine.architecture import Hyperparameters, notices, read_hyperparameters
from icarus_local.engine.devices import Device
from icarus_local.engine.identity import family_id
from icarus_local.engine.placement import Needs, Placement, place
from icarus_local.engine.tensors import TensorGroup, TensorSpec
from icarus_local.engine.weights import HEAD, VECTOR, Weight, check_tensors, lora_places
from icarus_local.errors import ModelFileError
from icarus_local.ggml.context import Context
from icarus_local.ggml.gguf import GgufFile
from icarus_local.ggml.library import BUFFER_USAGE_WEIGHTS, STATUS_SUCCESS, load

_BUFFER_ALIGNMENT = 32  # what ggml asserts of a tensor's address on the CPU

Report = Callable[[str, float | None], None]
"""Told what is being done while a base loads, and how much of that is done: 0 to 1, None where nobody knows."""


class BaseFile:
    """A base's file, open and checked, with nothing of its weights loaded.

    Attributes:
        hp: the hyperparameters.
        family_id: which model it is, whatever its quantisation (see `identity`).
        weights: the tensors of the graph, by name.
        n_bytes: bytes of weights in the file.
    """

    def __init__(self, path: Path) -> None:
        """Opens and checks the file.

        Raises:
            ModelFileError: anything in the file that cannot be computed exactly.
        """
        self.path = path
        with ExitStack() as stack:
            self.file = stack.enter_context(GgufFile(path))
            self.hp: Hyperparameters = read_hyperparameters(self.file)
            self.weights = check_tensors(self.file, self.hp)
            self.family_id = family_id(self.file)
            self.n_bytes = sum(info.n_bytes for info in self.file.tensors.values())
            if any(info.offset % _BUFFER_ALIGNMENT for info in self.file.tensors.values()):
                # ggml asserts the alignment of every address.
                raise ModelFileError(
                    f"{path} aligns its tensors to less than {_BUFFER_ALIGNMENT} bytes", "Convert the model again"
                )
            self._stack = stack.pop_all()

    def place(self, needs: Needs, device: str, gpu_layers: int | None, repack: bool | None) -> Placement:
        """Decides where the model lies (see `placement.place`)."""
        return place(self.file, self.hp, self.weights, needs, device=device, gpu_layers=gpu_layers, repack=repack)

    def notices(self, n_ctx: int) -> list[str]:
        """What a user of this model should be told."""
        return notices(self.path, self.hp, self.file, n_ctx)

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._stack.close()


class BaseWeights:
    """The weights of a base where they are computed with: mapped from the file, repacked, or in a device's memory.

    Attributes:
        path, hp, family_id, n_bytes: as of the file.
        places: where a LoRA may stand, by the file's tensor name.
        placement: where everything lies.
        resident_bytes: bytes of weights that were copied, beside the mapped file.
    """

    def __init__(self, source: BaseFile, placement: Placement, report: Report | None = None) -> None:
        """Loads the weights; `report` is told of those that are copied.

        Raises:
            ModelFileError: the device cannot use the file. IcarusError: memory does not suffice.
        """
        self.path, self.hp, self.family_id, self.n_bytes = source.path, source.hp, source.family_id, source.n_bytes
        self.places, self.placement = lora_places(source.hp), placement
        self._ggml, self._file, self._weights = load(), source.file, source.weights
        self._tensors: dict[str, int] = {}
        with ExitStack() as stack:
            with self.path.open("rb") as handle:
                mapping = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
            self._view: npt.NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)
            plan = {key: (weight, buffer_type) for key, weight, buffer_type in self._plan(source.weights)}
            mapped = {key: weight for key, (weight, kind) in plan.items() if self._can_map(weight, kind)}
            self._map(mapped, placement.host, stack)
            copied = {key: plan[key] for key in plan if key not in mapped}
            self.resident_bytes = self._copy(copied, stack, report)
            self._stack = stack.pop_all()

    def _plan(self, weights: dict[str, Weight]) -> list[tuple[str, Weight, int]]:
        """(key, weight, buffer type) of every copy that is needed."""
        plan = []
        for weight in weights.values():
            if weight.use == VECTOR and weight.layer is None and weight.name in self.hp.rope.factors:
                # Every device that holds layers needs the factors.
                for device in {device.handle: device for device in self.placement.layers}.values():
                    plan.append((f"{weight.name}@{device.name}", weight, device.buffer_type))
                continue
            plan.append((weight.name, weight, self.placement.buffer_type_of(weight)))
        return plan

    def _can_map(self, weight: Weight, buffer_type: int) -> bool:
        """Whether the CPU can use a weight where it lies in the file; a part of a fused tensor may begin anywhere."""
        aligned = self._data(weight).ctypes.data % _BUFFER_ALIGNMENT == 0
        return aligned and buffer_type == self.placement.host.buffer_type

    def _data(self, weight: Weight) -> npt.NDArray[np.uint8]:
        """The bytes of a weight in the mapped file."""
        info = self._file.tensors[weight.source]
        row = info.n_bytes // math.prod(info.shape[1:])
        start = info.offset + (weight.first_row * row if len(weight.shape) > 1 else weight.first_row * 4)
        return self._view[start : start + self._spec(weight, 0).n_bytes]

    def _spec(self, weight: Weight, buffer_type: int) -> TensorSpec:
        return TensorSpec(self._file.tensors[weight.source].type, weight.shape, buffer_type)

    def _map(self, weights: dict[str, Weight], host: Device, stack: ExitStack) -> None:
        ggml = self._ggml
        largest = max(info.n_bytes for info in self._file.tensors.values())
        buffer = ggml.ggml_backend_dev_buffer_from_host_ptr(
            host.handle, self._view.ctypes.data, len(self._view), largest
        )
        if not buffer:
            raise ModelFileError(f"{self.path}: the device cannot use the mapped file")
        stack.callback(ggml.ggml_backend_buffer_free, buffer)
        ggml.ggml_backend_buffer_set_usage(buffer, BUFFER_USAGE_WEIGHTS)
        context = stack.enter_context(Context(len(weights) + 1))
        for key, weight in weights.items():
            data = self._data(weight)
            tensor = context.tensor(self._file.tensors[weight.source].type, *weight.shape)
            if ggml.ggml_backend_tensor_alloc(buffer, tensor, data.ctypes.data) != STATUS_SUCCESS:
                raise ModelFileError(f"{self.path}: tensor {weight.name} cannot be placed")
            self._tensors[key] = tensor

    def _copy(self, weights: dict[str, tuple[Weight, int]], stack: ExitStack, report: Report | None) -> int:
        if not weights:
            return 0
        # A tied head on the device of the embeddings is the same tensor.
        owners: dict[tuple[str, int, tuple[int, ...], int], str] = {}
        for key, (weight, buffer_type) in weights.items():
            owners.setdefault((weight.source, weight.first_row, weight.shape, buffer_type), key)
        specs = {key: self._spec(*weights[key]) for key in owners.values()}
        group = TensorGroup(specs, "the model", "Give fewer --gpu-layers, or a base in a smaller type")
        stack.callback(group.close)
        group.set_usage(BUFFER_USAGE_WEIGHTS)
        done, total = 0, sum(spec.n_bytes for spec in specs.values())
        for key, spec in specs.items():
            group.write(key, self._data(weights[key][0]))
            done += spec.n_bytes
            if report is not None:
                report(f"reading {self.path.name}", done / total)
        for key, (weight, buffer_type) in weights.items():
            self._tensors[key] = group[owners[weight.source, weight.first_row, weight.shape, buffer_type]]
        return group.n_bytes

    def tensor(self, name: str) -> int:
        """Address of a required weight."""
        return self._tensors[name]

    def optional(self, name: str) -> int | None:
        """Address of a weight that not every file has, or None."""
        return self._tensors.get(name)

    def types(self, *modules: str) -> frozenset[int]:
        """ggml types of the weights of these modules, such as "attn_k", over all layers; repacked ones are left out."""
        return frozenset(
            self._file.tensors[weight.source].type
            for weight in self._weights.values()
            if weight.name.split(".")[-2] in modules and weight.name.endswith(".weight")
            if weight.name not in self.placement.repacked
        )

    def samples(self, *modules: str) -> list[tuple[int, Weight]]:
        """One tensor (its address) of each type and shape among these modules' matrices."""
        found: dict[tuple[int, tuple[int, ...]], tuple[int, Weight]] = {}
        for weight in self._weights.values():
            if weight.name.split(".")[-2] in modules and weight.name.endswith(".weight"):
                kind = (self._file.tensors[weight.source].type, weight.shape)
                found.setdefault(kind, (self._tensors[weight.name], weight))
        return list(found.values())

    def rope_factors(self, layer: int, n_ctx: int) -> int | None:
        """Address of the rope's factors for a layer and a context, or None; layers that see a window have none."""
        name = self.hp.rope_of(layer).factors_for(n_ctx)
        return None if name is None else self._tensors[f"{name}@{self.placement.layers[layer].name}"]

    @property
    def head(self) -> int:
        """The output head; a tied one is the token embedding once more."""
        return self._tensors[HEAD]

    def close(self) -> None:
        """Frees the weights; may be called twice. No graph over them may be used afterwards."""
        self._tensors = {}
        self._stack.close()
