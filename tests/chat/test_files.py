"""Files for the conversation: only text gets in, whole and under one name; all else is refused by name."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from icarus_local.chat import files
from icarus_local.chat.code import CodeBlock, code_blocks
from icarus_local.chat.files import MAX_FILE_BYTES, MAX_MATCHES, TextFile, expand, read_text_file, split_paths
from icarus_local.errors import RequestError

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX files and names")
not_root = pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read everything")

# Read files hold neither NUL nor CR; what is fenced is mostly made of what could close a fence.
text = st.text(st.one_of(st.sampled_from("`~\n \t>-1.#<[]:"), st.characters(blacklist_characters="\0\r")), max_size=60)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is not the home folder."""
    here, home = tmp_path / "here", tmp_path / "home"
    for each in (here, home):
        each.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("USERPROFILE" if sys.platform == "win32" else "HOME", str(home))
    return here


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=text)
@example(text="")
@example(text="```\ninside\n```")
@example(text="no line end")
@example(text="`" * 40 + "\n\n    indented\n")
@example(text="\ud800 \x85\u2028\n")
def test_a_text_comes_back_whole_from_the_message(text: str) -> None:
    end = "" if not text or text.endswith("\n") else "\n"
    assert code_blocks(TextFile("a.py", text, 1).message) == [CodeBlock("py", text + end)]


def test_the_message_names_the_file_and_its_language() -> None:
    assert TextFile("src/a.py", "x = 1\n", 6).message == "File src/a.py:\n\n```py\nx = 1\n```"
    assert TextFile("Makefile", "all:", 4).message == "File Makefile:\n\n```\nall:\n```"
    assert TextFile("a.b`c", "`````", 5).message == "File a.b`c:\n\n``````\n`````\n``````"
    assert TextFile("a.é", "x", 1).message == "File a.é:\n\n```\nx\n```"


def test_a_file_is_read_as_text(folder: Path) -> None:
    (folder / "a.txt").write_bytes("\ufeffgrün\r\n\rlast\n".encode())
    assert read_text_file(Path("a.txt")) == TextFile("a.txt", "grün\n\nlast\n", 16)
    (folder / "largest").write_bytes(b"x" * MAX_FILE_BYTES)
    assert read_text_file(Path("largest")).n_bytes == len(read_text_file(Path("largest")).text) == MAX_FILE_BYTES


def test_names_are_short(folder: Path) -> None:
    (folder / "sub").mkdir()
    below, at_home, outside = folder / "sub" / "a", folder.parent / "home" / "b", folder.parent / "c"
    for file in (below, at_home, outside):
        file.write_text("x")
    assert read_text_file(below).name == str(Path("sub/a"))
    assert read_text_file(Path("../c")).name == str(Path("../c"))
    assert read_text_file(at_home).name == str(Path("~/b"))
    assert read_text_file(outside).name == str(outside)


@posix
def test_a_hostile_name_stays_one_printable_line(folder: Path) -> None:
    for name in (b"a\n```\n\x1b[2J\tb.txt", b"a\xff.txt"):
        (folder / os.fsdecode(name)).write_bytes(b"text\n")
        file = read_text_file(Path(os.fsdecode(name)))
        assert file.name.encode("utf-8").isascii() is False
        assert not set("\n\t\x1b") & set(file.name)
        assert code_blocks(file.message) == [CodeBlock("txt", "text\n")]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "bad is empty"),
        (b"\xef\xbb\xbf", "bad is empty"),
        (b"ab\0c", "bad is binary: byte 2 is NUL"),
        (b"\xef\xbb\xbfa\0", "bad is binary: byte 4 is NUL"),
        (b"ab\xffc", "bad is not UTF-8 text: byte 2 is 0xff"),
        (b"\xef\xbb\xbfa\xe9", "bad is not UTF-8 text: byte 4 is 0xe9"),
        ("a".encode("utf-16"), "bad is UTF-16.*Convert it"),
        (b"\xfe\xff\0a", "bad is UTF-16.*Convert it"),
        ("a".encode("utf-32"), "bad is UTF-32.*Convert it"),
        (b"x" * (MAX_FILE_BYTES + 1), r"bad is too large: at most 1 MiB .* 1.00 MiB \(1048577 bytes\)"),
        (b"x" * (5 << 19), "2.50 MiB"),
    ],
)
def test_what_is_no_text_is_refused(folder: Path, raw: bytes, message: str) -> None:
    (folder / "bad").write_bytes(raw)
    with pytest.raises(RequestError, match=message):
        read_text_file(Path("bad"))


def test_what_is_no_file_is_refused(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "file").write_text("x")
    for path in ("none", "sub/none", "file/none"):
        with pytest.raises(RequestError, match=r"there is no file .*none"):
            read_text_file(Path(path))
    with pytest.raises(RequestError, match="sub is a folder"):
        read_text_file(Path("sub"))
    for name in ("a\0b", "\ud800", "x" * 5000):
        with pytest.raises(RequestError, match=r"cannot be read|there is no file"):
            read_text_file(Path(name))


