"""The external editor: a real program on a real file, and in a real terminal."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from textual.app import App, SuspendNotSupported

from icarus_local.errors import RequestError
from icarus_tui.editor import edit

ROOT = Path(__file__).parents[2]
EDITOR = """
import os, pathlib, sys
file = pathlib.Path(sys.argv[-1])
pathlib.Path({log!r}).write_text("\\n".join([
    *sys.argv[1:], oct(file.stat().st_mode & 0o777), oct(file.parent.stat().st_mode & 0o777), file.read_text("utf-8")]))
{act}
"""


class Lent(App[None]):
    """Lends its terminal, as Textual does: what fails meanwhile leaves it lent."""

    def __init__(self) -> None:
        super().__init__()
        self.lent, self.times = False, 0

    @contextmanager
    def suspend(self) -> Iterator[None]:
        self.lent, self.times = True, self.times + 1
        yield
        self.lent = False


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def editor(log: Path, act: str, *options: str) -> str:
    program = log.with_name("my editor.py")
    program.write_text(EDITOR.format(log=str(log), act=act))
    return shlex.join([sys.executable, str(program), *options])


def test_what_was_written_there_is_given(log: Path) -> None:
    app = Lent()
    command = editor(log, "file.write_bytes('neu\\r\\n世界\\x1b[2J\\n'.encode())", "--wait", "an option")
    assert edit(app, "a question\nof two lines", command) == "neu\n世界�[2J"
    assert (app.lent, app.times) == (False, 1)
    *options, name, mode, folder_mode, first, second = log.read_text().splitlines()
    assert options == ["--wait", "an option"]
    assert name.endswith(".md")
    assert (first, second) == ("a question", "of two lines")
    if sys.platform != "win32":
        assert (mode, folder_mode) == ("0o600", "0o700")
    assert not Path(name).parent.exists()


def test_what_stays_the_same_is_none(log: Path) -> None:
    assert edit(Lent(), "as it is", editor(log, "")) is None
    # Editors end the last line.
    assert edit(Lent(), "as it is", editor(log, "file.write_text('as it is\\n')")) is None
    assert edit(Lent(), "as it is\n", editor(log, "file.write_text('as it is')")) is None
    assert edit(Lent(), "as it is", editor(log, "file.write_text('')")) == ""


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("sys.exit(3)", "failed with exit code 3; the text is as before"),
        ("file.unlink()", "cannot be kept"),
        ("os.kill(os.getpid(), 9)", "failed with exit code"),
    ],
)
def test_an_editor_that_fails_gives_the_terminal_back(log: Path, act: str, said: str) -> None:
    app = Lent()
    with pytest.raises(RequestError, match=said):
        edit(app, "text", editor(log, act))
    assert (app.lent, app.times) == (False, 1)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/no/such/editor --wait", "the editor /no/such/editor cannot be started: No such file"),
        ("'unclosed", "cannot be read: No closing quotation. Set editor under"),
        ("   ", "there is no editor"),
    ],
)
def test_a_command_that_is_none_is_told(command: str, said: str) -> None:
    app = Lent()
    with pytest.raises(RequestError, match=said):
        edit(app, "text", command)
    assert not app.lent


def test_the_settings_go_before_the_environment(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = editor(log, "file.write_text('edited')")
    monkeypatch.setenv("EDITOR", "/no/such/editor")
    assert edit(Lent(), "", command) == "edited"
    monkeypatch.setenv("VISUAL", command)
    assert edit(Lent(), "") == "edited"
    monkeypatch.delenv("VISUAL")
    with pytest.raises(RequestError, match="/no/such/editor"):
        edit(Lent(), "")
    monkeypatch.delenv("EDITOR")
    monkeypatch.setenv("PATH", str(log.parent))
    with pytest.raises(RequestError, match="there is no editor"):
        edit(Lent(), "")


def test_a_terminal_that_cannot_be_lent_is_told(log: Path) -> None:
    class Held(App[None]):
        @contextmanager
        def suspend(self) -> Iterator[None]:
            raise SuspendNotSupported("not here")
            yield

    with pytest.raises(RequestError, match="cannot be lent"):
        edit(Held(), "text", editor(log, ""))
    assert not log.exists()


APP = """
import sys
sys.path[:0] = [{root!r}, {tui!r}]
from textual.app import App
from textual.widgets import Static
from icarus_local.errors import RequestError
from icarus_tui.editor import edit
class Program(App):
    BINDINGS = [("e", "edit", "Edit"), ("q", "quit", "Quit")]
    def compose(self):
        yield Static("begun", markup=False)
    def action_edit(self):
        try:
            said = repr(edit(self, "typed", {command!r}))
        except RequestError as error:
            said = str(error)
        self.query_one(Static).update(said)
Program().run()
"""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.parametrize(
    ("act", "said"),
    [("file.write_text('edited ' + line)", "'edited and more'"), ("sys.exit(2)", "failed with exit code 2")],
)
def test_it_has_the_terminal_and_gives_it_back(log: Path, tmp_path: Path, act: str, said: str) -> None:
    command = editor(log, f"line = input('EDITOR HERE> ')\n{act}")
    program = tmp_path / "program.py"
    program.write_text(APP.format(root=str(ROOT), tui=str(ROOT / "tui"), command=command))
    server = f"icarus-test-{uuid.uuid4().hex[:12]}"

    def tmux(*arguments: str) -> str:
        command = ["tmux", "-L", server, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout

    def until(text: str) -> None:
        start = time.monotonic()
        while text not in tmux("capture-pane", "-p"):
            assert time.monotonic() - start < 20, tmux("capture-pane", "-p")
            time.sleep(0.05)

    tmux("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "20", "env -u LINES -u COLUMNS PS1='begin> ' sh")
    try:
        until("begin>")
        tmux("send-keys", f"PS1='over> '; {shlex.join([sys.executable, str(program)])}", "Enter")
        until("begun")
        tmux("send-keys", "e")
        until("EDITOR HERE>")
        tmux("send-keys", "and more", "Enter")
        until(said)
        assert "EDITOR HERE" not in tmux("capture-pane", "-p")
        tmux("send-keys", "q")
        until("over>")
    finally:
        tmux("kill-server")
