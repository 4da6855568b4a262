"""Measures the screen in a terminal: how soon a key is answered while four columns stream, and what that takes.

    python tests/perf_tui.py [--turns 200] [--rate 200] [--seconds 20] [--json]

A scripted chat takes the engine's place, so that what is measured is the screen. A key counts as answered when the
terminal has been sent the character; every key is another one, which no agent says.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import signal
import statistics
import struct
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
AGENTS = ("coder", "reviewer", "math", "tools")
SIZE = (160, 48)
FIRST_KEY = 0x4E00  # CJK: thousands of characters, all of one width, none of which is in the script

ANSWER = """\
Here is **one** way, with `f` as before:

1. read the rows,
2. sum them.

```python
def total(rows):
    result = 0
    for row in rows:
        result += sum(int(value) for value in row.split(","))
    return result
```

| step | cost |
|---|---|
| read | O(n) |
"""


# -- the program in the terminal ---------------------------------------------------------------------------------------


def show(n_turns: int, rate: float) -> None:
    """The screen after `n_turns` questions; `go` streams in all columns until it is stopped."""
    sys.path.insert(0, str(ROOT))
    from icarus_local.chat.events import AnswerStarted, Said, TextDelta
    from icarus_tui.app import run_tui
    from tests.tui.fake import FakeChat, FakeHost

    def script(_text: str, names: Sequence[str]) -> Iterator[object]:
        yield from (AnswerStarted(name) for name in names)
        words = [f"{word} " for word in ANSWER.split(" ")]
        start, n = time.monotonic(), 0
        while True:
            for name in names:
                yield TextDelta(name, words[n % len(words)])
            n += 1
            # Not by sleeping so long each time, which would add up.
            yield max(start + n / rate - time.monotonic(), 0.0)

    before = []
    for n in range(n_turns):
        before.append(Said("you", f"question {n}", answer=False))
        before.append(Said(AGENTS[n % len(AGENTS)], ANSWER * 2, answer=True))
    run_tui(FakeHost(FakeChat(script, agents=AGENTS, before=before, notices=["ready"])))


# -- what watches it ---------------------------------------------------------------------------------------------------


class Terminal:
    """A pseudo-terminal with the program in it."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.environ.pop("LINES", None)
            os.environ.pop("COLUMNS", None)
            os.execv(sys.executable, [sys.executable, __file__, *arguments])
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
        self._seen: dict[str, float] = {}
        self._wanted = ""
        self._found = threading.Event()
        self.n_bytes = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        tail = b""
        while True:
            try:
                chunk = os.read(self._fd, 1 << 16)
            except OSError:
                return
            self.n_bytes += len(chunk)
            if self._wanted and self._wanted.encode() in tail + chunk:
                self._seen[self._wanted] = time.perf_counter()
                self._wanted = ""
                self._found.set()
            tail = chunk[-64:]

    def send(self, text: str) -> None:
        """Types."""
        os.write(self._fd, text.encode())

    def until(self, text: str, send: str = "", within: float = 60.0) -> float:
        """Seconds from typing `send` until the terminal was sent `text`."""
        self._found.clear()
        self._wanted = text
        start = time.perf_counter()
        if send:
            self.send(send)
        if not self._found.wait(within):
            raise SystemExit(f"waited {within:.0f} s in vain for {text!r}")
        return self._seen[text] - start

    def cpu_s(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """Memory in use."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))

    def close(self) -> None:
        """Ends it."""
        os.kill(self.pid, signal.SIGTERM)
        select.select([], [], [], 0.5)
        os.waitpid(self.pid, 0)


def measure(n_turns: int, rate: float, seconds: float) -> dict[str, float]:
    """Figures of one run."""
    terminal = Terminal(["--show", "--turns", str(n_turns), "--rate", str(rate)])
    start_s = terminal.until("ready")
    time.sleep(3)
    figures: dict[str, float] = {"turns": n_turns, "rate": rate, "start_s": start_s, "rss_mib": terminal.rss_mib()}

    before, start = terminal.cpu_s(), time.monotonic()
    time.sleep(seconds)
    figures["idle_cpu_percent"] = 100 * (terminal.cpu_s() - before) / (time.monotonic() - start)

    terminal.send("/all go\r")
    time.sleep(2)
    before, start, n_bytes = terminal.cpu_s(), time.monotonic(), terminal.n_bytes
    times = []
    while time.monotonic() - start < seconds:
        character = chr(FIRST_KEY + len(times))
        times.append(terminal.until(character, character, within=10))
        time.sleep(0.06)
    elapsed = time.monotonic() - start
    figures |= {
        "keys": len(times),
        "key_p50_ms": 1e3 * statistics.median(times),
        "key_p95_ms": 1e3 * statistics.quantiles(times, n=20)[-1],
        "key_max_ms": 1e3 * max(times),
        "streaming_cpu_percent": 100 * (terminal.cpu_s() - before) / elapsed,
        "kib_per_s": (terminal.n_bytes - n_bytes) / 1024 / elapsed,
    }
    # Back through the whole conversation, and down again.
    terminal.send("\x1b")
    time.sleep(1)
    pages = n_turns * 2
    for key in ("\x1b[5~", "\x1b[6~"):
        for _ in range(pages):
            terminal.send(key)
            time.sleep(0.005)
    time.sleep(1)
    figures["rss_scrolled_mib"] = terminal.rss_mib()
    terminal.close()
    return figures


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--rate", type=float, default=200.0, help="tokens per second in each column")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--show", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.show:
        show(arguments.turns, arguments.rate)
        return
    figures = measure(arguments.turns, arguments.rate, arguments.seconds)
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:<24}{value:>10.1f}")


if __name__ == "__main__":
    main()
