"""A model hub of one repository, which sends the weights slowly, or stops in the middle of them.

`hub.py PORT FOLDER BYTES_A_SECOND STOPS_AFTER`: the files of FOLDER are those of the repository `toy/model`,
with weights of 4 GB instead of its own.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

WEIGHTS: Final = "model.safetensors"
SIZE: Final = 4 << 30
COMMIT: Final = "c0ffee" * 6 + "c0ff"
PIECE: Final = 1 << 14


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    rate: float
    stops_after: float

    def do_HEAD(self) -> None:
        self._file(body=False)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        names = sorted(file.name for file in self.folder.iterdir() if file.is_file())
        if "/tree/" in path:
            oids = [{"type": "file", "path": name, "size": self._size(name), "oid": name} for name in names]
            self._send(json.dumps(oids).encode())
        elif path.startswith("/api/models/"):
            siblings = [{"rfilename": name} for name in names]
            self._send(json.dumps({"id": "toy/model", "sha": COMMIT, "siblings": siblings}).encode())
        else:
            self._file(body=True)

    def _size(self, name: str) -> int:
        return SIZE if name == WEIGHTS else (self.folder / name).stat().st_size

    def _file(self, *, body: bool) -> None:
        name = self.path.partition("?")[0].rpartition("/")[2]
        file = self.folder / name
        if not file.is_file():
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = int(self.headers.get("Range", "bytes=0-")[6:].partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{name}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(self._size(name) - start))
        self.end_headers()
        if body and name == WEIGHTS:
            self._trickle()
        elif body:
            self.wfile.write(file.read_bytes()[start:])

    def _trickle(self) -> None:
        sent = 0.0
        while sent < self.stops_after:
            self.wfile.write(bytes(PIECE))
            self.wfile.flush()
            sent += PIECE
            time.sleep(PIECE / self.rate)
        threading.Event().wait()

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    Hub.folder, Hub.rate, Hub.stops_after = Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Hub).serve_forever()
