"""The sidecar's own HTTP port: /healthz, /readyz, /v1/models, /metrics."""

from __future__ import annotations

import socket

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from puller.reconcile import Reconciler


def application(reconciler: Reconciler) -> web.Application:
    """Answers from what is in memory; no request waits for anything."""

    async def healthz(_: web.Request) -> web.Response:
        well, why = reconciler.status.healthy()
        return web.Response(status=200 if well else 503, text=why + "\n")

    async def readyz(_: web.Request) -> web.Response:
        ready, why = reconciler.status.ready(reconciler.models)
        return web.Response(status=200 if ready else 503, text=why + "\n")

    async def models(_: web.Request) -> web.Response:
        document = reconciler.status.document(reconciler.models, reconciler.actions.fetches)
        return web.Response(body=orjson.dumps(document), content_type="application/json")

    async def metrics(_: web.Request) -> web.Response:
        reconciler.status.metrics.disk.set(reconciler.actions.storage.budget.held)
        body = reconciler.status.metrics.render()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/v1/models", models),
            web.get("/metrics", metrics),
        ]
    )
    return app


async def listen(reconciler: Reconciler, host: str, port: int) -> web.AppRunner:
    """A running server, on all addresses (IPv4 and IPv6) where `host` is empty; port 0 picks a free one,
    `runner.addresses` names it. Raises OSError."""
    every = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if every or ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, dualstack_ipv6=every)
    runner = web.AppRunner(application(reconciler), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, listening).start()
    return runner
