"""Crafted and damaged files of every reader: one refusal in words or a whole result; no other exception, no memory.

ICARUS_FUZZ=1000 makes every hypothesis run a thousand times as many examples.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import pickletools
import re
import resource
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icarus_convert.base import read_base
from icarus_convert.describe import describe, lines
from icarus_convert.find_source import read_source
from icarus_convert.gguf_keys import add_keys
from icarus_convert.mlx_folder import WEIGHTS_FILE as MLX_WEIGHTS
from icarus_convert.torch_zip import read_torch_zip
from icarus_convert.write import convert_adapter
from icarus_local.engine.adapter_file import MODULES
from icarus_local.errors import IcarusError, ModelFileError
from tests.convert.folders import lora_tensors, write_folder
from tests.convert.test_sources import as_mlx, sharded
from tests.tiny import Tiny

MANY = int(os.environ.get("ICARUS_FUZZ", "1"))
FLIPS = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=8)
SETTINGS = settings(max_examples=100 * MANY, deadline=None, suppress_health_check=list(HealthCheck), database=None)


def damaged(data: bytes, flips: list[tuple[int, int]], share: float, within: int) -> bytes:
    changed = bytearray(data)
    for place, bits in flips:
        changed[place % min(within, len(changed))] ^= bits
    return bytes(changed[: max(1, int(len(changed) * share))])


def result_or_refusal(call: Callable[[], Any]) -> Any:
    """What a reader gives, or None where it refuses in one line."""
    refusal = ""
    try:
        return call()
    except IcarusError as error:
        refusal = str(error)
    assert refusal
    assert "\n" not in refusal
    return None


# -- torch's zip -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zipped(tiny: Tiny) -> bytes:
    buffer = io.BytesIO()
    tensors = lora_tensors(read_base(tiny.path), ("attn_q",))
    torch.save({name: torch.from_numpy(values) for name, values in tensors.items()}, buffer)
    return buffer.getvalue()


def entries(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def with_pickle(path: Path, zipped: bytes, code: bytes) -> Path:
    files = entries(zipped)
    name = next(name for name in files if name.endswith("data.pkl"))
    return packed(path, {**files, name: code})


@SETTINGS
@given(flips=FLIPS, share=st.sampled_from([1.0, 1.0, 0.99, 0.5]), end=st.booleans())
def test_damaged_zips(zipped: bytes, tmp_path: Path, flips: list[tuple[int, int]], share: float, end: bool) -> None:
    path = tmp_path / "flipped.bin"
    data = damaged(zipped[::-1], flips, 1.0, 2000)[::-1] if end else damaged(zipped, flips, share, len(zipped))
    path.write_bytes(data)
    tensors = result_or_refusal(lambda: read_torch_zip(path)) or {}
    assert all(values.dtype == np.float32 for values in tensors.values())


@SETTINGS
@given(flips=FLIPS)
def test_damaged_pickles(zipped: bytes, tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    code = next(data for name, data in entries(zipped).items() if name.endswith("data.pkl"))
    path = with_pickle(tmp_path / "flipped.bin", zipped, damaged(code, flips, 1.0, len(code)))
    result_or_refusal(lambda: read_torch_zip(path))


OPCODES = st.sampled_from([opcode.code.encode("latin-1") for opcode in pickletools.opcodes])
ARGUMENTS = st.sampled_from(
    [
        b"",
        b"\0",
        b"\xff" * 8,
        b"\xff\xff\xff\x7f",
        struct.pack("<Q", 1 << 62),
        b"1000000000000\n",
        b"os\nsystem\n",
        b"torch._utils\n_rebuild_tensor_v2\n",
        b"torch\nFloatStorage\n",
        b"\x07\0\0\0storage",
    ]
)


@SETTINGS
@given(steps=st.lists(st.tuples(OPCODES, ARGUMENTS), max_size=30))
def test_random_programs(zipped: bytes, tmp_path: Path, steps: list[tuple[bytes, bytes]]) -> None:
    code = b"\x80\x02" + b"".join(opcode + argument for opcode, argument in steps) + b"."
    with contextlib.suppress(ModelFileError):
        assert read_torch_zip(with_pickle(tmp_path / "random.bin", zipped, code)) == {}


class Runs:
    """A pickle that would make a file, as attacks do."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_nothing_is_run(zipped: bytes, tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    attacks = [
        Runs(os.system, f"touch {mark}"),
        Runs(exec, f"open({str(mark)!r}, 'w')"),
        Runs(eval, f"open({str(mark)!r}, 'w')"),
        Runs(Path.touch, mark),
        {"a": Runs(os.mkdir, str(mark))},
        Runs(getattr, "", "join"),
        Runs(torch.load, str(mark)),
    ]
    for attack in attacks:
        code = pickle.dumps(attack, protocol=protocol)
        with pytest.raises(ModelFileError, match="pickle"):
            read_torch_zip(with_pickle(tmp_path / "attack.bin", zipped, code))
    assert not mark.exists()


