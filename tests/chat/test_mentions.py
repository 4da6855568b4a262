"""Which files a question names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icarus_local.chat.mentions import files_mentioned


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a.txt", "b c.txt", "end.", "Makefile"):
        (tmp_path / name).write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "d.py").write_text("x")
    return tmp_path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("what is @a.txt", ["a.txt"]),
        ("@a.txt, and (@folder/d.py): twice @a.txt", ["a.txt"]),
        ("@folder/d.py? @Makefile!", ["folder/d.py", "Makefile"]),
        ('look at @"b c.txt".', ["b c.txt"]),
        ("the file @end.", ["end."]),
        ("@folder @nothing @ @@a.txt me@a.txt", []),
        ("line\n@a.txt\n", ["a.txt"]),
        ('@"a.txt', []),
    ],
)
def test_files_are_named_by_an_at(text: str, names: list[str]) -> None:
    assert [str(path) for path in files_mentioned(text)] == names


def test_the_home_folder_is_known(here: Path) -> None:
    assert files_mentioned("@~/a.txt") == [here / "a.txt"]


@given(st.text(max_size=60))
def test_any_text_may_be_asked(text: str) -> None:
    assert all(path.is_file() for path in files_mentioned(f"@{text}"))
