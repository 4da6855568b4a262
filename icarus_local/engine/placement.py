"""Where a model lies: which layers on which device, and which weights in the CPU's repacked memory."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass

from icarus_local.engine.architecture import Hyperparameters
from icarus_local.engine.devices import Device, cpu, find_device
from icarus_local.engine.weights import EXPERTS, HEAD, MATRIX, TOKENS, Weight
from icarus_local.errors import IcarusError, RequestError
from icarus_local.ggml.context import Context
from icarus_local.ggml.gguf import GgufFile
from icarus_local.ggml.library import TYPE_F32, TYPE_I32, load

_RESERVE = 256 << 20  # bytes of a device's memory left to its driver, where layers are chosen and not asked for
_N_PROBE_ROWS = 512  # llama.cpp asks for this many when it chooses a buffer


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that a run takes beside the weights.

    Attributes:
        n_ctx: tokens of the cache. cache: of the whole cache. compute: of the compute buffers, on one device.
        adapters: that all layers' adapters may be expected to take.
    """

    n_ctx: int
    cache: int
    compute: int
    adapters: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where everything of one model lies.

    Attributes:
        device: the device that computes; the CPU computes what is not on it.
        n_gpu_layers: how many of the last layers, and the head as one more, are on the device.
        layers: the device of each layer. head: the device of the output head. tokens: of the embeddings.
        repacked: names of the weights that go to the CPU's repacked memory, and its buffer type.
        reason: what was chosen, in words.
    """

    device: Device
    host: Device
    n_gpu_layers: int
    layers: tuple[Device, ...]
    head: Device
    tokens: Device
    repacked: frozenset[str]
    repack_buffer_type: int
    reason: str

    @property
    def mixed(self) -> bool:
        """Whether more than one device computes."""
        return len({device.handle for device in (*self.layers, self.head, self.tokens)}) > 1

    def of(self, weight: Weight) -> Device:
        """The device of a weight."""
        if weight.name == TOKENS:
            return self.tokens
        return self.head if weight.layer is None else self.layers[weight.layer]

    def buffer_type_of(self, weight: Weight) -> int:
        """The memory that a weight lies in."""
        return self.repack_buffer_type if weight.name in self.repacked else self.of(weight).buffer_type


def place(
    file: GgufFile,
    hp: Hyperparameters,
    weights: Mapping[str, Weight],
    needs: Needs,
    *,
    device: str,
    gpu_layers: int | None,
    repack: bool | None,
) -> Placement:
    """Decides where a model lies.

    Args:
        needs: bytes beside the weights.
        device: "auto", "cpu" or a name of ggml's registry.
        gpu_layers: how many layers go to the device, counting the head as one more; None for what fits.
        repack: whether weights are repacked for the CPU; None to decide by rule.

    Raises:
        RequestError: no such device, layers that do not exist, or no device for them. IcarusError: memory does not
            suffice for what was asked.
    """
    chosen, host = find_device(device), cpu()
    if gpu_layers is not None and not 0 <= gpu_layers <= hp.n_layer + 1:
        raise RequestError(f"--gpu-layers is {gpu_layers}; this base has 0 to {hp.n_layer + 1} (the head is one more)")
    if gpu_layers and chosen.is_cpu:
        raise RequestError(
            f"--gpu-layers is {gpu_layers} and "
            + ("there is no GPU here that this llama-cpp-python can use" if device == "auto" else "the device the CPU"),
            "Leave it out, or see docs/install.md for other devices",
        )
    if chosen.is_cpu:
        n, reason = 0, f"all on {host.name}"
    else:
        n, reason = _fit(chosen, hp, _device_bytes(chosen, file, hp, weights, needs), gpu_layers)
    if n == 0:
        chosen = host
    # As llama.cpp counts: the head is the first to go to the device, then the layers from the last one down.
    layers = tuple(chosen if layer >= hp.n_layer + 1 - n else host for layer in range(hp.n_layer))
    head = chosen if n else host
    whole = n == hp.n_layer + 1
    tokens = chosen if whole and _takes_rows(chosen, file.tensors[TOKENS].type, hp.n_embd, hp.n_vocab) else host
    repacked, repack_type, copied, words = _repacked(file, weights, (*layers, head), host, repack)
    cache = needs.cache * layers.count(host) // hp.n_layer
    _check_host(host, needs.n_ctx, copied, cache, 0 if whole and not tokens.is_cpu else needs.compute)
    return Placement(chosen, host, n, layers, head, tokens, repacked, repack_type, f"{reason}; {words}")


def _check_host(host: Device, n_ctx: int, copied: int, cache: int, compute: int) -> None:
    """Raises IcarusError where the CPU's memory cannot hold its part; mapped weights need none of their own."""
    free, _ = host.memory
    if copied + cache + compute > free:
        parts = f"{cache >> 20} MiB for a cache of {n_ctx} tokens, {compute >> 20} MiB for computing"
        if copied:
            parts += f", {copied >> 20} MiB for repacked weights"
        raise IcarusError(
            f"{parts}: {free >> 20} MiB are free on {host.name}",
            f"Give a smaller --n-ctx, --kv-type q8_0{' or --no-repack' if copied else ''}",
        )


