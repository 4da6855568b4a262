"""Code blocks of answers: all of them are found, and a saved one replaces nothing but what it is meant to."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from icarus_local.chat.code import CodeBlock, code_blocks, save_code
from icarus_local.errors import RequestError

BLOCK = CodeBlock("python", "print('grün')")
WRITTEN = "print('grün')\n".encode()
posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes and links")
not_root = pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everywhere")

markdown = st.text(
    st.one_of(st.sampled_from("`~\n\r\0 \t>-*1.#<>[]()!:\\&'\""), st.characters(blacklist_categories=())), max_size=120
)


def _mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


ANSWER = """Two files:

```Python title="a.py"
a = 1

```

1. In a list:

   ~~~~rust,no_run
   fn main() {
   ~~~
   }
   ~~~~

   > and a quote
   > ```
   > plain
   > ```

`inline` and

    indented

````{.C++}
```
````

```js
cut here(
"""


def test_all_fenced_blocks_are_found_in_order() -> None:
    assert code_blocks(ANSWER) == [
        CodeBlock("python", "a = 1\n\n"),
        CodeBlock("rust", "fn main() {\n~~~\n}\n"),
        CodeBlock("", "plain\n"),
        CodeBlock("c++", "```\n"),
        CodeBlock("js", "cut here(\n"),
    ]
    assert code_blocks("```py\nx") == [CodeBlock("py", "x")]
    assert code_blocks("```py") == [CodeBlock("py", "")]
    assert code_blocks("no ``` code") == code_blocks("") == []


@settings(max_examples=500, deadline=None)
@given(answer=markdown)
@example(answer="> " * 200 + "```\nx")
@example(answer="```\ud800\n\0\r\ud800")
def test_any_answer_can_be_looked_through(answer: str) -> None:
    for block in code_blocks(answer):
        assert block.suggested_name.startswith("code.")


@given(language=st.text("ab", max_size=3), text=st.text(st.characters(blacklist_characters="\0\r`"), min_size=1))
def test_a_block_is_cut_out_as_it_was_written(language: str, text: str) -> None:
    assert code_blocks(f"Here:\n```{language}\n{text}\n```\nThat is it.") == [CodeBlock(language, text + "\n")]


def test_the_suggested_name_follows_the_language() -> None:
    names = {
        "python": "code.py",
        "py": "code.py",
        "javascript": "code.js",
        "ts": "code.ts",
        "rust": "code.rs",
        "c": "code.c",
        "c++": "code.cpp",
        "bash": "code.sh",
        "yml": "code.yaml",
        "markdown": "code.md",
        "": "code.txt",
        "../../x": "code.txt",
        "brainfuck": "code.txt",
    }
    assert {language: CodeBlock(language, "").suggested_name for language in names} == names


def test_a_block_is_written_with_a_final_line_end(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    save_code(BLOCK, file)
    assert file.read_bytes() == WRITTEN
    save_code(CodeBlock("", "a\n\nb\n"), file, overwrite=True)
    assert file.read_bytes() == b"a\n\nb\n"
    save_code(CodeBlock("", "a\ud800b"), file, overwrite=True)
    assert file.read_bytes() == b"a?b\n"
    save_code(CodeBlock("", ""), tmp_path / "new.py", overwrite=True)
    assert (tmp_path / "new.py").read_bytes() == b""
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.py", "new.py"], "nothing is left beside"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(blacklist_categories=())))
def test_any_text_can_be_written(tmp_path: Path, text: str) -> None:
    save_code(CodeBlock("", text), tmp_path / "a", overwrite=True)
    assert (tmp_path / "a").read_bytes().rstrip(b"\n") == text.encode("utf-8", "replace").rstrip(b"\n")


def test_an_existing_file_stays_unless_it_is_to_go(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("old")
    with pytest.raises(RequestError, match=r"a\.py exists already.*overwritten"):
        save_code(BLOCK, file)
    assert file.read_text() == "old"
    save_code(BLOCK, file, overwrite=True)
    assert file.read_bytes() == WRITTEN


def _appears(target: Path, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` with a file appearing under the name just before it."""

    def late(*args: Any) -> Any:
        target.write_text("another's")
        return call(*args)

    return late


def _refuse(*_: Any) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    file = tmp_path / "a.py"
    monkeypatch.setattr(os, "link", _appears(file, os.link if links else _refuse))
    with pytest.raises(RequestError, match="exists already"):
        save_code(BLOCK, file)
    assert file.read_text() == "another's"
    assert list(tmp_path.iterdir()) == [file]


def test_file_systems_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", _refuse)
    save_code(BLOCK, tmp_path / "a.py")
    assert (tmp_path / "a.py").read_bytes() == WRITTEN
    monkeypatch.setattr(Path, "replace", _refuse)
    with pytest.raises(RequestError, match="not permitted"):
        save_code(BLOCK, tmp_path / "b.py")
    assert [each.name for each in tmp_path.iterdir()] == ["a.py"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failed_write_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    file = tmp_path / "a.py"
    if overwrite:
        file.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RequestError, match=r"a\.py cannot be written: No space left"):
        save_code(BLOCK, file, overwrite)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"] * overwrite


@pytest.mark.parametrize("overwrite", [False, True])
def test_places_that_are_none_are_refused(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "file").write_text("x")
    for name in (".", "..", "/"):
        with pytest.raises(RequestError, match="is a folder"):
            save_code(BLOCK, tmp_path / name, overwrite)
    with pytest.raises(RequestError, match=r"there is no folder .*none"):
        save_code(BLOCK, tmp_path / "none" / "a.py", overwrite)
    with pytest.raises(RequestError, match=r"there is no folder .*file"):
        save_code(BLOCK, tmp_path / "file" / "a.py", overwrite)
    for name in ("a\0b", "\ud800", "x" * 5000):
        with pytest.raises(RequestError, match="cannot be written") as caught:
            save_code(BLOCK, tmp_path / name, overwrite)
        str(caught.value).encode()
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_name_is_nothing_but_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = (
        ["-", "~", "$HOME", "%TEMP%", "a b"] if sys.platform == "win32" else ["-", "~", "$HOME", "|ls", "*", "x" * 250]
    )
    for name in names:
        save_code(BLOCK, Path(name))
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(names)


@posix
def test_modes_are_kept_and_new_files_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        save_code(BLOCK, tmp_path / "new")
        (tmp_path / "script").write_text("x")
        (tmp_path / "script").chmod(0o755)
        save_code(BLOCK, tmp_path / "script", overwrite=True)
    finally:
        os.umask(old)
    assert _mode(tmp_path / "new") == 0o640
    assert _mode(tmp_path / "script") == 0o755
    assert (tmp_path / "script").read_bytes() == WRITTEN


@posix
def test_links_stay_and_their_files_are_written(tmp_path: Path) -> None:
    real, link = tmp_path / "sub" / "real", tmp_path / "link"
    real.parent.mkdir()
    link.symlink_to("sub/real")
    with pytest.raises(RequestError, match="link exists already"):
        save_code(BLOCK, link)
    assert not real.exists()
    for _ in range(2):  # the file is missing, then there
        save_code(BLOCK, link, overwrite=True)
        assert link.is_symlink()
        assert real.read_bytes() == WRITTEN
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("none/file")
    with pytest.raises(RequestError, match="loop is no regular file"):
        save_code(BLOCK, tmp_path / "loop", overwrite=True)
    with pytest.raises(RequestError, match=r"there is no folder .*none"):
        save_code(BLOCK, tmp_path / "lost", overwrite=True)


@posix
def test_pipes_and_devices_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("pipe", "null"):
        with pytest.raises(RequestError, match=f"{name} is no regular file"):
            save_code(BLOCK, tmp_path / name, overwrite=True)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_read_only_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.py"
    file.write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(RequestError, match="read-only"):
        save_code(BLOCK, file, overwrite=True)
    assert file.read_text() == "old"


@posix
@not_root
def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    with pytest.raises(RequestError, match="cannot be written: Permission denied"):
        save_code(BLOCK, folder / "a.py")
