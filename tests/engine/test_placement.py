"""Where a model goes: by what a device's memory holds, by what was asked, and refused where neither can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from icarus_local.engine import devices, placement
from icarus_local.engine.adapter_file import read_adapter
from icarus_local.engine.base import BaseFile
from icarus_local.engine.devices import Device, cpu, find_device
from icarus_local.engine.engine import Engine
from icarus_local.engine.graph import GraphSpec
from icarus_local.engine.placement import Needs, Placement
from icarus_local.engine.plan import adapter_bytes, measured_needs
from icarus_local.errors import IcarusError, RequestError
from tests.agents import add_agents, convert
from tests.gguf_files import quantised, rewritten
from tests.tiny import Tiny, tiny_llama

MIB = 1 << 20
RESERVE = placement._RESERVE


@dataclass(frozen=True)
class FakeDevice(Device):
    """A device that is not there, with memory as given, which computes what the CPU does."""

    free: int = 0
    total: int = 1 << 40
    takes: bool = True

    @property
    def memory(self) -> tuple[int, int]:
        return self.free, self.total

    def supports(self, op: int) -> bool:
        return self.takes


def fake(name: str = "GPU0", **changes: Any) -> FakeDevice:
    """A GPU; handle and memory are told from the CPU's by their address alone."""
    plain = {"handle": 1, "description": "made up", "is_cpu": False, "is_gpu": True, "is_remote": False}
    return FakeDevice(**{**plain, "name": name, "buffer_type": 2, **changes})


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseFile]:
    """Four layers of 0.65 MiB and an untied head of 0.27 MiB, in F32."""
    tiny = tiny_llama(tmp_path_factory.mktemp("placement"), 4, hidden=256, n_ff=256)
    base = BaseFile(tiny.path)
    yield base
    base.close()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_devices(*found: Device) -> None:
        monkeypatch.setattr(devices, "devices", lambda: [*found, real])

    real = cpu()
    return set_devices


def place(file: BaseFile, needs: Needs, name: str = "auto", layers: int | None = None) -> Placement:
    return file.place(needs, name, layers, False)