@posix
@pytest.mark.timeout(20)
def test_pipes_devices_and_sockets_are_refused_at_once(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for name in ("pipe", "link", "/dev/zero", "socket"):
            with pytest.raises(RequestError, match=f"{name} is no regular file"):
                read_text_file(Path(name))


@posix
@pytest.mark.timeout(20)
def test_a_file_that_became_a_pipe_after_the_look_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").write_text("x")
    os.mkfifo(folder / "pipe")
    before = (folder / "file").stat()
    monkeypatch.setattr(Path, "stat", lambda _: before)
    with pytest.raises(RequestError, match="pipe is no regular file"):
        read_text_file(Path("pipe"))


def test_a_file_that_grows_after_the_look_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "small").write_text("x")
    (folder / "file").write_bytes(b"x" * (MAX_FILE_BYTES + 9))
    before = (folder / "small").stat()
    monkeypatch.setattr(Path, "stat", lambda _: before)
    monkeypatch.setattr(os, "fstat", lambda _: before)
    with pytest.raises(RequestError, match="file is too large"):
        read_text_file(Path("file"))


@posix
@not_root
def test_an_unreadable_file_is_refused(folder: Path) -> None:
    (folder / "file").write_text("x")
    (folder / "file").chmod(0)
    with pytest.raises(RequestError, match="file cannot be read: Permission denied"):
        read_text_file(Path("file"))


def test_a_failed_read_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    (folder / "file").write_text("x")
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(RequestError, match="file cannot be read: Permission denied"):
        read_text_file(Path("file"))


def test_patterns_give_their_files_sorted_and_each_once(folder: Path) -> None:
    (folder / "sub" / "deep").mkdir(parents=True)
    for name in ("b.py", "a.py", "c.txt", ".hidden.py", "sub/d.py", "sub/deep/e.py"):
        (folder / name).write_text("x")
    assert expand(["*.py"]) == [Path("a.py"), Path("b.py")]
    assert expand(["c.txt", "?.*", "./a.py", str(folder / "b.py")]) == [Path("c.txt"), Path("a.py"), Path("b.py")]
    assert expand(["sub/**/*.py"]) == [Path("sub/d.py"), Path("sub/deep/e.py")]
    assert expand(["*"]) == [Path("a.py"), Path("b.py"), Path("c.txt")], "no folder"
    assert expand(["none", "[ab].py"]) == [Path("none"), Path("a.py"), Path("b.py")]
    for pattern in ("*.rs", "s*b", "none/*", "*\0"):
        with pytest.raises(RequestError, match="matches no file"):
            expand([pattern])


def test_a_path_that_exists_is_no_pattern(folder: Path) -> None:
    for name in ("a[1].py", "a1.py"):
        (folder / name).write_text("x")
    assert expand(["a[1].py"]) == [Path("a[1].py")]
    (folder / "a[1].py").unlink()
    assert expand(["a[1].py"]) == [Path("a1.py")]


def test_the_home_folder_is_expanded(folder: Path) -> None:
    home = folder.parent / "home"
    (home / "a.py").write_text("x")
    assert expand(["~/a.py", "~/*.py", "~/none"]) == [home / "a.py", home / "none"]


def test_a_pattern_that_matches_too_much_is_refused(folder: Path) -> None:
    for i in range(MAX_MATCHES):
        (folder / f"{i}.txt").touch()
    assert len(expand(["*.txt"])) == MAX_MATCHES
    (folder / "one more.txt").touch()
    with pytest.raises(RequestError, match=f"more than {MAX_MATCHES} files"):
        expand(["*.txt"])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=st.text(st.sampled_from("~*?[]!-. ab'\"\\\0\n\ud800é"), max_size=12))
@example(line="~\0")
@example(line="'~\ud800'")
def test_any_line_gives_files_or_an_error_for_people(line: str) -> None:
    try:
        for path in expand(split_paths(line)):
            read_text_file(path)
    except RequestError as error:
        str(error).encode()


@posix
def test_a_folder_that_is_gone_is_no_accident(folder: Path) -> None:
    folder.rmdir()
    assert expand(["a"]) == [Path("a")]
    for path in ("a", "/nothing/here"):
        with pytest.raises(RequestError, match=f"there is no file {path}"):
            read_text_file(Path(path))


@given(words=st.lists(st.text(max_size=8), max_size=5))
def test_a_line_is_split_as_a_shell_does(words: list[str]) -> None:
    assert split_paths(shlex.join(words)) == words


def test_quotes_and_backslashes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_paths(r"""a\ b 'c d' "e \" f" #g""") == ["a b", "c d", 'e " f', "#g"]
    for line in ("it's.txt", '"a b'):
        with pytest.raises(RequestError, match="a quote is not closed"):
            split_paths(line)
    with pytest.raises(RequestError, match="nothing follows the last"):
        split_paths("a\\")
    monkeypatch.setattr(files, "_WINDOWS", True)
    assert split_paths(r'C:\new\a.txt "D:\my files\b.txt" C:\dir' + "\\") == [
        r"C:\new\a.txt",
        r"D:\my files\b.txt",
        "C:\\dir\\",
    ]