def _device_bytes(
    device: Device, file: GgufFile, hp: Hyperparameters, weights: Mapping[str, Weight], needs: Needs
) -> list[tuple[int, int]]:
    """For 0, 1, … layers on a device (the head is the first): bytes there without, and with, expected adapters."""
    sizes = _layer_bytes(file, hp, weights)
    offloaded = max(sizes[:-1])  # a device may borrow the CPU's weights for a long prompt, one matrix at a time
    tokens = file.tensors[TOKENS]
    rows = 0
    if weights[HEAD].source != TOKENS and _takes_rows(device, tokens.type, hp.n_embd, hp.n_vocab):
        rows = tokens.n_bytes
    found = [(0, 0)]
    for n in range(1, len(sizes) + 1):
        cache, adapters = (part * (n - 1) // hp.n_layer for part in (needs.cache, needs.adapters))
        bare = sum(sizes[-n:]) + cache + needs.compute + (rows if n == len(sizes) else offloaded)
        found.append((bare, bare + adapters))
    return found


def _layer_bytes(file: GgufFile, hp: Hyperparameters, weights: Mapping[str, Weight]) -> list[int]:
    """Bytes of weights of each layer, and of the head as the last."""
    sizes, seen = [0] * (hp.n_layer + 1), set()
    for weight in weights.values():
        if weight.name != TOKENS and weight.source not in seen:
            seen.add(weight.source)
            sizes[hp.n_layer if weight.layer is None else weight.layer] += file.tensors[weight.source].n_bytes
    return sizes


def _fit(device: Device, hp: Hyperparameters, needed: list[tuple[int, int]], asked: int | None) -> tuple[int, str]:
    """How many layers go to a device, and why; `needed` as of `_device_bytes`."""
    free, total = device.memory
    of = f"of {hp.n_layer + 1} layers on {device.name}"
    if asked is not None:
        if total and needed[asked][0] > free:
            raise IcarusError(
                f"{asked} {of} take {needed[asked][0] >> 20} MiB with their cache, and {free >> 20} MiB are free",
                "Give fewer --gpu-layers, or auto, or a smaller --n-ctx",
            )
        return asked, f"{asked} {of} as asked"
    if not total:
        return hp.n_layer + 1, f"all on {device.name}, which does not say what memory it has"
    # 0 layers take nothing, so there is always one that fits.
    n = max(n for n, (_, size) in enumerate(needed) if n == 0 or size + _RESERVE <= free)
    took = f"{needed[n][1] >> 20} of {free >> 20} free MiB"
    return n, f"{n} {of}: with cache and adapters {took}" if n else f"0 {of}: it has {free >> 20} MiB free"


def _takes_rows(device: Device, kind: int, width: int, n_rows: int) -> bool:
    with Context(8) as scratch:
        table, ids = scratch.tensor(kind, width, n_rows), scratch.tensor(TYPE_I32, 2)
        return device.supports(load().ggml_get_rows(scratch.handle, table, ids))


def _repack_buffer_type(host: Device) -> int | None:
    """The CPU's repacked memory, where this build has one."""
    ggml = load()
    address = ggml.ggml_backend_reg_get_proc_address(
        ggml.ggml_backend_dev_backend_reg(host.handle), b"ggml_backend_dev_get_extra_bufts"
    )
    if not address:
        return None
    get = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)
    found, i = get(host.handle), 0
    while found and found[i]:
        if ggml.ggml_backend_buft_name(found[i]) == b"CPU_REPACK":
            return int(found[i])
        i += 1
    return None


def _can_repack(host: Device, buffer_type: int, kind: int, shape: tuple[int, ...], use: str) -> bool:
    """Whether the CPU multiplies a weight of this type and shape out of its repacked memory."""
    ggml = load()
    with Context(8) as scratch:
        weight = scratch.tensor(kind, *shape)
        # The answer depends on the buffer that the weight lies in.
        buffer = ggml.ggml_backend_alloc_ctx_tensors_from_buft(scratch.handle, buffer_type)
        if not buffer:
            return False
        try:
            if use == EXPERTS:
                rows, ids = scratch.tensor(TYPE_F32, shape[0], 1, 2), scratch.tensor(TYPE_I32, 1, 2)
                op = ggml.ggml_mul_mat_id(scratch.handle, weight, rows, ids)
            else:
                op = ggml.ggml_mul_mat(scratch.handle, weight, scratch.tensor(TYPE_F32, shape[0], _N_PROBE_ROWS))
            return bool(ggml.ggml_backend_dev_supports_op(host.handle, op))
        finally:
            ggml.ggml_backend_buffer_free(buffer)


def _repacked(
    file: GgufFile,
    weights: Mapping[str, Weight],
    devices: tuple[Device, ...],
    host: Device,
    repack: bool | None,
) -> tuple[frozenset[str], int, int, str]:
    """The weights that are repacked, the memory for them, their bytes, and the choice in words.

    `devices` are those of the layers and, last, of the head.
    """
    buffer_type = None if repack is False else _repack_buffer_type(host)
    if buffer_type is None:
        return frozenset(), 0, 0, "weights used where they are mapped"
    answers: dict[tuple[int, tuple[int, ...], str], bool] = {}
    names, n_bytes, total = set(), 0, 0
    for weight in weights.values():
        device = devices[-1 if weight.layer is None else weight.layer]
        if weight.use not in (MATRIX, EXPERTS) or not device.is_cpu:
            continue
        info = file.tensors[weight.source]
        key = (info.type, weight.shape, weight.use)
        if key not in answers:
            answers[key] = _can_repack(host, buffer_type, *key)
        size = int(load().ggml_row_size(info.type, weight.shape[0])) * math.prod(weight.shape[1:])
        total += size
        if answers[key]:
            names.add(weight.name)
            n_bytes += size
    if not names:
        return frozenset(), 0, 0, "weights used where they are mapped: none can be repacked"
    if repack is None and 2 * n_bytes < total:
        return frozenset(), 0, 0, "weights used where they are mapped: few of them can be repacked"
    if repack is None and n_bytes > host.memory[0] // 2:
        too_much = f"weights used where they are mapped: {n_bytes >> 20} MiB to repack them are too much"
        return frozenset(), 0, 0, too_much
    return frozenset(names), buffer_type, n_bytes, f"{n_bytes >> 20} MiB of weights repacked for the CPU"
