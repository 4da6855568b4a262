"""llama.cpp's own server as a system: a slot for each agent, adapters by request, all by HTTP from this process."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from pydantic import BaseModel, ValidationError

from icarus_local.bench.llama_system import checked_cells
from icarus_local.bench.machine import peak_rss_bytes
from icarus_local.bench.process import last_words
from icarus_local.bench.script import Request
from icarus_local.bench.system import N_WARM_UP, TurnTime, common_length
from icarus_local.errors import EngineDiedError, IcarusError

_N_UBATCH = 512  # rows, as of every other system
_LOADS_S = 600.0  # the longest that loading may take
_ENDS_S = 10.0
_POLL_S = 0.05
_HEALTH_S = 5.0
_LIBRARIES = ("*.so*", "*.dylib", "*.dll")
_running: list[subprocess.Popen[bytes]] = []


class _Timings(BaseModel):
    """Times of an answer: tokens of the prompt that were encoded, milliseconds from the first token to the last."""

    prompt_n: int
    predicted_ms: float


class _Completion(BaseModel):
    """What is read of an answer of `/completion`."""

    tokens: list[int]
    timings: _Timings


def server_version(program: Path) -> str:
    """What tells one build of llama-server from another: what it says of itself, and a hash (hex) of all that computes.

    That is its file and the libraries beside it: the program of a build with shared ones only calls them.

    Raises:
        IcarusError: it cannot be run, or is something else.
    """
    try:
        said = subprocess.run(
            [program, "--version"], capture_output=True, timeout=_LOADS_S, check=False, env=_environment()
        )
        digest = _sha256(program.resolve())
    except (OSError, subprocess.TimeoutExpired) as error:
        raise IcarusError(
            f"{program} cannot be run: {error}", "Give --llama-server the path of llama-server"
        ) from error
    lines = (said.stdout + said.stderr).decode("utf-8", "replace").splitlines()
    version = next((line.strip() for line in lines if line.startswith("version:")), None)
    if said.returncode != 0 or version is None:
        raise IcarusError(f"{program} does not say its version, as llama-server does", "Give another --llama-server")
    return f"{version.removeprefix('version:').strip()}, {digest[:16]}"


def _sha256(program: Path) -> str:
    libraries = {file.resolve() for pattern in _LIBRARIES for file in program.parent.glob(pattern)}
    digest = hashlib.sha256()
    for file in (program, *sorted(libraries)):
        with file.open("rb") as content:
            digest.update(f"{file.name} {hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def _environment() -> dict[str, str]:
    """Without the variables from which llama.cpp takes options that a command line leaves open."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}


def end_servers() -> None:
    """Kills all servers that this process started: they would outlive it."""
    for process in _running:
        process.kill()