def test_large_claims_take_no_memory(zipped: bytes, tmp_path: Path) -> None:
    """A small file may not name much: views of one storage, sizes, memo indices, a compressed bomb."""
    files = entries(zipped)
    pickle_name = next(name for name in files if name.endswith("data.pkl"))
    path = tmp_path / "large.bin"
    claims: list[Any] = [
        {"a": torch.zeros(1).expand(1 << 20, 1 << 14)},
        {str(i): torch.zeros(1 << 10).expand(64, 1 << 10) for i in range(300)},
    ]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for claim in claims:
        torch.save(claim, path)
        with pytest.raises(ModelFileError, match="claims"):
            read_torch_zip(path)
    for code in (
        b"\x80\x02}r\xff\xff\xff\xff.",  # LONG_BINPUT
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",  # BYTEARRAY8
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b".",  # BINBYTES8
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b".",  # BINUNICODE8
        b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b".",  # LONG4
        b"\x80\x02)" + b"\x85" * 100000 + b".",  # tuples in tuples
        b"\x80\x02]" + b"2\x86" * 60 + b".",  # twice as many each time, if anybody looked
    ):
        try:
            read_torch_zip(with_pickle(path, zipped, code))
        except ModelFileError:
            continue
    bomb = packed(path, {**files, pickle_name: b"\0" * (1 << 24)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelFileError, match="compressed"):
        read_torch_zip(bomb)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300 * 1024, f"{grown} KiB"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda files: {n: d for n, d in files.items() if not n.endswith("data/0")}, "lacks the data"),
        (lambda files: {n: d[:-4] if "/data/" in n else d for n, d in files.items()}, "bytes, not"),
        (lambda files: {n: b"big" if n.endswith("byteorder") else d for n, d in files.items()}, "big-endian"),
        (lambda files: {n: d for n, d in files.items() if not n.endswith(".pkl")}, "data.pkl"),
        (lambda files: {**files, "second/data.pkl": b""}, "2 files data.pkl"),
    ],
)
def test_zips_that_are_not_torchs(zipped: bytes, tmp_path: Path, change: Any, words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        read_torch_zip(packed(tmp_path / "odd.bin", change(entries(zipped))))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"K\x02K\x03\x86", b"K\x02K\x04\x86"),  # one column more than the storage has
        (b"K\x03K\x01\x86", b"K\x04K\x01\x86"),  # longer steps
        (b"QK\x00K\x02", b"QK\x01K\x02"),  # begins later
    ],
)
def test_a_tensor_may_not_reach_beyond_its_data(tmp_path: Path, old: bytes, new: bytes) -> None:
    torch.save({"a": torch.ones(2, 3)}, tmp_path / "whole.bin")
    files = entries((tmp_path / "whole.bin").read_bytes())
    name = next(name for name in files if name.endswith("data.pkl"))
    code = re.sub(rb"Qq.", b"Q", files[name], flags=re.DOTALL)  # without a memo that nothing reads
    assert code.count(old) == 1
    for change, ok in ((code, True), (code.replace(old, new), False)):
        path = packed(tmp_path / "far.bin", {**files, name: change})
        if ok:
            assert read_torch_zip(path)["a"].shape == (2, 3)
        else:
            with pytest.raises(ModelFileError, match="beyond its data"):
                read_torch_zip(path)


def test_views_are_read_as_torch_reads_them(tmp_path: Path) -> None:
    values = torch.randn(6, 8)
    views = {
        "t": values.T,
        "part": values[1:4, 2:6],
        "steps": values[::2, ::3],
        "half": values.half().T,
        "none": values[:0],
    }
    torch.save(views, tmp_path / "views.bin")
    read = read_torch_zip(tmp_path / "views.bin")
    for name, view in views.items():
        assert np.array_equal(read[name], view.float().numpy())


# -- folders -----------------------------------------------------------------------------------------------------------


