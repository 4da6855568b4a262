"""A stand-in for the Hugging Face Hub: serves repositories from a folder over its HTTP interface, on loopback.

`ROOT/OWNER/NAME/REVISION/FILE` is a file of a revision. Like the Hub it redirects .gguf files to another host
("localhost" for "127.0.0.1") and announces Xet, which it does not speak.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

_API = re.compile(r"/api/(?:models|datasets)/(?P<repo>[^/]+/[^/]+)(?:/revision/(?P<revision>.+))?")
_LISTING = re.compile(r"/api/datasets/(?P<repo>[^/]+/[^/]+)/(?P<of>tree|paths-info)/(?P<revision>[^/]+)/?(?P<file>.*)")
_RESOLVE = re.compile(r"(?:/datasets)?/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
_CDN = re.compile(r"/cdn/(?P<file>.+)")
_PIECE = 1 << 16


@dataclass(frozen=True)
class Asked:
    """One request, as it arrived."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class HubServer:
    """What the stand-in serves, how it misbehaves, and what it was asked.

    Attributes:
        root: folder of the repositories.
        url: its endpoint.
        cut_after: bytes after which a transfer breaks off; None for never.
        cuts: how many transfers break off before they are let through.
        reset: they break off with a TCP reset, not by an end of the stream.
        down: HTTP status that every transfer is refused with; 0 for none.
        delay: seconds before each 64 KiB.
        ranges: Range headers are heeded.
        damaged: the last byte of every transfer is wrong.
        claimed: size in X-Linked-Size instead of the file's.
        token: every repository wants it; "" for none.
        gated: repositories that answer as gated ones do to those without access.
        asked: requests, in order.
    """

    root: Path
    url: str = ""
    cut_after: int | None = None
    cuts: int = 0
    reset: bool = False
    down: int = 0
    delay: float = 0.0
    ranges: bool = True
    damaged: bool = False
    claimed: int | None = None
    token: str = ""
    gated: frozenset[str] = frozenset()
    asked: list[Asked] = field(default_factory=list)

    def add(self, name: str, data: bytes, revision: str = "main") -> str:
        """Puts `OWNER/NAME/FILE` into a revision; gives the revision's commit."""
        owner, repo, file = name.split("/", 2)
        path = self.root / owner / repo / revision / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return self.commit(self.root / owner / repo / revision)

    def commit(self, folder: Path) -> str:
        """Of a revision's folder: by its content, as git does."""
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        lines = [f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files]
        return hashlib.sha1("\n".join([str(folder), *lines]).encode()).hexdigest()

    def revision(self, repo: str, name: str) -> Path | None:
        """The folder of a branch, a tag or a commit."""
        folders = [path for path in (self.root / repo).iterdir() if path.is_dir()]
        return next((path for path in folders if name in (path.name, self.commit(path))), None)

    def transfers(self) -> list[Asked]:
        """The GET requests for content."""
        return [asked for asked in self.asked if asked.method == "GET" and asked.path.startswith("/cdn/")]


