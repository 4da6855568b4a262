"""A program that takes llama-server's options and answers its requests over HTTP, with words of its own.

As the server does, it keeps what each slot holds, evaluates at least one token, and forgets a slot whose adapter
changes. It writes each request as a line of JSON into the file that the environment names.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

slots: dict[int, tuple[int, list[int]]] = {}


def complete(request: dict) -> dict:
    prompt, n, adapter = request["prompt"], request["n_predict"], request["lora"][0]["id"]
    known, held = slots.get(request["id_slot"], (adapter, []))
    common = 0
    if known == adapter:
        while common < min(len(held), len(prompt) - 1) and held[common] == prompt[common]:
            common += 1
    said = [(prompt[-1] + adapter + i) % 7 for i in range(n)]
    slots[request["id_slot"]] = adapter, prompt + said[:-1]
    time.sleep(0.002)
    return {"tokens": said, "timings": {"prompt_n": len(prompt) - common, "predicted_ms": 1.0}}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(200, {"status": "ok"})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(os.environ["SERVER_LOG"], "a", encoding="utf-8") as log:
            log.write(json.dumps({"path": self.path, **request}) + "\n")
        mode = os.environ.get("SERVER_MODE", "")
        if mode == "dies":
            sys.stderr.write("out of memory\n")
            sys.stderr.flush()
            os._exit(3)
        if mode == "refuses":
            self.answer(400, {"error": "no such slot"})
        elif mode == "old":
            self.answer(200, {"content": "text"})
        else:
            self.answer(200, complete(request))

    def answer(self, status: int, content: dict) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    if "--version" in sys.argv:
        print("version: 1.2.3 (stand-in)", file=sys.stderr)
        return
    if os.environ.get("SERVER_MODE") == "unable":
        sys.exit("error: unknown argument")
    given = [name for name in os.environ if name.startswith("LLAMA_")]
    options = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    with open(os.environ["SERVER_LOG"], "a", encoding="utf-8") as log:
        log.write(json.dumps({"path": "", "pid": os.getpid(), "options": options, "environment": given}) + "\n")
    ThreadingHTTPServer((options["--host"], int(options["--port"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
