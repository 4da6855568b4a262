"""The command in a real terminal: it draws, answers, stops, and gives the shell its terminal back."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

ROOT = Path(__file__).parents[2]
COMMAND = shlex.join([sys.executable, "-m", "icarus_local", "chat", "--agents", "base"])
FAKE = """
import sys
sys.path.insert(0, {root!r})
from icarus_local.chat.events import AnswerStarted, TextDelta
from icarus_tui.app import run_tui
from tests.tui.fake import HOLD, FakeChat, FakeHost, done
def script(text, names):
    return [AnswerStarted("coder"), TextDelta("coder", "a first part \\x1b[2J"), HOLD, done("coder", "")]
class Crashing(FakeChat):
    def submit(self, request):
        if getattr(request, "text", "") == "crash":
            raise KeyError("a bug")
        return super().submit(request)
run_tui(FakeHost(Crashing(script, notices=["a notice"])))
"""


class Terminal:
    def __init__(self, name: str) -> None:
        self.name = name
        # readline, which pytest loads, puts LINES and COLUMNS into the environment of what is started here; they would
        # be taken for the terminal's size for ever.
        shell = "env -u LINES -u COLUMNS PS1='prompt> ' sh"
        self.tmux("-f", os.devnull, "new-session", "-d", "-x", "100", "-y", "30", shell)

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self.name, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def text(self) -> str:
        return self.tmux("capture-pane", "-p")

    def until(self, condition: Callable[[str], object], within: float = 20) -> float:
        start = time.monotonic()
        while not condition(text := self.text()):
            assert time.monotonic() - start < within, f"waited in vain; the terminal shows\n{text}"
            time.sleep(0.05)
        return time.monotonic() - start

    def children(self) -> list[int]:
        """The program in the terminal, and its child, and so on."""
        found: list[int] = []
        parent = self.tmux("display-message", "-p", "#{pane_pid}").strip()
        while child := subprocess.run(["pgrep", "-P", parent], capture_output=True, text=True, check=False).stdout:
            parent = child.split()[0]
            found.append(int(parent))
        return found

    def given_back(self) -> None:
        """The shell is there, on its own screen, with echo, cursor, and without mouse reports."""
        self.keys("echo exit $?; stty -a | grep -ow '[-]*echo'", "Enter")
        self.until(lambda text: "\necho\nprompt>" in text)
        assert self.tmux("display-message", "-p", "#{alternate_on}#{mouse_any_flag}#{cursor_flag}").strip() == "001"


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    # A server of its own: one that is ending may still answer to a name used again.
    terminal = Terminal(f"icarus-test-{uuid.uuid4().hex[:12]}")
    yield terminal
    terminal.tmux("kill-server")


@pytest.fixture
def fake(terminal: Terminal, tmp_path: Path) -> Terminal:
    """The screen over a chat whose answer goes on until it is stopped."""
    program = tmp_path / "program.py"
    program.write_text(FAKE.format(root=str(ROOT)))
    terminal.keys(shlex.join([sys.executable, str(program)]), "Enter")
    terminal.until(lambda text: "a notice" in text and "Send" in text)
    return terminal


def test_escape_stops_and_ctrl_q_gives_the_terminal_back(fake: Terminal) -> None:
    fake.keys("question", "Enter")
    fake.until(lambda text: "a first part" in text and "coder is answering" in text)
    assert "a notice" in fake.text()
    fake.keys("Escape")
    assert fake.until(lambda text: "coder stopped" in text) < 1.5
    fake.tmux("resize-window", "-x", "40", "-y", "10")
    fake.until(lambda text: "tok/s]" in text)
    fake.keys("C-q")
    fake.until(lambda text: text.rstrip().endswith("prompt>"))
    fake.given_back()
    assert "exit 0" in fake.text()


def test_ctrl_c_twice_while_answering_quits(fake: Terminal) -> None:
    fake.keys("question", "Enter")
    fake.until(lambda text: "a first part" in text)
    fake.keys("C-c")
    fake.until(lambda text: "Ctrl-C again quits" in text)
    fake.keys("C-c")
    fake.until(lambda text: text.rstrip().endswith("prompt>"), within=3)
    fake.given_back()


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
def test_a_signal_gives_the_terminal_back(fake: Terminal, name: str) -> None:
    shell = fake.tmux("display-message", "-p", "#{pane_pid}").strip()
    subprocess.run(["pkill", f"-{name}", "-P", shell], check=True)
    fake.until(lambda text: text.rstrip().endswith("prompt>"), within=5)
    fake.given_back()


def test_a_crash_gives_the_terminal_back_and_shows_the_trace(fake: Terminal) -> None:
    fake.keys("crash", "Enter")
    fake.until(lambda text: text.rstrip().endswith("prompt>"))
    assert "the screen failed. --plain works without it" in fake.text()
    fake.given_back()
    assert "exit 1" in fake.text()
    assert "KeyError: 'a bug'" in fake.tmux("capture-pane", "-p", "-S", "-400")


@pytest.mark.slow
def test_the_command_answers_stops_and_gives_the_terminal_back(terminal: Terminal) -> None:
    terminal.keys(COMMAND, "Enter")
    terminal.until(lambda text: "Ask all" in text, within=120)
    terminal.keys("What is the capital of France?", "Enter")
    terminal.until(lambda text: "[base: " in text and "generated" in text, within=120)
    assert "Paris" in terminal.text()
    terminal.keys("Tell me a very long story about a fox.", "Enter")
    terminal.until(lambda text: "base is answering" in text, within=60)
    time.sleep(0.5)
    terminal.keys("Escape")
    assert terminal.until(lambda text: "generated, stopped;" in text) < 1.5
    assert "base stopped" in terminal.text()
    terminal.keys("C-q")
    terminal.until(lambda text: text.rstrip().endswith("prompt>"))
    terminal.given_back()
    assert "exit 0" in terminal.text()


@pytest.mark.slow
def test_a_day_with_both_agents(terminal: Terminal, tmp_path: Path) -> None:
    """Typing, completing, pasting, answers at once, stopping in the prompt, resizing, and going on after kill -9."""
    both = shlex.join([sys.executable, "-m", "icarus_local", "chat", "--agents", "coder,reviewer"])
    home = f"ICARUS_HOME={shlex.quote(str(tmp_path / 'home'))}"
    long = tmp_path / "long.txt"
    long.write_text("The quick brown fox jumps over the lazy dog. " * 300)
    terminal.tmux("resize-window", "-x", "120", "-y", "40")
    terminal.keys(f"cd {shlex.quote(str(tmp_path))}; {home} {both}", "Enter")
    terminal.until(lambda text: "Ask all" in text, within=120)

    # What is typed is completed; a name says who answers.
    terminal.keys("@co")
    terminal.until(lambda text: "› @coder" in text)
    terminal.keys("Tab", "Write a function that counts vowels.", "Enter")
    terminal.until(lambda text: "[coder: " in text, within=60)
    assert "def " in terminal.text()

    # A paste is one message, whatever its lines.
    terminal.tmux("set-buffer", "-b", "p", "def f(x):\n    return x + 1\n\nIs this right?")
    terminal.tmux("paste-buffer", "-p", "-b", "p")
    terminal.until(lambda text: "Is this right?" in text)
    terminal.keys("Home", "C-a")
    terminal.keys("Enter")
    terminal.until(lambda text: text.count("[reviewer: ") == 1, within=60)
    terminal.until(lambda text: "you\n def f(x):\n     return x + 1" in text)

    # Both at once, each in a column of its own; in a narrow terminal they are tabs.
    terminal.keys("/all What is a list?", "Enter")
    terminal.until(lambda text: "│ reviewer" in text, within=60)
    terminal.until(lambda text: "/keep AGENT leaves" in text, within=120)
    terminal.tmux("resize-window", "-x", "70", "-y", "40")
    terminal.until(lambda text: "[coder]  reviewer" in text)
    terminal.tmux("resize-window", "-x", "40", "-y", "10")
    terminal.until(lambda text: len(text.rstrip("\n").split("\n")) <= 10 and "Ask all" in text)
    terminal.tmux("resize-window", "-x", "120", "-y", "40")
    terminal.until(lambda text: "│ reviewer" in text)
    terminal.keys("/keep coder", "Enter")
    terminal.until(lambda text: "reviewer not kept" in text)

    # Stopped while the prompt is read, the question is in the input again.
    terminal.keys("@coder What is in @long.txt?", "Enter")
    terminal.until(lambda text: "coder is reading" in text, within=60)
    terminal.keys("Escape")
    took = terminal.until(lambda text: "taken back" in text)
    assert took < 1.5
    terminal.until(lambda text: "@coder What is in @long.txt?" in text.rstrip().split("\n")[-2])
    terminal.keys("C-u")

    # Killed without warning, the conversation goes on where it was.
    program, engine = terminal.children()[:2]
    os.kill(program, signal.SIGKILL)
    terminal.until(lambda text: "Killed" in text)
    # Nobody is left who could give the terminal back.
    terminal.keys("C-j", "reset", "C-j")
    terminal.until(lambda text: text.rstrip().endswith("prompt>") and "Find" not in text)
    start = time.monotonic()
    while Path(f"/proc/{engine}").exists() and time.monotonic() - start < 20:
        time.sleep(0.05)  # it saves what there is
    terminal.keys(f"clear; {home} {both} --resume", "Enter")
    terminal.until(lambda text: "Ask all" in text, within=120)
    terminal.keys("PageUp", "PageUp")
    terminal.until(lambda text: "counts vowels" in text)
    terminal.keys("@reviewer And now?", "Enter")
    terminal.until(lambda text: "[reviewer: " in text.rpartition("And now?")[2], within=120)
    terminal.keys("C-q")
    terminal.until(lambda text: text.rstrip().endswith("prompt>"), within=60)
    terminal.given_back()


@pytest.mark.slow
def test_an_engine_that_dies_costs_an_answer_and_nothing_else(terminal: Terminal) -> None:
    """Killed while nobody asks anything, and in the middle of an answer."""

    def engine() -> int:
        program = terminal.children()
        assert len(program) == 2, "the program and its engine"
        return program[1]

    def killed() -> None:
        before = engine()
        os.kill(before, signal.SIGABRT)
        # Another one takes its place; what is asked before it has loaded waits for it.
        start = time.monotonic()
        while len(program := terminal.children()) < 2 or program[1] == before:
            assert time.monotonic() - start < 30
            time.sleep(0.05)

    def clean(text: str) -> bool:
        return not any(word in text for word in ("Traceback", "Fatal Python", "ggml", "llama_", "WARNING", 'File "'))

    terminal.tmux("resize-window", "-x", "100", "-y", "50")
    terminal.keys(COMMAND, "Enter")
    terminal.until(lambda text: "Ask all" in text, within=120)
    terminal.keys("What is the capital of France?", "Enter")
    terminal.until(lambda text: text.count("tok/s]") == 1, within=120)

    killed()
    assert clean(terminal.text())
    terminal.keys("And of Spain?", "Enter")
    terminal.until(lambda text: text.count("tok/s]") == 2, within=120)
    assert "started again; the conversation goes on" in terminal.text()
    assert "Paris" in terminal.text()
    assert clean(terminal.text())

    story = "Tell me a very long story about a fox."
    terminal.keys(story, "Enter")
    terminal.until(lambda text: "base is answering" in text, within=60)
    time.sleep(0.5)
    killed()
    terminal.until(lambda text: "the engine ended unexpectedly (SIGABRT). It was started again;" in text, within=60)
    terminal.until(lambda text: text.rstrip().split("\n")[-2].strip() == story)
    assert "you (taken back)" in terminal.text()
    assert "base stopped" in terminal.text()
    assert clean(terminal.text())
    terminal.keys("C-u", "And of Italy?", "Enter")
    terminal.until(lambda text: text.count("tok/s]") == 3, within=120)
    assert clean(terminal.text())

    terminal.keys("C-q")
    terminal.until(lambda text: text.rstrip().endswith("prompt>"))
    assert "Traceback" not in terminal.tmux("capture-pane", "-p", "-S", "-400")
    terminal.given_back()
    assert "exit 0" in terminal.text()
    assert terminal.children() == []