def needed(file: BaseFile, needs: Needs, n: int) -> int:
    """Bytes that the last `n` of head and layers take on a device, by hand."""
    size = {name: info.n_bytes for name, info in file.file.tensors.items()}
    layer = sum(size[name] for name in size if name.startswith("blk.0."))
    head = size["output.weight"] + size["output_norm.weight"]
    rest = size["token_embd.weight"] if n == 5 else layer  # the embeddings too, or room for a weight of the CPU's
    return head + (n - 1) * (layer + (needs.cache + needs.adapters) // 4) + needs.compute + rest


NEEDS = Needs(n_ctx=256, cache=40 * MIB, compute=3 * MIB, adapters=8 * MIB)


@pytest.mark.parametrize("n", [1, 2, 4, 5])
def test_auto_takes_the_layers_that_fit_with_cache_adapters_and_computing(
    file: BaseFile, registry: Callable[..., None], n: int
) -> None:
    enough = needed(file, NEEDS, n) + RESERVE
    registry(fake(free=enough))
    found = place(file, NEEDS)
    assert found.n_gpu_layers == n
    assert f"{n} of 5 layers on GPU0" in found.reason
    assert f"of {enough >> 20} free MiB" in found.reason
    assert [device.name for device in found.layers] == ["CPU"] * (5 - n) + ["GPU0"] * (n - 1)
    assert found.head.name == "GPU0"
    assert found.tokens.name == ("GPU0" if n == 5 else "CPU")
    assert found.mixed == (n < 5)
    registry(fake(free=enough - 1))
    assert place(file, NEEDS).n_gpu_layers == n - 1


def test_each_of_cache_adapters_and_computing_counts(file: BaseFile, registry: Callable[..., None]) -> None:
    registry(fake(free=needed(file, NEEDS, 5) + RESERVE))
    for more in ("cache", "adapters", "compute"):
        larger = replace(NEEDS, **{more: getattr(NEEDS, more) + 4 * MIB})
        assert place(file, larger).n_gpu_layers < 5


def test_a_device_too_small_for_the_head_leaves_all_to_the_cpu(file: BaseFile, registry: Callable[..., None]) -> None:
    registry(fake(free=RESERVE))
    found = place(file, NEEDS)
    assert found.n_gpu_layers == 0
    assert not found.mixed
    assert found.device.is_cpu
    assert "0 of 5 layers on GPU0: it has 256 MiB free" in found.reason


def test_a_device_that_does_not_say_its_memory_takes_all(file: BaseFile, registry: Callable[..., None]) -> None:
    registry(fake(total=0))
    found = place(file, NEEDS)
    assert found.n_gpu_layers == 5
    assert "does not say what memory it has" in found.reason


def test_embeddings_stay_with_the_cpu_where_the_device_cannot_look_them_up(
    file: BaseFile, registry: Callable[..., None]
) -> None:
    registry(fake(free=1 << 40, takes=False))
    found = place(file, NEEDS)
    assert found.n_gpu_layers == 5
    assert found.tokens.is_cpu
    assert found.mixed


def test_asked_layers_are_given_or_refused(file: BaseFile, registry: Callable[..., None]) -> None:
    # What is asked for needs no reserve, and no room for adapters that may never come.
    bare = needed(file, replace(NEEDS, adapters=0), 3)
    registry(fake(free=bare))
    found = place(file, NEEDS, "gpu0", 3)
    assert found.n_gpu_layers == 3
    assert "3 of 5 layers on GPU0 as asked" in found.reason
    registry(fake(free=bare - 1))
    with pytest.raises(IcarusError, match=rf"3 of 5 layers on GPU0 take {bare >> 20} MiB with their cache"):
        place(file, NEEDS, "GPU0", 3)
    assert place(file, NEEDS, "GPU0", 0).n_gpu_layers == 0
    for layers in (-1, 6):
        with pytest.raises(RequestError, match="0 to 5"):
            place(file, NEEDS, "GPU0", layers)


def test_layers_for_no_device_are_told(file: BaseFile, registry: Callable[..., None]) -> None:
    registry()
    with pytest.raises(RequestError, match="--gpu-layers is 2 and the device the CPU"):
        place(file, NEEDS, "cpu", 2)
    with pytest.raises(RequestError, match="there is no GPU here"):
        place(file, NEEDS, "auto", 2)
    for layers in (0, None):
        assert place(file, NEEDS, "cpu", layers).reason.startswith("all on CPU")


def test_devices_are_found_by_name_or_by_kind(registry: Callable[..., None]) -> None:
    remote, first, second = fake("RPC0", is_remote=True), fake("GPU0"), fake("GPU1")
    blas = fake("BLAS", is_gpu=False)
    registry(blas, remote, first, second)
    assert find_device("auto").name == "GPU0"
    assert find_device("gpu1") is second
    assert find_device("RPC0") is remote
    assert find_device("CPU").is_cpu
    with pytest.raises(RequestError, match="BLAS cannot hold a model by itself"):
        find_device("BLAS")
    with pytest.raises(RequestError, match=r"no device 'GPU7'. There are BLAS, RPC0, GPU0, GPU1, CPU"):
        find_device("GPU7")
    registry(blas, remote)
    assert find_device("auto").is_cpu


def test_the_cpus_part_must_fit_too(
    file: BaseFile, registry: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry()
    monkeypatch.setattr(devices, "host_memory", lambda: 43 * MIB)
    assert place(file, NEEDS).n_gpu_layers == 0
    monkeypatch.setattr(devices, "host_memory", lambda: 43 * MIB - 1)
    said = "40 MiB for a cache of 256 tokens, 3 MiB for computing: 42 MiB are free on CPU. Give a smaller --n-ctx"
    with pytest.raises(IcarusError, match=said):
        place(file, NEEDS)
    # Half of the layers elsewhere is half of the cache.
    registry(fake(free=1 << 40))
    monkeypatch.setattr(devices, "host_memory", lambda: 23 * MIB)
    assert place(file, NEEDS, layers=3).n_gpu_layers == 3
    monkeypatch.setattr(devices, "host_memory", lambda: 0)
    assert place(file, NEEDS).n_gpu_layers == 5


def test_nothing_is_loaded_where_memory_does_not_suffice(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = rewritten(tiny.path, tmp_path / "huge.gguf", {"llama.context_length": 1 << 30})

    def loaded(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("icarus_local.engine.engine.BaseWeights", loaded)
    with pytest.raises(IcarusError, match=r"\d+ MiB for a cache of 1073741824 tokens, \d+ MiB for computing: \d+ MiB"):
        Engine(huge, n_ctx=1 << 30)


def test_weights_are_repacked_by_rule_or_as_asked(file: BaseFile, tmp_path: Path) -> None:
    assert not file.place(NEEDS, "cpu", None, None).repacked
    q4_0 = BaseFile(quantised(file.path, tmp_path / "q4_0.gguf", "Q4_0"))
    found = q4_0.place(NEEDS, "cpu", None, None)
    if not found.repacked:
        pytest.skip("this CPU has no kernels for repacked Q4_0")
    assert "MiB of weights repacked for the CPU" in found.reason
    assert "token_embd.weight" not in found.repacked
    assert not q4_0.place(NEEDS, "cpu", None, False).repacked
    assert "none can be repacked" in file.place(NEEDS, "cpu", None, True).reason
    q4_0.close()


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_what_is_measured_is_what_is_taken(file: BaseFile, tmp_path: Path, kv_type: str) -> None:
    specs = [GraphSpec(512, 0, 512), GraphSpec(16, 16, 512)]
    needs = measured_needs(file, 512, kv_type, specs)
    peft = add_agents(tiny_llama(tmp_path, 4, hidden=256, n_ff=256).model, {"A": 1.0}, rank=16)
    with Engine(file.path, n_ctx=512, kv_type=kv_type, device="cpu", repack=False) as engine:
        taken = engine.memory()
        assert needs.compute == pytest.approx(taken["compute"], rel=0.02)
        # The matrices that rotate quantised K and V come on top.
        assert needs.cache <= taken["cache"] < needs.cache + 200_000
        engine.add_adapter(read_adapter(convert(peft, "A", file.path, tmp_path)))
        # Slots for the zeros and one adapter.
        assert engine.adapter_bytes == pytest.approx(2 * adapter_bytes(file.hp, 16), rel=0.01)
        assert needs.adapters == 4 * adapter_bytes(file.hp, 16)
    assert measured_needs(file, 512, kv_type, specs, max_adapters=1).adapters == 2 * adapter_bytes(file.hp, 16)