@contextmanager
def serving(root: Path) -> Iterator[HubServer]:
    """A stand-in that serves `root`."""
    hub = HubServer(root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubHandler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield hub
    server.shutdown()
    server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, *arguments: object) -> None:
        pass

    def _serve(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(Asked(self.command, path, self.headers["Range"], self.headers["Authorization"]))
        if match := _CDN.fullmatch(path):
            self._content(self.hub.root / match["file"])
        elif match := _LISTING.fullmatch(path):
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"] or 0)).decode())
            if (folder := self._folder(match["repo"], match["revision"])) is not None:
                inside = (folder / match["file"]).rglob("*")
                self._listing(folder, sorted(inside) if match["of"] == "tree" else [folder / n for n in form["paths"]])
        elif match := _API.fullmatch(path):
            if (folder := self._folder(match["repo"], match["revision"] or "main")) is not None:
                self._info(match["repo"], folder)
        elif match := _RESOLVE.fullmatch(path):
            if (folder := self._folder(match["repo"], match["revision"])) is not None:
                self._resolve(folder, match["file"])
        else:
            self._answer(404)

    def _folder(self, repo: str, revision: str) -> Path | None:
        """A revision's folder; None after an answer that says why there is none."""
        authorized = self.headers["Authorization"] == f"Bearer {self.hub.token}"
        if repo in self.hub.gated and not authorized:
            self._answer(401, {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to {repo} is restricted."})
        elif self.hub.token and self.headers["Authorization"] and not authorized:
            self._answer(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif not (self.hub.root / repo).is_dir() or (self.hub.token and not authorized):
            # The Hub tells strangers nothing about what is private.
            self._answer(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif (folder := self.hub.revision(repo, revision)) is None:
            self._answer(404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": f"No revision {revision}"})
        else:
            return folder
        return None

    def _info(self, repo: str, folder: Path) -> None:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        siblings = [{"rfilename": p.relative_to(folder).as_posix(), "size": p.stat().st_size} for p in files]
        body = {"id": repo, "modelId": repo, "sha": self.hub.commit(folder), "siblings": siblings, "private": False}
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def _listing(self, folder: Path, paths: list[Path]) -> None:
        rows = [
            {
                "type": "directory" if path.is_dir() else "file",
                "path": path.relative_to(folder).as_posix(),
                "size": path.stat().st_size,
                "oid": hashlib.sha1(path.read_bytes() if path.is_file() else b"").hexdigest(),
            }
            for path in paths
            if path.exists()
        ]
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(rows).encode())

    def _resolve(self, folder: Path, name: str) -> None:
        path, commit = folder / name, self.hub.commit(folder)
        if not path.is_file():
            self._answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        data = path.read_bytes()
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if path.suffix != ".gguf":
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            self._answer(200, {**headers, "ETag": f'"{blob}"'}, data)
            return
        digest = hashlib.sha256(data).hexdigest()
        other_host = self.hub.url.replace("127.0.0.1", "localhost")
        self._answer(
            302,
            {
                **headers,
                "ETag": f'"{digest[:32]}"',
                "X-Linked-Etag": f'"{digest}"',
                "X-Linked-Size": str(len(data) if self.hub.claimed is None else self.hub.claimed),
                "X-Xet-Hash": digest,
                "Link": f'<{self.hub.url}/xet-auth>; rel="xet-auth"',
                "Location": f"{other_host}/cdn/{path.relative_to(self.hub.root).as_posix()}",
            },
        )

    def _content(self, path: Path) -> None:
        if self.hub.down:
            self._answer(self.hub.down)
            return
        data = path.read_bytes()
        if self.hub.damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        start = int(wanted[1]) if wanted and self.hub.ranges else 0
        headers = {"Accept-Ranges": "bytes", "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        if wanted and self.hub.ranges:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._answer(206 if start else 200, headers, data[start:], transfer=True)

    def _answer(
        self, status: int, headers: dict[str, str] | None = None, body: bytes = b"", transfer: bool = False
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            self._send(body, transfer)
        except OSError:
            # The other side was stopped.
            self.close_connection = True

    def _send(self, body: bytes, transfer: bool) -> None:
        limit = len(body)
        if transfer and self.hub.cut_after is not None and self.hub.cuts > 0:
            self.hub.cuts -= 1
            limit = min(limit, self.hub.cut_after)
        for start in range(0, limit, _PIECE):
            if transfer:
                time.sleep(self.hub.delay)
            self.wfile.write(body[start : min(start + _PIECE, limit)])
        if limit < len(body):
            self.close_connection = True
            if self.hub.reset:
                # Time for the other side to take what was sent: a reset drops what it has not read.
                time.sleep(0.5)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Past the server, which would end the stream in order first.
                os.close(self.connection.detach())
