"""Copying: by the terminal and by a program, and what is said of it. The programs are real ones on PATH."""

from __future__ import annotations

import asyncio
import stat
import sys
import time
from pathlib import Path

import pytest
from textual.app import App

from icarus_tui import clipboard
from icarus_tui.clipboard import copy

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the programs here are shell scripts")

TAKES = '#!/bin/sh\necho "$@" > "{out}.args"\nexec /bin/cat > "{out}"\n'
FAILS = "#!/bin/sh\n/bin/cat > /dev/null\nexit 1\n"
HANGS = "#!/bin/sh\nexec /bin/sleep 60\n"
DEAF = "#!/bin/sh\nexec <&-\nexec /bin/sleep 0.1\n"


class Terminal(App[None]):
    """Remembers what the terminal was asked to take."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []

    def copy_to_clipboard(self, text: str) -> None:
        text.encode("utf-8")  # as Textual does
        self.sent.append(text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder with programs, in a terminal that takes a copy."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("WAYLAND_DISPLAY", "DISPLAY", "TERMUX_VERSION", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "bin"


def program(folder: Path, name: str, text: str = TAKES) -> Path:
    path, out = folder / name, folder.parent / f"{name}.out"
    path.write_text(text.format(out=out))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return out


def copied(text: str, app: Terminal | None = None) -> str:
    return asyncio.run(copy(app or Terminal(), text))


@pytest.mark.parametrize(
    ("variable", "name", "arguments"),
    [
        ("WAYLAND_DISPLAY", "wl-copy", ""),
        ("DISPLAY", "xclip", "-selection clipboard"),
        ("DISPLAY", "xsel", "--clipboard --input"),
        ("TERMUX_VERSION", "termux-clipboard-set", ""),
    ],
)
def test_a_program_takes_it_and_the_terminal_is_asked_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str, name: str, arguments: str
) -> None:
    monkeypatch.setenv(variable, ":0")
    out, app = program(folder, name), Terminal()
    assert copied("two\nlines 世界 ", app) == f"13 characters copied by {name}"
    assert out.read_text("utf-8") == "two\nlines 世界 "
    assert Path(f"{out}.args").read_text().strip() == arguments
    assert app.sent == ["two\nlines 世界 "]


def test_windows_gets_its_own_encoding(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WSL_DISTRO_NAME", "Debian")
    out = program(folder, "clip.exe")
    assert copied("世") == "1 character copied by clip.exe"
    assert out.read_bytes().decode("utf-16") == "世"


def test_without_a_display_no_program_is_asked(folder: Path) -> None:
    out = program(folder, "xclip")
    assert copied("x") == "1 character sent to the terminal's clipboard; some terminals do not heed it"
    assert not out.exists()


def test_the_next_program_is_asked_where_one_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYLAND_DISPLAY", "w")
    monkeypatch.setenv("DISPLAY", ":0")
    program(folder, "wl-copy", FAILS)
    program(folder, "xclip", "no program at all")
    out = program(folder, "xsel")
    assert copied("text") == "4 characters copied by xsel"
    assert out.read_text() == "text"


def test_one_that_hangs_is_ended_and_nothing_else_waits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipboard, "_TIMEOUT_S", 0.3)
    monkeypatch.setenv("DISPLAY", ":0")
    program(folder, "xclip", HANGS)

    async def run() -> tuple[str, int]:
        ticks, copying = 0, asyncio.create_task(copy(Terminal(), "text"))
        while not copying.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return copying.result(), ticks

    start = time.monotonic()
    said, ticks = asyncio.run(run())
    assert time.monotonic() - start < 2
    assert said == "4 characters sent to the terminal's clipboard; some terminals do not heed it"
    assert ticks > 10


def test_one_that_reads_nothing_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    program(folder, "xclip", DEAF)
    assert "1000000 characters" in copied("x" * 1_000_000)


def test_what_terminals_refuse_is_told(folder: Path) -> None:
    assert "some terminals refuse as many" not in copied("x" * 50_000)
    assert copied("x" * 60_000).endswith("sent to the terminal's clipboard; some terminals refuse as many")


@pytest.mark.parametrize("term", ["dumb", "linux", ""])
def test_a_terminal_that_takes_nothing_is_not_asked(folder: Path, monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    monkeypatch.setenv("TERM", term)
    app = Terminal()
    assert copied("text", app).startswith("nothing was copied")
    assert app.sent == []
    monkeypatch.setenv("DISPLAY", ":0")
    program(folder, "xclip")
    assert copied("text", app) == "4 characters copied by xclip"


def test_what_is_no_text_is_copied_as_far_as_it_is(folder: Path) -> None:
    app = Terminal()
    assert copied("a\ud800b", app).startswith("3 characters")
    assert app.sent == ["a?b"]


def test_nothing_is_not_copied(folder: Path) -> None:
    app = Terminal()
    assert copied("", app) == "there is nothing to copy"
    assert app.sent == []
