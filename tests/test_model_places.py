"""Models in the usual places: found by their headers, whatever else lies there, and within bounds."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from icarus_local import model_places
from icarus_local.base_choices import BaseChoice
from icarus_local.model_places import Folder, find_models, usual_folders
from tests.gguf_files import rewritten
from tests.tiny import Tiny

HEX = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of huggingface-hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def put(source: Path, *names: Path) -> None:
    """The same content in files of their own."""
    for name in names:
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_bytes(source.read_bytes())


def found(home: Path, here: Path | None = None, **environment: str) -> dict[str, BaseChoice]:
    folders = usual_folders(environment, home, here or home / "nowhere", "linux")
    choices = list(find_models(folders, home))
    assert len({choice.name for choice in choices}) == len(choices)
    return {choice.name: choice for choice in choices}


def test_every_usual_place_is_looked_at(tiny: Tiny, home: Path, tmp_path: Path) -> None:
    names = [
        "models/a/b/deep.gguf",
        ".cache/llama.cpp/owner_repo_file.gguf",
        ".lmstudio/models/owner/repo/lm.gguf",
        ".cache/lm-studio/models/owner/repo/old.gguf",
        ".local/share/nomic.ai/GPT4All/gpt4all.GGUF",
        "jan/models/x/jan.gguf",
        ".config/Jan/data/llamacpp/models/x/new.gguf",
        "Downloads/down.gguf",
    ]
    put(tiny.path, *(home / name for name in names), tmp_path / "here" / "local.gguf", tmp_path / "lc" / "mine.gguf")
    choices = found(home, tmp_path / "here", LLAMA_CACHE=str(tmp_path / "lc"))
    expected = {f"~/{name}" for name in names} | {str(tmp_path / "here/local.gguf"), str(tmp_path / "lc/mine.gguf")}
    assert set(choices) == expected
    for choice in choices.values():
        assert (choice.usable, choice.detail, choice.n_bytes) == (True, "llama", tiny.path.stat().st_size)
        assert Path(choice.base).read_bytes() == tiny.path.read_bytes()


def test_other_systems_have_other_places(home: Path) -> None:
    mac = {folder.path for folder in usual_folders({}, home, home, "darwin")}
    assert home / "Library" / "Caches" / "llama.cpp" in mac
    assert home / "Library" / "Application Support" / "nomic.ai" / "GPT4All" in mac
    windows = {folder.path for folder in usual_folders({"LOCALAPPDATA": "L", "APPDATA": "R"}, home, home, "win32")}
    assert {Path("L/llama.cpp"), Path("L/nomic.ai/GPT4All"), Path("R/Jan/data")} <= windows


def test_what_cannot_be_used_is_given_with_its_reason(tiny: Tiny, home: Path) -> None:
    models = home / "models"
    put(tiny.path, models / "good.gguf")
    rewritten(tiny.path, models / "odd.gguf", {"general.architecture": "mamba"})
    rewritten(tiny.path, models / "part-00001-of-00003.gguf", {"split.count": 3})
    rewritten(tiny.path, models / "part-00002-of-00003.gguf", {"split.count": 3})
    rewritten(tiny.path, models / "lora.gguf", {"general.type": "adapter"})
    (models / "cut.gguf").write_bytes(tiny.path.read_bytes()[:10_000])
    (models / "text.gguf").write_text("not a model")
    (models / "empty.gguf").write_text("")
    (models / "notes.txt").write_text("nothing")
    choices = {name.removeprefix("~/models/"): choice for name, choice in found(home).items()}
    assert {name for name, choice in choices.items() if choice.usable} == {"good.gguf"}
    reasons = {name: choice.detail for name, choice in choices.items() if not choice.usable}
    assert set(reasons) == {"odd.gguf", "part-00001-of-00003.gguf", "lora.gguf", "cut.gguf", "text.gguf", "empty.gguf"}
    assert reasons["odd.gguf"] == "mamba, which this version does not run"
    assert reasons["part-00001-of-00003.gguf"].startswith("one of 3 files; join them")
    assert reasons["lora.gguf"].startswith("an adapter, no base: ")
    assert reasons["text.gguf"].startswith("is not a GGUF file")
    assert "damaged" in reasons["cut.gguf"] or "cut off" in reasons["cut.gguf"]


def ollama(models: Path, tiny: Tiny, manifest: object, name: str = "library/llama3.2/1b", blob: str = HEX) -> None:
    file = models / "manifests" / "registry.ollama.ai" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(manifest))
    put(tiny.path, models / "blobs" / f"sha256-{blob}")


def layers(digest: object, kind: str = "application/vnd.ollama.image.model") -> dict[str, Any]:
    other = {"mediaType": "application/vnd.ollama.image.license", "digest": f"sha256:{'f' * 64}", "size": 3}
    return {"schemaVersion": 2, "layers": [other, {"mediaType": kind, "digest": digest, "size": 1}]}


def test_ollamas_files_are_found_by_its_manifests(tiny: Tiny, home: Path, tmp_path: Path) -> None:
    ollama(home / ".ollama" / "models", tiny, layers(f"sha256:{HEX}"))
    # One content under two names is one model.
    ollama(home / ".ollama" / "models", tiny, layers(f"sha256:{HEX}"), "library/other/latest")
    assert len(found(home)) == 1
    ollama(tmp_path / "o", tiny, layers(f"sha256:{HEX}"), "someone/theirs/latest")
    choices = found(home, OLLAMA_MODELS=str(tmp_path / "o"))
    assert list(choices) == ["Ollama someone/theirs:latest"]
    assert choices["Ollama someone/theirs:latest"].usable
    assert choices["Ollama someone/theirs:latest"].base == str(tmp_path / "o" / "blobs" / f"sha256-{HEX}")


@pytest.mark.parametrize(
    "manifest",
    [
        "no object",
        {"layers": 5},
        {"layers": [5]},
        layers(5),
        layers("the model"),
        layers(f"sha256:{'e' * 64}"),
        layers(f"sha256:{HEX}", "application/vnd.ollama.image.projector"),
        [[[[[[]]]]]],
    ],
)
def test_a_manifest_that_is_none_finds_nothing(tiny: Tiny, home: Path, manifest: object) -> None:
    if manifest == layers("the model"):
        # A path leads out of the folder.
        manifest = layers(str(tiny.path))
    ollama(home / ".ollama" / "models", tiny, manifest)
    assert found(home) == {}


def test_the_hubs_cache_is_found_by_the_names_of_the_hub(tiny: Tiny, home: Path, cache: Path) -> None:
    folder = cache / "models--owner--repo"
    put(tiny.path, folder / "blobs" / "abc")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("c0ffee")
    (folder / "snapshots" / "c0ffee").mkdir(parents=True)
    (folder / "snapshots" / "c0ffee" / "base.gguf").symlink_to(folder / "blobs" / "abc")
    # The same file by another way.
    (home / "models").mkdir()
    (home / "models" / "link.gguf").symlink_to(folder / "blobs" / "abc")
    assert list(found(home)) == ["owner/repo/base.gguf"]


def test_links_are_followed_once_and_loops_end(tiny: Tiny, home: Path, tmp_path: Path) -> None:
    put(tiny.path, tmp_path / "disk" / "far.gguf")
    models = home / "models"
    (models / "a").mkdir(parents=True)
    (models / "disk").symlink_to(tmp_path / "disk")
    (models / "again").symlink_to(tmp_path / "disk")
    (models / "a" / "loop").symlink_to(models)
    (models / "self").symlink_to(models / "self")
    (models / "gone.gguf").symlink_to(tmp_path / "nothing")
    (models / "fifo").mkdir()
    os.mkfifo(models / "fifo" / "pipe.gguf")
    choices = list(found(home).values())
    assert [Path(choice.base).name for choice in choices] == ["far.gguf"]


def test_folders_that_lead_to_themselves_take_nothing_from_the_others(tiny: Tiny, home: Path) -> None:
    put(tiny.path, home / "Downloads" / "a.gguf")
    (home / "models").mkdir()
    for n in range(40):
        (home / "models" / f"{n}").symlink_to(home / "models")
    assert set(found(home)) == {"~/Downloads/a.gguf"}


def test_hidden_and_too_deep_folders_are_left_alone(tiny: Tiny, tmp_path: Path) -> None:
    put(
        tiny.path,
        tmp_path / "x" / ".git" / "a.gguf",
        tmp_path / "x" / "1" / "2" / "b.gguf",
        tmp_path / "x" / "1" / "c.gguf",
    )
    names = [choice.name for choice in find_models([Folder(tmp_path / "x", 2)], tmp_path)]
    assert names == [f"~{os.sep}x{os.sep}1{os.sep}c.gguf"]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the owner of all files may read them")
def test_what_may_not_be_read_is_passed_over(tiny: Tiny, home: Path) -> None:
    put(tiny.path, home / "models" / "closed" / "a.gguf", home / "models" / "b.gguf")
    (home / "models" / "closed").chmod(0)
    assert set(found(home)) == {"~/models/b.gguf"}
    (home / "models" / "closed").chmod(0o700)


def test_a_folder_that_vanishes_is_passed_over(tiny: Tiny, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tiny.path, home / "models" / "a.gguf", home / "Downloads" / "b.gguf")
    scandir = os.scandir

    def refusing(folder: Path) -> Any:
        if Path(folder).name == "models":
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    assert set(found(home)) == {"~/Downloads/b.gguf"}


def test_it_ends_after_so_many_files_entries_and_seconds(
    tiny: Tiny, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tiny.path, *(home / "models" / f"{n:02}.gguf" for n in range(30)))
    folders = [Folder(home / "models", 2)]
    assert len(list(find_models(folders, home))) == 30
    assert len(list(find_models(folders, home, max_s=-1))) == 0
    monkeypatch.setattr(model_places, "_MAX_FOUND", 7)
    assert len(list(find_models(folders, home))) == 7
    monkeypatch.setattr(model_places, "_MAX_FOUND", 100)
    monkeypatch.setattr(model_places, "_MAX_ENTRIES", 11)
    assert len(list(find_models(folders, home))) == 10


def test_they_come_as_they_are_found(tiny: Tiny, home: Path) -> None:
    put(tiny.path, home / "models" / "a.gguf", home / "models" / "b.gguf")
    choices: Iterator[BaseChoice] = find_models([Folder(home / "models", 1)], home)
    first = next(choices)
    assert first.usable
    (home / "models" / "a.gguf").unlink()
    (home / "models" / "b.gguf").unlink()
    assert all(not choice.usable for choice in choices)


def test_a_large_file_is_not_read(tiny: Tiny, home: Path) -> None:
    put(tiny.path, home / "models" / "large.gguf")
    with (home / "models" / "large.gguf").open("r+b") as file:
        file.truncate(64 << 30)  # a hole
    start = time.monotonic()
    (choice,) = found(home).values()
    assert time.monotonic() - start < 2
    assert (choice.usable, choice.n_bytes) == (True, 64 << 30)
