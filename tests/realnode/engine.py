"""A stand-in for a model server with an engine: the endpoints that liveness by progress asks, and a hang.

It is run as `python3 -c <this text>`, with the standard library only.

KEY     the API key that every path below /v1 asks for
HANG    seconds from the start until no request for tokens is answered any more; never without it
SILENT  seconds until nothing is answered any more, though the port is open; never without it
BURN    processes that compute next to it, from 10 s after the start
"""

import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

START = time.monotonic()
KEY = os.environ.get("KEY", "")
TOKENS = count(1)
"""Each answered request for tokens gives one."""


def over(name: str) -> bool:
    value = os.environ.get(name)
    return value is not None and time.monotonic() - START >= float(value)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        known = not self.path.startswith("/v1") or self.headers.get("Authorization") == f"Bearer {KEY}"
        if over("SILENT") or (body and known and over("HANG")):
            time.sleep(600)
        print(self.command, self.path, "known" if known else "unknown", flush=True)
        page = json.dumps({"data": [{"id": "toy"}]}).encode()
        if body and known:
            self.server.tokens = next(TOKENS)  # type: ignore[attr-defined]
        if self.path == "/metrics":
            page = b'vllm:generation_tokens_total{model_name="toy"} %d\n' % getattr(self.server, "tokens", 0)
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


def burn() -> None:
    for _ in range(int(os.environ.get("BURN", "0"))):
        subprocess.Popen([sys.executable, "-c", "while True: pass"])


threading.Timer(10, burn).start()
ThreadingHTTPServer(("", 8000), Handler).serve_forever()
