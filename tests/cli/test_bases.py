"""Where a base comes from: a path, the embedded one, or a stand-in for the Hub that speaks its HTTP on loopback."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from icarus_local.cli.bases import find_base
from icarus_local.errors import IcarusError
from tests.tiny import Tiny

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Answers HEAD and GET of /owner/name/resolve/main/tiny.gguf as the Hub does."""

    data = b""

    def _answer(self, body: bool) -> None:
        if self.path != "/owner/name/resolve/main/tiny.gguf":
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(self.data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(self.data)))
        self.end_headers()
        if body:
            self.wfile.write(self.data)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def hub(tiny: Tiny) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("TinyHub", (Hub,), {"data": tiny.path.read_bytes()}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def doctor(base: str, endpoint: str, home: Path) -> subprocess.CompletedProcess[str]:
    # huggingface-hub reads its endpoint once, at import: hence a process of its own.
    return subprocess.run(
        [sys.executable, "-m", "icarus_local", "doctor", "--base", base],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"},
    )


def test_a_base_is_fetched_from_the_hub_once(hub: str, tmp_path: Path, tiny: Tiny) -> None:
    result = doctor("owner/name/tiny.gguf", hub, tmp_path)
    assert result.returncode == 0, result.stderr
    assert "equal libllama's bit for bit" in result.stdout
    (fetched,) = (file for file in tmp_path.rglob("tiny.gguf") if "snapshots" in file.parts)
    assert fetched.read_bytes() == tiny.path.read_bytes()
    # Without a connection the cached file serves.
    result = doctor("owner/name/tiny.gguf", "http://127.0.0.1:9", tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["owner/name/other.gguf", "nobody/nothing/tiny.gguf"])
def test_what_the_hub_does_not_have_is_one_line(hub: str, tmp_path: Path, name: str) -> None:
    result = doctor(name, hub, tmp_path)
    assert result.returncode == 1
    assert "cannot be fetched from the Hub" in result.stderr
    assert "Traceback" not in result.stderr


def test_paths_and_the_embedded_base(tiny: Tiny, smollm2: Path) -> None:
    assert find_base(str(tiny.path)) == tiny.path
    assert find_base(None) == smollm2
    with pytest.raises(IcarusError, match=r"no file nothing\.gguf"):
        find_base("nothing.gguf")
