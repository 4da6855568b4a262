"""Damaged folders: a refusal or a valid adapter, never another exception, never a half-written file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from icarus_convert.base import read_base
from icarus_convert.peft_folder import read_peft_folder
from icarus_convert.safetensors_file import read_safetensors
from icarus_convert.write import convert_adapter
from icarus_local.engine.adapter_file import MODULES
from icarus_local.errors import IcarusError
from tests.convert.folders import lora_tensors, write_folder
from tests.tiny import Tiny

FLIPS = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=8)
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def folder(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = read_base(tiny.path)
    return write_folder(tmp_path_factory.mktemp("hostile") / "peft", lora_tensors(base, MODULES), run={})


def flipped(data: bytes, flips: list[tuple[int, int]], within: int) -> bytes:
    changed = bytearray(data)
    for place, bits in flips:
        changed[place % min(within, len(changed))] ^= bits
    return bytes(changed)


@SETTINGS
@given(flips=FLIPS, header_only=st.booleans())
def test_flipped_bytes_of_the_weights(
    folder: Path, tmp_path: Path, flips: list[tuple[int, int]], header_only: bool
) -> None:
    data = (folder / "adapter_model.safetensors").read_bytes()
    path = tmp_path / "flipped.safetensors"
    path.write_bytes(flipped(data, flips, 2000 if header_only else len(data)))
    try:
        tensors = read_safetensors(path)
    except IcarusError:
        return
    assert all(values.dtype == "float32" for values in tensors.values())


@SETTINGS
@given(share=st.floats(0, 1, exclude_max=True))
def test_truncated_weights(folder: Path, tmp_path: Path, share: float) -> None:
    data = (folder / "adapter_model.safetensors").read_bytes()
    path = tmp_path / "cut.safetensors"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(IcarusError):
        read_safetensors(path)


@SETTINGS
@given(flips=FLIPS, file=st.sampled_from(["adapter_config.json", "icarus_run.json"]))
def test_flipped_bytes_of_the_json(folder: Path, tmp_path: Path, flips: list[tuple[int, int]], file: str) -> None:
    copy = tmp_path / "peft"
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    data = (folder / file).read_bytes()
    (copy / file).write_bytes(flipped(data, flips, len(data)))
    try:
        peft = read_peft_folder(copy)
    except IcarusError:
        return
    assert len(peft.modules) == 2 * len(MODULES)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(flips=FLIPS)
def test_a_damaged_folder_leaves_no_file(
    tiny: Tiny, folder: Path, tmp_path: Path, flips: list[tuple[int, int]]
) -> None:
    copy, work = tmp_path / "peft", tmp_path / "work"
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    work.mkdir(exist_ok=True)
    data = (folder / "adapter_model.safetensors").read_bytes()
    damaged = flipped(data, flips, len(data))
    assume(damaged != data)  # two flips of one byte can cancel
    (copy / "adapter_model.safetensors").write_bytes(damaged)
    with pytest.raises(IcarusError):  # the run file names the hash of the weights
        convert_adapter(copy, tiny.path, work / "out.gguf")
    assert not list(work.iterdir())


@pytest.mark.parametrize("text", ["", "[", "[1]", "null", "{", '{"a":' * 5000, "\xff"])
def test_json_that_is_none(folder: Path, tmp_path: Path, text: str) -> None:
    copy = tmp_path / "peft"
    shutil.copytree(folder, copy)
    (copy / "adapter_config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(IcarusError, match=r"adapter_config\.json"):
        read_peft_folder(copy)
