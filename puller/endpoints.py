"""The sidecar's own HTTP port: /healthz, /readyz, /v1/models, /metrics, for the kubelet and a scraper.

aiohttp's low-level server, without its router: four paths, GET without a body, responses from memory.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from puller.log import logger
from puller.plan import ModelState
from puller.reconcile import Reconciler

_IDLE_TIMEOUT = 75.0
"""Seconds for which a connection without requests is kept."""
_MAX_CONNECTIONS = 128
"""Connections at a time. A further one closes the oldest, so idle clients cannot lock the kubelet out."""


@dataclass
class Port:
    """The server, while it listens."""

    server: web.Server
    listening: asyncio.Server

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.listening.sockets[0].getsockname()[:2]
        return host, port

    async def close(self) -> None:
        self.listening.close()
        self.server.pre_shutdown()
        await self.server.shutdown(1.0)
        await self.listening.wait_closed()


async def listen(reconciler: Reconciler, host: str, port: int) -> Port:
    """A running server, on all IPv4 and IPv6 addresses if `host` is empty. With port 0, `address` has the
    chosen port. Raises OSError."""

    async def respond(request: web.BaseRequest) -> web.Response:
        try:
            return _response(reconciler, request)
        except Exception:
            logger.exception("request failed unexpectedly", path=request.path)
            return web.Response(status=500, text="a bug; see the log\n")

    def accepted() -> RequestHandler:
        connections = server.connections
        if len(connections) >= _MAX_CONNECTIONS:
            connections[0].force_close()
        return server()

    unlogged = logging.getLogger("puller.endpoints")  # of aiohttp: a traceback for each malformed request
    unlogged.disabled = True
    server = web.Server(respond, keepalive_timeout=_IDLE_TIMEOUT, access_log=None, logger=unlogged)
    dual_stack = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual_stack or ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, dualstack_ipv6=dual_stack)
    return Port(server, await asyncio.get_running_loop().create_server(accepted, sock=sock))


def _response(reconciler: Reconciler, request: web.BaseRequest) -> web.Response:
    if request.can_read_body:
        return web.Response(status=400, text="a body is not allowed\n")
    if request.method not in ("GET", "HEAD"):
        return web.Response(status=405, text="only GET\n")
    match request.path:
        case "/healthz":
            return _check(reconciler.status.healthy())
        case "/readyz":
            return _check(reconciler.status.ready(reconciler.models))
        case "/v1/models":
            document = reconciler.status.document(reconciler.models, reconciler.actions.fetches)
            body = orjson.dumps(_filtered(document, request.query))
            return web.Response(body=body, content_type="application/json")
        case "/metrics":
            metrics = reconciler.status.metrics
            metrics.disk = reconciler.actions.storage.budget.used
            body, content_type = metrics.render()
            return web.Response(body=body, headers={"Content-Type": content_type})
    return web.Response(status=404, text="there are /healthz, /readyz, /v1/models and /metrics\n")


def _check(result: tuple[bool, str]) -> web.Response:
    passed, message = result
    body = f"{message}\n".encode(errors="replace")
    return web.Response(status=200 if passed else 503, body=body, content_type="text/plain", charset="utf-8")


def _filtered(document: dict[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    """The document with the models for a query such as `loaded=false&limit=20`. With `loaded=false`, failed
    models come first."""
    models = document["models"]
    if query.get("loaded") == "false":
        models = [entry for entry in models if entry["state"] != ModelState.LOADED.value]
        models.sort(key=lambda entry: (entry["state"] != ModelState.FAILED.value, entry["name"]))
    limit = query.get("limit", "")
    if limit.isascii() and limit.isdigit():
        models = models[: int(limit[:9])]
    return {**document, "models": models}
