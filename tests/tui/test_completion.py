"""What may follow what is being typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icarus_local.chat.lines import COMMANDS
from icarus_tui.completion import Names, complete

NAMES = Names(("coder", "reviewer", "code2"), ("base", "coder", "math"), ("textual-dark", "textual-light"))


def texts(typed: str) -> list[str]:
    """The whole lines that may come of it."""
    completion = complete(typed, NAMES)
    return [typed[: completion.start] + found.text for found in completion.candidates] if completion else []


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("main.py", "make it.txt", ".hidden", "line\nend", 'quo"te'):
        (tmp_path / name).write_text("x")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("x")
    (tmp_path / "my files").mkdir()
    (tmp_path / "my files" / "b.py").write_text("x")
    return tmp_path


def test_commands_are_listed_with_what_they_do() -> None:
    completion = complete("/", NAMES)
    assert completion is not None
    assert [found.shown.split()[0] for found in completion.candidates] == [f"/{name}" for name in COMMANDS]
    assert texts("/ke") == ["/keep "]
    assert texts("/ne") == ["/new"]
    assert texts("/re") == ["/regenerate", "/resume ", "/rename "]
    assert texts("/nothing") == texts("no / command") == texts("/path/like") == []


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("/keep c", ["/keep coder", "/keep code2"]),
        ("/keep @r", ["/keep @reviewer"]),
        ("/agent coder r", ["/agent coder reviewer"]),
        ("/agent a", ["/agent all"]),
        ("/agents ", ["/agents add ", "/agents remove ", "/agents reload "]),
        ("/agents rel", ["/agents reload "]),
        ("/agents add ", ["/agents add base", "/agents add math"]),
        ("/agents remove co", ["/agents remove coder", "/agents remove code2"]),
        ("/theme textual-l", ["/theme textual-light"]),
        ("@co", ["@coder ", "@code2 "]),
        ("@coder @r", ["@coder @reviewer "]),
        ("/all @r", ["/all @reviewer "]),
        ("/rounds 3 @r", ["/rounds 3 @reviewer "]),
        ("/keep coder", []),
        ("mail me @co", []),
        ("/new x", []),
        ("nobody@co", []),
    ],
)
def test_names(typed: str, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert texts(typed) == lines


@pytest.mark.usefixtures("here")
def test_files_and_folders() -> None:
    assert texts("/add ma") == ["/add main.py ", '/add "make it.txt" ']
    assert texts("/add main.py sr") == ["/add main.py src/"]
    assert texts("/add src/") == ["/add src/a.py "]
    assert texts('/add "my') == ['/add "my files/']
    assert texts('/add "my files/') == ['/add "my files/b.py" ']
    assert texts("/add .") == ["/add .hidden "]
    assert texts("what is in @mai") == ["what is in @main.py "]
    assert texts("@m") == ["@main.py ", '@"make it.txt" ', '@"my files/']
    assert texts("@coder look at @src/") == ["@coder look at @src/a.py "]
    assert texts("/add nowhere/") == texts("/add main.py/") == []
    # What could not be typed is not offered.
    assert not any("line" in found or "quo" in found for found in texts("/add "))


def test_a_large_folder_is_not_listed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for n in range(300):
        (tmp_path / f"f{n}").touch()
    assert len(texts("/add ")) == 50


@given(st.text(max_size=40))
def test_any_text_may_be_typed(text: str) -> None:
    for typed in (text, f"/add {text}", f"@{text}", f"/agents {text}"):
        completion = complete(typed, NAMES)
        assert completion is None or 0 <= completion.start <= len(typed)
