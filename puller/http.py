"""The sidecar's own HTTP port: /healthz, /readyz, /v1/models, /metrics.

Written without a web framework: its import would take longer than all other imports of the sidecar. HTTP/1.1,
GET without a body, four paths; the clients are kubelet and a scraper.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import orjson

from puller.log import logger
from puller.plan import State
from puller.reconcile import Reconciler

_HEAD = 16 << 10
"""Bytes of a request with its headers."""
_IDLE_TIMEOUT = 75.0
"""Seconds for a request on a connection."""
_MAX_CONNECTIONS = 128
"""Connections at a time. A further one closes the oldest, so idle clients cannot lock kubelet out."""
_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes
    content_type: str = _TEXT

    def encoded(self, *, close: bool, head_only: bool) -> bytes:
        """The bytes to send. `close`: the connection ends with this response."""
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            f"Connection: {'close' if close else 'keep-alive'}",
        ]
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        return head if head_only else head + self.body


@dataclass
class Port:
    """The server. All responses come from memory."""

    reconciler: Reconciler
    server: asyncio.Server | None = None
    _connections: dict[asyncio.StreamWriter, None] = field(default_factory=dict)

    @property
    def address(self) -> tuple[str, int]:
        assert self.server is not None
        host, port = self.server.sockets[0].getsockname()[:2]
        return host, port

    async def close(self) -> None:
        if self.server is not None:
            self.server.close()
            for writer in list(self._connections):
                writer.close()
            await self.server.wait_closed()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.close()
        self._connections[writer] = None
        try:
            close = False
            while not close:
                async with asyncio.timeout(_IDLE_TIMEOUT):
                    head = await reader.readuntil(b"\r\n\r\n")
                    response, close, head_only = self._request(head)
                    writer.write(response.encoded(close=close, head_only=head_only))
                    await writer.drain()
        except asyncio.LimitOverrunError:
            writer.write(Response(400, b"too long\n").encoded(close=True, head_only=False))
        except (asyncio.IncompleteReadError, OSError):  # TimeoutError is one of these
            pass
        finally:
            self._connections.pop(writer, None)
            writer.close()

    def _request(self, head: bytes) -> tuple[Response, bool, bool]:
        """(the response, whether to close the connection, whether to send only the head)."""
        lines = head.decode("latin-1").split("\r\n")
        parts = lines[0].split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return Response(400, b"not HTTP/1.1\n"), True, False
        method, target, version = parts
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        connection = headers.get("connection", "").lower()
        close = "close" in connection if version == "HTTP/1.1" else "keep-alive" not in connection
        if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
            return Response(400, b"a body is not allowed\n"), True, False
        if method not in ("GET", "HEAD"):
            return Response(405, b"only GET\n"), close, False
        path, _, query = target.partition("?")
        return self._get(path, query), close, method == "HEAD"

    def _get(self, path: str, query: str) -> Response:
        try:
            match path:
                case "/healthz":
                    return _check(self.reconciler.status.healthy())
                case "/readyz":
                    return _check(self.reconciler.status.ready(self.reconciler.models))
                case "/v1/models":
                    document = self.reconciler.status.document(
                        self.reconciler.models, self.reconciler.actions.fetches
                    )
                    return Response(200, orjson.dumps(_filtered(document, query)), "application/json")
                case "/metrics":
                    metrics = self.reconciler.status.metrics
                    metrics.disk = self.reconciler.actions.storage.budget.used
                    return Response(200, *metrics.render())
        except Exception:
            logger.exception("request failed unexpectedly", path=path)
            return Response(500, b"a bug; see the log\n")
        return Response(404, b"there are /healthz, /readyz, /v1/models and /metrics\n")


def _filtered(document: dict[str, Any], query: str) -> dict[str, Any]:
    """The document with the models for a query such as `loaded=false&limit=20`. With `loaded=false`, failed
    models come first."""
    parameters = parse_qs(query)
    models = document["models"]
    if parameters.get("loaded") == ["false"]:
        models = [entry for entry in models if entry["state"] != State.LOADED.value]
        models.sort(key=lambda entry: (entry["state"] != State.FAILED.value, entry["name"]))
    limit = parameters.get("limit", [""])[0]
    if limit.isascii() and limit.isdigit():
        models = models[: int(limit[:9])]
    return {**document, "models": models}


def _check(result: tuple[bool, str]) -> Response:
    passed, message = result
    return Response(200 if passed else 503, f"{message}\n".encode(errors="replace"))


async def listen(reconciler: Reconciler, host: str, port: int) -> Port:
    """A running server, on all IPv4 and IPv6 addresses if `host` is empty. With port 0, `address` has the
    chosen port. Raises OSError."""
    dual_stack = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual_stack or ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, dualstack_ipv6=dual_stack)
    result = Port(reconciler)
    result.server = await asyncio.start_server(result.serve, sock=listening, limit=_HEAD)
    return result
