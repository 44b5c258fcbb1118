"""The HTTP server: routes, time limits, draining. `webhook.server.reviews` answers the bodies.

A request that is not a review gets a 4xx and one sentence, never a 5xx or a dropped connection.

aiohttp reads the requests. If the fast path is on, `AdmissionServer.answer` takes the usual request, a whole
review in the form that API servers send, without aiohttp: parsing it as HTTP costs more than answering it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

from aiohttp import web
from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST

from webhook.server import bodies, connections
from webhook.server import metrics as m
from webhook.server.bodies import Refusal
from webhook.server.connections import Acceptor, Connection, FastPath, Refusals, track_requests
from webhook.server.journal import Journal
from webhook.server.log import RateLimitedLog
from webhook.server.reviews import Endpoint, OnError, Reviews, time_limit
from webhook.server.shared_memory import SharedRecords

if TYPE_CHECKING:  # it may have been deleted
    from webhook.fast_path.plain import Head

BACKLOG: Final = 1024
LAST_HANDSHAKES_SECONDS: Final = 0.2
"""How long the end of a drain waits for handshakes that have begun."""


class Readiness(Struct):
    """The state that `/readyz` reports."""

    certificate: Callable[[], str]
    """Returns the problem of the serving certificate, or an empty string."""
    policy: bool = False
    draining: bool = False

    def problems(self) -> list[str]:
        reasons = [
            "shutting down" if self.draining else "",
            self.certificate(),
            "" if self.policy else "no policy yet",
        ]
        return [reason for reason in reasons if reason]


class AdmissionServer:
    """The HTTP server of the admission endpoints; an endpoint's name is its path."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        on_error: OnError,
        metrics: m.Metrics,
        readiness: Readiness,
        *,
        shared: SharedRecords | None = None,
        drain_patience: float = 20.0,
        fast_path: FastPath | None = None,
        fast_path_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """`drain_patience`: seconds in which requests in flight may finish when the server stops.
        `fast_path_on`: whether the policy allows `fast_path` now."""
        self._fast_path, self._fast_path_on = fast_path, fast_path_on
        self._shared = shared or SharedRecords.unshared()
        self._reviews = Reviews(endpoints, on_error, metrics, Journal(metrics), self._shared)
        self._metrics, self.readiness = metrics, readiness
        self._drain_patience = drain_patience
        self._runner: web.AppRunner | None = None
        self._acceptor: Acceptor | None = None
        self._refusals = Refusals(metrics.refused)
        self._lines = RateLimitedLog("request refused")
        self._seconds = {name: metrics.seconds.labels(name) for name in endpoints}

    def application(self) -> web.Application:
        self._budget = bodies.BodyBudget()
        app = web.Application(middlewares=[track_requests])
        for name in self._seconds:
            app.router.add_post(f"/{name}", self._admission(name))
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._render_metrics)
        app.on_response_prepare.append(self._close_when_draining)
        return app

    # --- start and drain -------------------------------------------------------------------------------

    async def start(self, listener: socket.socket, tls: Callable[[], ssl.SSLContext] | None) -> None:
        """Serve the connections of a listening socket; `drain` closes it.

        `tls` returns the TLS context for each new connection.
        """
        self._runner = web.AppRunner(
            self.application(), access_log=None, shutdown_timeout=self._drain_patience
        )
        await self._runner.setup()
        assert self._runner.server is not None
        self._acceptor = Acceptor(
            self._runner.server,
            tls,
            self._refusals,
            self._shared,
            (self._fast_path, self) if self._fast_path else None,
            access_log=None,
            keepalive_timeout=connections.KEEP_ALIVE_SECONDS,
            # A gzip bomb is refused by its header instead of being unpacked.
            auto_decompress=False,
        )
        self._acceptor.open(listener)

    async def drain(self, grace: float) -> None:
        """Fail `/readyz` and serve for `grace` more seconds; then stop listening, finish requests in flight
        and close."""
        self.readiness.draining = True
        await asyncio.sleep(grace)
        if self._runner is None or self._acceptor is None:
            return
        # aiohttp closes idle connections once. A connection whose handshake ended later would delay the end
        # by `drain_patience`.
        await self._acceptor.close(LAST_HANDSHAKES_SECONDS)
        await self._runner.cleanup()
        self._refusals.flush()
        self._lines.flush()

    async def _close_when_draining(self, request: web.Request, response: web.StreamResponse) -> None:
        # The API server keeps its connections open. Only this header makes it connect to another replica.
        if self.readiness.draining:
            response.headers["Connection"] = "close"  # aiohttp has already prepared its own headers
            response.force_close()

    # --- admission -------------------------------------------------------------------------------------

    def _admission(self, endpoint: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        budget = self._budget

        async def handle(http: web.Request) -> web.Response:
            started = time.perf_counter()  # the loop's own clock does not move between two of its turns
            since = cast(Connection, http.protocol).since
            assert since is not None
            deadline = since + time_limit(http.query.get("timeout", ""))
            with self._metrics.in_flight.track_inprogress(), budget.hold() as hold:
                try:
                    body = await bodies.read(http, hold, budget, deadline)
                    cast(Connection, http.protocol).body_received()
                    answer = self._reviews.recall(endpoint, body)
                    if answer is None:
                        answer = await self._reviews.answer(endpoint, body, deadline)
                except Refusal as refusal:
                    self._refuse(endpoint, refusal, http.remote)
                    return web.Response(status=refusal.status, text=f"{refusal}\n")
                self._seconds[endpoint].observe(time.perf_counter() - started)
                return web.Response(body=answer, content_type="application/json")

        return handle

    def plain_time_limit(self, head: Head) -> float | None:
        """See `connections.PlainHandler`."""
        if self.readiness.draining or head.endpoint not in self._reviews.synchronous:
            return None
        return time_limit(head.timeout) if self._fast_path_on() else None

    def answer(
        self, endpoint: str, body: bytes, deadline: float, peer: str
    ) -> tuple[HTTPStatus, bytes, bytes]:
        """See `connections.PlainHandler`."""
        started = time.perf_counter()
        answer = self._reviews.recall(endpoint, body)
        if answer is None:
            with self._metrics.in_flight.track_inprogress():
                try:
                    answer = self._reviews.answer_synchronously(endpoint, body, deadline)
                except Refusal as refusal:
                    self._refuse(endpoint, refusal, peer)
                    return refusal.status, b"text/plain; charset=utf-8", f"{refusal}\n".encode()
        self._seconds[endpoint].observe(time.perf_counter() - started)
        return HTTPStatus.OK, b"application/json", answer

    def _refuse(self, endpoint: str, refusal: Refusal, peer: str | None) -> None:
        self._metrics.request(endpoint, "rejected", m.OTHER)
        if refusal.reason:
            self._refusals.add(refusal.reason, endpoint=endpoint, peer=peer)
        else:
            self._lines.warning(refusal.status.phrase, endpoint=endpoint, why=str(refusal), peer=peer)

    # --- health and metrics ----------------------------------------------------------------------------

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if problems := self.readiness.problems():
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text="; ".join(problems) + "\n")
        return web.Response(text="ok\n")

    async def _render_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Empty `host`: all IPv4 and IPv6 addresses. Port 0: a free port."""
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)