class LlamaServer:
    """A server with one slot for each agent, whose cache is a part of its own of the server's.

    An agent's requests name its slot and its adapter, so that the server keeps the agent's K and V and encodes what is
    new. It cannot be made to say given ids: what it says stands in later prompts instead of what was to be said, as
    many tokens of it. The cache that it would keep in RAM beside its slots is off: with a slot for each agent nothing
    is ever evicted.
    """

    def __init__(
        self,
        program: Path,
        base: Path,
        adapters: Sequence[Path],
        n_ctx: int,
        *,
        kv_type: str,
        n_threads: int,
        kv_bytes_per_token: int,
    ) -> None:
        """Starts it and waits until it has loaded.

        Args:
            n_ctx: cells of each slot. kv_bytes_per_token: K and V of a token over all layers.

        Raises:
            IcarusError: it does not start, or the caches have no room in what memory is free.
        """
        n_slots = len(adapters)
        self._cells = checked_cells(n_slots, n_ctx, kv_bytes_per_token)
        self._kv_bytes_per_token = kv_bytes_per_token
        # What each slot's cache holds, and held at the mark.
        self._held: list[list[int]] = [[] for _ in adapters]
        self._marked, self._most_used = list(self._held), 0
        # By its place in the conversation: what was to be said, and what was.
        self._said: dict[int, tuple[list[int], list[int]]] = {}
        self._port = _free_port()
        arguments = {
            "--model": base,
            "--lora": ",".join(map(str, adapters)),
            "--ctx-size": self._cells,
            "--parallel": n_slots,
            "--cache-type-k": kv_type,
            "--cache-type-v": kv_type,
            "--threads": n_threads,
            "--threads-batch": n_threads,
            "--batch-size": _N_UBATCH,
            "--ubatch-size": _N_UBATCH,
            "--flash-attn": "on",
            "--device": "none",
            "--cache-ram": 0,
            "--host": "127.0.0.1",
            "--port": self._port,
        }
        # All cells of a layer with a window are kept, as every other system does.
        flags = ["--no-kv-unified", "--swa-full", "--lora-init-without-apply", "--offline", "--no-webui"]
        with ExitStack() as stack:
            # A file, not a pipe: one that is full while nobody reads would stop the process.
            self._log = stack.enter_context(TemporaryFile())
            command = [str(program), *(str(part) for pair in arguments.items() for part in pair), *flags]
            # The server goes first, so that no request is waited for.
            self._threads = stack.enter_context(ThreadPoolExecutor(n_slots))
            self._process = stack.enter_context(_started(command, self._log))
            self._wait()
            self._stack = stack.pop_all()

    def _wait(self) -> None:
        """Until it answers.

        Raises:
            IcarusError: it has ended, or takes too long.
        """
        until = time.monotonic() + _LOADS_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise self._died()
            try:
                status, _ = self._ask("GET", "/health", timeout=_HEALTH_S)
            except (OSError, HTTPException):  # it does not listen yet
                status = 0
            if status == 200:
                return
            time.sleep(_POLL_S)
        raise IcarusError(f"llama-server has not loaded within {_LOADS_S:.0f} s: {last_words(self._log)}")

    def _died(self) -> EngineDiedError:
        status, said = self._process.wait(), last_words(self._log)
        return EngineDiedError(f"llama-server ended with status {status}: {said or 'it said nothing'}")

    def begin(self) -> None:
        """Touches the weights and the shapes of a step in each slot."""
        for agent in range(len(self._held)):
            self._complete(Request(agent, [0] * N_WARM_UP, [0, 0]))
        self._held = [[] for _ in self._held]
        self._marked, self._most_used = list(self._held), 0
        self._said.clear()

    def turn(self, requests: Sequence[Request]) -> list[TurnTime]:
        """Asks for all answers at the same moment."""
        prompts = [self._as_said(request.prompt) for request in requests]
        asked = time.perf_counter()

        def answer(request: Request, prompt: list[int]) -> tuple[float, _Completion]:
            found = self._complete(Request(request.agent, prompt, request.answer))
            return time.perf_counter() - asked, found

        answers = list(self._threads.map(answer, requests, prompts))
        busy_s = max(latency for latency, _ in answers) / len(requests)
        times = []
        for request, prompt, (latency, found) in zip(requests, prompts, answers, strict=True):
            n_answer = len(request.answer)
            if len(found.tokens) != n_answer:
                raise IcarusError(f"llama-server said {len(found.tokens)} of {n_answer} tokens")
            # The last token is not in its cache yet.
            self._held[request.agent] = prompt + found.tokens[:-1]
            first = latency - found.timings.predicted_ms / 1e3
            times.append(TurnTime(request.agent, latency, first, busy_s, found.timings.prompt_n, n_answer))
        self._most_used = max(self._most_used, sum(map(len, self._held)))
        self._remember(requests, [found.tokens for _, found in answers])
        return times

    def _remember(self, requests: Sequence[Request], said: Sequence[list[int]]) -> None:
        """Where these answers will stand: one after another, each behind its own part of its prompt."""
        shared = min((common_length(requests[0].prompt, other.prompt) for other in requests[1:]), default=0)
        end = shared
        for request, tokens in zip(requests, said, strict=True):
            start = end + len(request.prompt) - shared
            self._said[start] = request.answer, tokens
            end = start + len(tokens)

    def _as_said(self, prompt: list[int]) -> list[int]:
        """The prompt, with the server's own words where it was to say others."""
        ids = list(prompt)
        for start, (forced, said) in self._said.items():
            end = start + len(forced)
            if prompt[start:end] == forced:
                ids[start:end] = said
        return ids

    def _complete(self, request: Request) -> _Completion:
        body = {
            "prompt": request.prompt,
            "n_predict": len(request.answer),
            "id_slot": request.agent,
            "lora": [{"id": request.agent, "scale": 1.0}],
            "cache_prompt": True,
            "ignore_eos": True,
            "return_tokens": True,
            "samplers": ["top_k"],
            "top_k": 1,
        }
        try:
            status, answer = self._ask("POST", "/completion", json.dumps(body))
        except (OSError, HTTPException) as error:
            # Its connections are closed a little before it has ended.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
                raise self._died() from error
            raise IcarusError(f"llama-server does not answer: {error}") from error
        if status != 200:
            raise IcarusError(f"llama-server refuses a request with status {status}: {answer.decode()[:400]}")
        try:
            return _Completion.model_validate_json(answer)
        except ValidationError as error:
            raise IcarusError(f"llama-server answers in another form: {error}", "Give a newer one") from error

    def _ask(self, method: str, path: str, body: str | None = None, timeout: float | None = None) -> tuple[int, bytes]:
        # One for each request: the server closes those that rest.
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=timeout)) as connection:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def mark(self) -> None:
        """Remembers what each slot holds."""
        self._marked = list(self._held)

    def rewind(self) -> None:
        """Has each slot encode what it held at the mark, of which all but the last token is there."""
        for agent, tokens in enumerate(self._marked):
            if tokens:
                self._complete(Request(agent, tokens, []))
        self._held = list(self._marked)

    @property
    def kv_bytes(self) -> int:
        """Bytes of all slots' caches."""
        return self._cells * self._kv_bytes_per_token

    @property
    def kv_used_bytes(self) -> int:
        """Bytes of the cells in use at the fullest moment."""
        return self._most_used * self._kv_bytes_per_token

    @property
    def rss_bytes(self) -> int | None:
        """The server's; this process is no part of it."""
        return peak_rss_bytes(self._process.pid)

    def close(self) -> None:
        """Ends the server; may be called twice."""
        self._stack.close()


@contextmanager
def _started(command: list[str], log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment())
    except OSError as error:
        raise IcarusError(f"{command[0]} cannot be run: {error.strerror}") from error
    _running.append(process)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _running.remove(process)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
