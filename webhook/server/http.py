"""The HTTP side: routes, limits, drain. It knows reviews as bytes; `webhook.server.reviews` answers them.

A request that is no review gets a 4xx with one plain sentence. No request gets a 5xx or a dropped connection.

aiohttp serves. The usual request, a whole review in the form that API servers send, is answered without it if
the fast path is on, in one call from the request's bytes to the answer's
(`Server.answer`): to read it as any HTTP request costs more than its answer does.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from webhook.server import bodies, connections
from webhook.server import metrics as m
from webhook.server.bodies import Refusal
from webhook.server.connections import Acceptor, Connection, FastPath, Refused, mark
from webhook.server.deadlines import patience
from webhook.server.journal import Journal, Notice
from webhook.server.log import Bounded
from webhook.server.record import SharedRecords
from webhook.server.reviews import Endpoint, OnError, Reviews
from webhook.server.tracing import Off, Tracing

if TYPE_CHECKING:  # it may have been deleted
    from webhook.fast_path.plain import Head

BACKLOG: Final = 1024
HANDSHAKE_SECONDS: Final = 0.2


@dataclass
class Readiness:
    """What `/readyz` answers from."""

    certificate: Callable[[], str]
    """The present problem of the serving certificate; empty: none."""
    policy: bool = False
    draining: bool = False

    def missing(self) -> list[str]:
        reasons = [
            "shutting down" if self.draining else "",
            self.certificate(),
            "" if self.policy else "no policy yet",
        ]
        return [reason for reason in reasons if reason]


class Server:
    """The HTTP server of some admission endpoints, each reached under its name."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        on_error: OnError,
        metrics: m.Metrics,
        readiness: Readiness,
        *,
        shared: SharedRecords | None = None,
        patience: float = 20.0,
        tracing: Tracing | None = None,
        notice: Notice | None = None,
        fast_path: FastPath | None = None,
        fast: Callable[[], bool] = lambda: True,
    ) -> None:
        """`patience`: seconds that requests in flight get to finish in once the server stops. `fast`: whether
        the fast path, where there is one, is on at the moment."""
        self._fast_path, self._fast = fast_path, fast
        self._tracing = tracing or Off()
        self._shared = shared or SharedRecords.alone()
        journal = Journal(metrics, tracing=tracing, notice=notice)
        self._reviews = Reviews(
            endpoints, on_error, metrics, journal, self._shared, traced=self._tracing.on, fast=fast
        )
        self._metrics, self.readiness = metrics, readiness
        self._patience = patience
        self._runner: web.AppRunner | None = None
        self._acceptor: Acceptor | None = None
        self._refused = Refused(metrics.refused)
        self._lines = Bounded("request refused")
        self._seconds = {name: metrics.seconds.labels(name) for name in endpoints}

    def application(self) -> web.Application:
        self._budget = bodies.Budget()
        app = web.Application(middlewares=[mark])
        for name in self._seconds:
            app.router.add_post(f"/{name}", self._admission(name))
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._render_metrics)
        app.on_response_prepare.append(self._close_when_draining)
        return app

    # --- life ------------------------------------------------------------------------------------------

    async def start(self, listener: socket.socket, tls: Callable[[], ssl.SSLContext] | None) -> None:
        """Serve the connections of a listening socket, which the server closes in the end.

        `tls` gives the context of each connection as it comes.
        """
        self._runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=self._patience)
        await self._runner.setup()
        assert self._runner.server is not None
        self._acceptor = Acceptor(
            self._runner.server,
            tls,
            self._refused,
            (self._fast_path, self) if self._fast_path else None,
            self._shared,
            access_log=None,
            keepalive_timeout=connections.KEEP_ALIVE_SECONDS,
            # A gzip bomb is refused by its header instead of being unpacked.
            auto_decompress=False,
        )
        self._acceptor.open(listener)

    async def drain(self, grace: float) -> None:
        """Fail `/readyz`, go on serving for `grace` seconds, then stop listening, let requests in flight
        finish, and close."""
        self.readiness.draining = True
        await asyncio.sleep(grace)
        if self._runner is None or self._acceptor is None:
            return
        # aiohttp closes idle connections once: one whose handshake ends after that would delay us for all
        # of `patience`.
        await self._acceptor.close(HANDSHAKE_SECONDS)
        await self._runner.cleanup()
        self._refused.flush()
        self._lines.flush()

    async def _close_when_draining(self, request: web.Request, response: web.StreamResponse) -> None:
        # The API server keeps its connections: only this makes it go to another replica.
        if self.readiness.draining:
            response.headers["Connection"] = "close"  # aiohttp has prepared its headers before it asks us
            response.force_close()

    # --- admission -------------------------------------------------------------------------------------

    def _admission(self, name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        budget = self._budget

        async def handle(http: web.Request) -> web.Response:
            started = time.perf_counter()  # the loop's own clock does not move between two of its turns
            since = cast(Connection, http.protocol).since
            assert since is not None
            deadline = since + patience(http.query.get("timeout", ""))
            with (
                self._tracing.review(name, http.headers),
                self._metrics.in_flight.track_inprogress(),
                budget.hold() as hold,
            ):
                try:
                    body = await bodies.read(http, hold, budget, deadline)
                    cast(Connection, http.protocol).arrived()
                    answer = self._reviews.recalled(name, body)
                    if answer is None:
                        answer = await self._reviews.answer(name, body, deadline)
                except Refusal as refusal:
                    self._refuse(name, refusal, http.remote)
                    return web.Response(status=refusal.status, text=f"{refusal}\n")
                self._seconds[name].observe(time.perf_counter() - started)
                return web.Response(body=answer, content_type="application/json")

        return handle

    def patience(self, head: Head) -> float | None:
        """See `connections.Desk`: plain requests are answered at once, until the server drains."""
        if self.readiness.draining or head.endpoint not in self._reviews.at_once or not self._fast():
            return None
        return patience(head.timeout)

    def answer(self, name: str, body: bytes, deadline: float, peer: str) -> tuple[HTTPStatus, bytes, bytes]:
        """See `connections.Desk`."""
        started = time.perf_counter()
        answer = self._reviews.recalled(name, body)
        if answer is None:
            with self._metrics.in_flight.track_inprogress():
                try:
                    answer = self._reviews.answer_at_once(name, body, deadline)
                except Refusal as refusal:
                    self._refuse(name, refusal, peer)
                    return refusal.status, b"text/plain; charset=utf-8", f"{refusal}\n".encode()
        self._seconds[name].observe(time.perf_counter() - started)
        return HTTPStatus.OK, b"application/json", answer

    def _refuse(self, name: str, refusal: Refusal, peer: str | None) -> None:
        self._metrics.request(name, "rejected", m.OTHER)
        if refusal.reason:
            self._refused.add(refusal.reason, endpoint=name, peer=peer)
        else:
            self._lines.warning(refusal.status.phrase, endpoint=name, why=str(refusal), peer=peer)

    # --- the rest --------------------------------------------------------------------------------------

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        missing = self.readiness.missing()
        if missing:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text="; ".join(missing) + "\n")
        return web.Response(text="ok\n")

    async def _render_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; on all addresses, IPv6 and IPv4, if `host` is empty. Port 0 takes a free one."""
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)