@SETTINGS
@given(flips=FLIPS, share=st.sampled_from([1.0, 0.9]), which=st.integers(0, 5))
def test_damaged_folders(tiny: Tiny, tmp_path: Path, flips: list[tuple[int, int]], share: float, which: int) -> None:
    tensors = lora_tensors(read_base(tiny.path), ("attn_q", "attn_output"))
    make = sharded if which % 2 else as_mlx
    folder = make(tmp_path / f"folder{which % 2}", tensors)
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    path = paths[which // 2 % len(paths)]
    path.write_bytes(damaged(path.read_bytes(), flips, share, 3000))
    source = result_or_refusal(lambda: read_source(folder))
    assert source is None or source.modules


def test_a_file_of_any_size_is_not_read(tiny: Tiny, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "peft", lora_tensors(read_base(tiny.path), MODULES))
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        path = folder / name
        kept = path.read_bytes()
        with path.open("r+b") as file:
            file.truncate(1 << 40)
        with pytest.raises(IcarusError, match="bytes"):
            read_source(folder)
        path.write_bytes(kept)
    mlx = as_mlx(tmp_path / "mlx", lora_tensors(read_base(tiny.path), MODULES))
    os.truncate(mlx / MLX_WEIGHTS, 1 << 40)
    with pytest.raises(IcarusError, match="bytes"):
        read_source(mlx)


@pytest.mark.parametrize("text", ["", "[", "[1]", "null", '{"a":' * 5000, "\xff", '{"weight_map": {"a": {"b": 1}}}'])
def test_an_index_that_is_none(tiny: Tiny, tmp_path: Path, text: str) -> None:
    folder = sharded(tmp_path / "shards", lora_tensors(read_base(tiny.path), MODULES))
    (folder / "adapter_model.safetensors.index.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(IcarusError, match=r"index\.json"):
        read_source(folder)


# -- GGUF --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lora(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A llama.cpp LoRA."""
    path = tmp_path_factory.mktemp("lora") / "lora.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_array("texts", ["a", "b"])
    writer.add_array("numbers", [1, 2, 3])
    for name, values in lora_tensors(read_base(tiny.path), ("attn_q",)).items():
        layer = name.split("layers.")[1][0]
        writer.add_tensor(f"blk.{layer}.attn_q.weight.{'lora_a' if 'lora_A' in name else 'lora_b'}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@SETTINGS
@given(flips=FLIPS, share=st.sampled_from([1.0, 1.0, 0.9, 0.1]))
def test_damaged_loras(tiny: Tiny, lora: bytes, tmp_path: Path, flips: list[tuple[int, int]], share: float) -> None:
    path, out = tmp_path / "lora.gguf", tmp_path / "out.gguf"
    path.write_bytes(damaged(lora, flips, share, 900))
    for call in (
        lambda: list(lines(describe(path))),
        lambda: add_keys(path, tmp_path / "keys.gguf", {"a": "b"}),
        lambda: convert_adapter(path, tiny.path, out, assume_icarus=True, force=True),
    ):
        result_or_refusal(call)


@SETTINGS
@given(flips=FLIPS, share=st.sampled_from([1.0, 1.0, 0.9, 0.1]))
def test_damaged_bases(tiny: Tiny, tmp_path: Path, flips: list[tuple[int, int]], share: float) -> None:
    path = tmp_path / "base.gguf"
    path.write_bytes(damaged(tiny.path.read_bytes(), flips, share, 9000))
    facts = result_or_refusal(lambda: describe(path))
    assert facts is None or (json.dumps(facts) and list(lines(facts)))


def test_added_keys_change_nothing_else(lora: bytes, tmp_path: Path) -> None:
    source, once, twice = (tmp_path / f"{name}.gguf" for name in ("source", "once", "twice"))
    source.write_bytes(lora)
    add_keys(source, once, {"x.text": "ü" * 37, "x.list": ["a", ""], "x.yes": True, "x.n": 7})
    add_keys(once, twice, {"x.text": "other", "general.type": "adapter"})
    for path, text in ((once, "ü" * 37), (twice, "other")):
        reader = gguf.GGUFReader(path)
        assert reader.fields["x.text"].contents() == text
        assert reader.fields["x.list"].contents() == ["a", ""]
        assert reader.fields["x.yes"].contents() is True
        assert reader.fields["x.n"].contents() == 7
        assert reader.fields["numbers"].contents() == [1, 2, 3]
        theirs = gguf.GGUFReader(source)
        assert [(t.name, t.data.tobytes()) for t in reader.tensors] == [
            (t.name, t.data.tobytes()) for t in theirs.tensors
        ]
    assert list(gguf.GGUFReader(twice).fields).count("general.type") == 1
