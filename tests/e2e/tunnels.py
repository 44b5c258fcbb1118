"""TCP connections that lead on to a server of this machine, and that a test can silence."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from tests.e2e.controlplane import HOST


class Tunnels(socketserver.ThreadingTCPServer):
    """Leads each connection to the port that `target` returns for it; use it as a context manager."""

    daemon_threads = allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, target: Callable[[], int]) -> None:
        self.target = target
        self.silent = threading.Event()
        super().__init__((HOST, 0), _Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def silence(self) -> None:
        """Open connections stay open without a further answer; later ones work."""
        self.silent.set()
        self.silent = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(socketserver.BaseRequestHandler):
    server: Tunnels

    def handle(self) -> None:
        silent = self.server.silent
        with suppress(OSError), socket.create_connection((HOST, self.server.target())) as there:
            tunnel(self.request, there, silent)


def tunnel(here: socket.socket, there: socket.socket, silent: threading.Event | None = None) -> None:
    """Copy both ways until both ends close; drop the answers once `silent` is set."""
    silent = silent or threading.Event()
    back = threading.Thread(target=_copy, args=(there, here, silent), daemon=True)
    back.start()
    _copy(here, there, threading.Event())
    back.join()


def _copy(source: socket.socket, target: socket.socket, silent: threading.Event) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            if not silent.is_set():
                target.sendall(data)
    with suppress(OSError):
        if not silent.is_set():
            target.shutdown(socket.SHUT_WR)
