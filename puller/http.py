"""The sidecar's own HTTP port: /healthz, /readyz, /v1/models, /metrics.

GET without a body, four paths, a kubelet and a scraper for clients: that much HTTP/1.1 is written here, for
a web framework takes longer to import than everything else that the sidecar needs to listen.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import orjson

from puller.log import logger
from puller.plan import State
from puller.reconcile import Reconciler

_HEAD = 16 << 10
"""Bytes of a request, all of its headers included."""
_IDLE = 75.0
"""Seconds that a connection may take for a request."""
_MOST = 128
"""Connections at a time; the oldest gives way to one more, so that holding them keeps no kubelet out."""
_TEXT = "text/plain; charset=utf-8"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class Answer:
    """The response to one request."""

    status: int
    body: bytes
    kind: str = _TEXT

    def encoded(self, *, last: bool, bodiless: bool) -> bytes:
        """As it is sent; `last`: the connection ends with it."""
        lines = [
            f"HTTP/1.1 {self.status} {_REASONS[self.status]}",
            f"Content-Type: {self.kind}",
            f"Content-Length: {len(self.body)}",
            f"Connection: {'close' if last else 'keep-alive'}",
        ]
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        return head if bodiless else head + self.body


@dataclass
class Port:
    """The answers. All come from memory; no request waits."""

    reconciler: Reconciler
    server: asyncio.Server | None = None
    _open: dict[asyncio.StreamWriter, None] = field(default_factory=dict)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self.server is not None
        host, port = self.server.sockets[0].getsockname()[:2]
        return host, port

    async def close(self) -> None:
        if self.server is not None:
            self.server.close()
            for writer in list(self._open):
                writer.close()
            await self.server.wait_closed()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request by request."""
        if len(self._open) >= _MOST:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.close()
        self._open[writer] = None
        try:
            more = True
            while more:
                async with asyncio.timeout(_IDLE):
                    head = await reader.readuntil(b"\r\n\r\n")
                    answer, more, bodiless = self._request(head)
                    writer.write(answer.encoded(last=not more, bodiless=bodiless))
                    await writer.drain()
        except asyncio.LimitOverrunError:
            writer.write(Answer(400, b"too long\n").encoded(last=True, bodiless=False))
        except (asyncio.IncompleteReadError, OSError):  # TimeoutError is one of these
            pass
        finally:
            self._open.pop(writer, None)
            writer.close()

    def _request(self, head: bytes) -> tuple[Answer, bool, bool]:
        """(the answer, whether another request may follow, whether the answer goes without its body)."""
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return Answer(400, b"not HTTP/1.1\n"), False, False
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        said = headers.get("connection", "").lower()
        more = "close" not in said if words[2] == "HTTP/1.1" else "keep-alive" in said
        if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
            return Answer(400, b"no body is read here\n"), False, False
        if words[0] not in ("GET", "HEAD"):
            return Answer(405, b"only GET\n"), more, False
        path, _, query = words[1].partition("?")
        return self._get(path, query), more, words[0] == "HEAD"

    def _get(self, path: str, query: str) -> Answer:
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
                    return Answer(200, orjson.dumps(_chosen(document, query)), "application/json")
                case "/metrics":
                    metrics = self.reconciler.status.metrics
                    metrics.disk = self.reconciler.actions.storage.budget.held
                    return Answer(200, *metrics.render())
        except Exception:
            logger.exception("request failed unexpectedly", path=path)
            return Answer(500, b"a bug; see the log\n")
        return Answer(404, b"there are /healthz, /readyz, /v1/models and /metrics\n")


def _chosen(document: dict[str, Any], query: str) -> dict[str, Any]:
    """The document with only the models that the query asks for: `loaded=false&limit=20`. Failed ones come
    first then, so that a limit keeps them."""
    asked = parse_qs(query)
    models = document["models"]
    if asked.get("loaded") == ["false"]:
        models = [entry for entry in models if entry["state"] != State.LOADED.value]
        models.sort(key=lambda entry: (entry["state"] != State.FAILED.value, entry["name"]))
    limit = asked.get("limit", [""])[0]
    if limit.isascii() and limit.isdigit():
        models = models[: int(limit[:9])]
    return {**document, "models": models}


def _check(found: tuple[bool, str]) -> Answer:
    well, why = found
    return Answer(200 if well else 503, f"{why}\n".encode(errors="replace"))


async def listen(reconciler: Reconciler, host: str, port: int) -> Port:
    """A running server, on all addresses (IPv4 and IPv6) where `host` is empty; port 0 picks a free one,
    `address` names it. Raises OSError."""
    every = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if every or ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, dualstack_ipv6=every)
    made = Port(reconciler)
    made.server = await asyncio.start_server(made.serve, sock=listening, limit=_HEAD)
    return made
