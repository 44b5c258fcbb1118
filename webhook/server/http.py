"""The HTTP side: routes, limits, deadlines, drain. It knows reviews as bytes and decisions as values.

Law: every posted review gets an answer. A request that is no review gets a 4xx with one plain sentence;
a bug of ours becomes an allowed review with a warning (or the answer that `onError` sets). No request gets a
5xx or a dropped connection.

aiohttp serves. The usual request, a whole review in the form that API servers send, is answered without it if
the fast path is on, in one call from the request's bytes to the answer's
(`Server.answer`): to read it as any HTTP request costs more than its answer does.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast, runtime_checkable

import structlog
from aiohttp import web
from prometheus_client import Counter

from policies.core.mode import Mode
from policies.kube.json import text
from webhook.admission import envelope as review
from webhook.admission.decision import Decision
from webhook.admission.envelope import MOST_VALUES, BadReview, Request, Response, allowed, too_many_values
from webhook.admission.messages import Answer, Recalled
from webhook.server import bodies, connections
from webhook.server import metrics as m
from webhook.server.bodies import Refusal
from webhook.server.connections import Acceptor, Connection, FastPath, Refused, mark
from webhook.server.log import Bounded, Line, verbose
from webhook.server.record import UID, UID_WITHIN, Identity, Reading, SharedRecords
from webhook.server.tracing import Off, Tracing

if TYPE_CHECKING:  # it may have been deleted
    from webhook.fast_path.plain import Head

log = structlog.get_logger()

BACKLOG: Final = 1024
HANDSHAKE_SECONDS: Final = 0.2
DEFAULT_TIMEOUT: Final = 10.0
LONGEST_TIMEOUT: Final = 30.0
DEADLINE_MARGIN: Final = 0.1
"""Share of the caller's timeout that is left for the answer's way back."""
HOLD_SECONDS: Final = 3.0
"""How long a review may hold the process past its deadline, before the supervisor ends the process: on a node
that is short of CPU an honest review takes a second."""
ENDED: Final = (
    "ML Chassis did not read this object: reading it ended the webhook's process before (the log of the "
    "webhook shows the review). It was let in as it is."
)
TOO_MANY: Final = (
    f"ML Chassis did not read this object: the review has more than {MOST_VALUES:,} values. It was let in as "
    "it is."
)


T = TypeVar("T")


@runtime_checkable
class Recalling(Protocol):
    """An endpoint that knows the answers to some bodies by their bytes."""

    def recall(self, body: bytes) -> Recalled | None: ...


Endpoint = Callable[[Request, float], Answer] | Callable[[Request, float], Awaitable[Answer]]
"""Answers a request, at once or, where it is a coroutine function, after it has waited for something; the
float is the deadline on the event loop's clock."""
Notice = Callable[[Request, Decision], object]
"""Is called with each validated request and its decision, before the answer is sent; it must not block."""
OnError = Callable[[str, Request], Response]
"""What the endpoint of that name answers where it has failed itself."""


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


_LOGGED: Final = ("changed", "denied")
"""The outcomes that a line of the log is written about."""


@dataclass(frozen=True, slots=True)
class _AnswerRecord:
    """The record of an answer, written each time that it is given again."""

    tally: m.Tally
    line: Line | None
    name: str
    """As it was logged."""
    named: bool
    """Whether the request gave a name, which is the same in all replicas."""
    noticed: Decision | None
    """What a `Notice` may have to do with."""


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
        self._notice = notice
        self._tracing = tracing or Off()
        self._endpoints, self._on_error = endpoints, on_error
        self._shared = shared or SharedRecords.alone()
        self._metrics, self.readiness = metrics, readiness
        self._patience = patience
        self._runner: web.AppRunner | None = None
        self._acceptor: Acceptor | None = None
        self._refused = Refused(metrics.refused)
        self._lines = Bounded("request refused")
        self._at_once = {
            name: endpoint
            for name, endpoint in endpoints.items()
            # Where reviews are traced, their headers must be read.
            if not (inspect.iscoroutinefunction(endpoint) or self._tracing.on)
        }
        # Where reviews are traced, they must be read.
        self._recalling = {
            name: cast(Recalling, endpoint)
            for name, endpoint in endpoints.items()
            if isinstance(endpoint, Recalling) and not self._tracing.on
        }
        self._seconds = {name: metrics.seconds.labels(name) for name in endpoints}

    def application(self) -> web.Application:
        self._budget = bodies.Budget()
        app = web.Application(middlewares=[mark])
        for name, endpoint in self._endpoints.items():
            app.router.add_post(f"/{name}", self._admission(name, endpoint))
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

    def _admission(self, name: str, endpoint: Endpoint) -> Callable[[web.Request], Awaitable[web.Response]]:
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
                    answer = self._recalled(name, body)
                    if answer is None:
                        answer = await self._review(name, endpoint, body, deadline)
                except Refusal as refusal:
                    self._refuse(name, refusal, http.remote)
                    return web.Response(status=refusal.status, text=f"{refusal}\n")
                self._seconds[name].observe(time.perf_counter() - started)
                return web.Response(body=answer, content_type="application/json")

        return handle

    def patience(self, head: Head) -> float | None:
        """See `connections.Desk`: plain requests are answered at once, until the server drains."""
        if self.readiness.draining or head.endpoint not in self._at_once or not self._fast():
            return None
        return patience(head.timeout)

    def answer(self, name: str, body: bytes, deadline: float, peer: str) -> tuple[HTTPStatus, bytes, bytes]:
        """See `connections.Desk`."""
        started = time.perf_counter()
        answer = self._recalled(name, body)
        if answer is None:
            with self._metrics.in_flight.track_inprogress():
                try:
                    answer = _done(self._review(name, self._at_once[name], body, deadline))
                except Refusal as refusal:
                    self._refuse(name, refusal, peer)
                    return refusal.status, b"text/plain; charset=utf-8", f"{refusal}\n".encode()
        self._seconds[name].observe(time.perf_counter() - started)
        return HTTPStatus.OK, b"application/json", answer

    def _recalled(self, name: str, body: bytes) -> bytes | None:
        """The answer to a body that is known by its bytes.

        The body is not parsed, so no parser can hang: there is no note for the supervisor.
        """
        recalling = self._recalling.get(name)
        if recalling is None or verbose() or not self._fast():
            return None
        try:
            known = recalling.recall(body)
        except Exception:
            log.exception("answer not recalled", endpoint=name)
            return None
        if known is None:
            return None
        try:
            self._record_again(known, body)
        except Exception:
            log.exception("answer not recorded", endpoint=name, uid=known.uid)
        return known.body

    def _record_again(self, known: Recalled, body: bytes) -> None:
        record: _AnswerRecord = known.note
        record.tally.increment()
        if record.line is not None:
            record.line.write(known.uid, record.name if record.named else known.name or record.name)
        if record.noticed is not None and self._notice is not None:
            self._notice(review.parse(body), record.noticed)

    async def _review(self, name: str, endpoint: Endpoint, body: bytes, deadline: float) -> bytes:
        """The answer to a body. Refusal if it is no review."""
        identity = Identity.of_body(body)
        if self._shared.suspects.holds(identity):
            return self._unread(name, _uid(body), ENDED, identity)
        if too_many_values(body):
            return self._unread(name, _uid(body), TOO_MANY, identity)
        clock = asyncio.get_running_loop().time
        reading = Reading(self._shared.record, identity, lambda: max(deadline - clock(), 0) + HOLD_SECONDS)
        return await reading.noted(self._answer(name, endpoint, body, deadline, reading))

    def _refuse(self, name: str, refusal: Refusal, peer: str | None) -> None:
        self._metrics.request(name, "rejected", m.OTHER)
        if refusal.reason:
            self._refused.add(refusal.reason, endpoint=name, peer=peer)
        else:
            self._lines.warning(refusal.status.phrase, endpoint=name, why=str(refusal), peer=peer)

    def _unread(self, name: str, uid: str, why: str, identity: Identity) -> bytes:
        """The answer to a review that is let in as it is. Refusal if its uid is not known."""
        if not uid:
            raise Refusal(HTTPStatus.BAD_REQUEST, "a review that is not read needs a uid to be answered")
        self._metrics.request(name, "undecidable", m.OTHER)
        log.warning("review not read", endpoint=name, why=why, review=identity.hex())
        return review.render(uid, allowed([why]))

    async def _answer(
        self, name: str, endpoint: Endpoint, body: bytes, deadline: float, reading: Reading
    ) -> bytes:
        request = _parse(body)
        about = {"endpoint": name, **_about(request)}
        identity = Identity.of_request(request)
        if identity is not None and self._shared.suspects.holds(identity):
            return self._unread(name, request.uid, ENDED, identity)
        try:
            reading.about(about, identity)
            answered = endpoint(request, deadline)
            if isinstance(answered, Answer):
                answer = answered
            else:
                async with asyncio.timeout_at(deadline):
                    answer = await answered
            rendered = (answer.ready or review.prepared(answer.response)).to(request.uid)
            outcome = _outcome(answer.response)
        except Exception:
            log.exception("admission failed", **about)
            answer = Answer(self._on_error(name, request))
            rendered = review.render(request.uid, answer.response)
            outcome = "failed"
        try:
            self._record(name, request, answer, outcome, about)
        except Exception:  # the answer is given even if recording it fails
            log.exception("answer not recorded", endpoint=name, uid=request.uid)
        if answer.learn is not None and name in self._recalling:
            self._learn(answer.learn, name, request, body, answer, outcome, about)
        return rendered

    def _learn(
        self,
        learn: Callable[[bytes, object], None],
        name: str,
        request: Request,
        body: bytes,
        answer: Answer,
        outcome: str,
        about: dict[str, Any],
    ) -> None:
        """Know the next replica by its bytes."""
        decision = answer.decision
        try:
            counters = [self._metrics.of_request(name, outcome, request.kind.kind)]
            if decision is not None:
                counters += self._counters(decision, request.namespace)
            line = Line(outcome, {**about, **_because(answer)}) if outcome in _LOGGED else None
            noticed = decision if name == "validate" and decision and decision.results else None
            named = request.name not in ("", text(request.object, "metadata", "name"))
            learn(
                body, _AnswerRecord(self._metrics.tally(counters), line, str(about["name"]), named, noticed)
            )
        except Exception:
            log.exception("answer not remembered", **about)

    def _record(
        self, name: str, request: Request, answer: Answer, outcome: str, about: Mapping[str, object]
    ) -> None:
        self._metrics.request(name, outcome, request.kind.kind)
        if answer.decision is not None:
            self._count(answer.decision, request.namespace)
            if self._notice is not None and name == "validate":
                self._notice(request, answer.decision)
        if self._tracing.on:
            told = {f"chassis.{key}": value for key, value in _about(request).items() if key != "uid"}
            self._tracing.about({"chassis.outcome": outcome, **told})
        if outcome in _LOGGED:
            log.info(outcome, **about, **_because(answer))
        elif verbose():
            results = answer.decision.results if answer.decision else ()
            findings = {result.rule: result.mode.value for result in results}
            log.debug(outcome, **about, findings=findings)

    def _count(self, decision: Decision, namespace: str) -> None:
        for counter in self._counters(decision, namespace):
            counter.inc()
        for crash in decision.crashes:
            self._metrics.errors.labels(crash.id).inc()
            log.error("policy failed", policy=crash.id, error=crash.error, trace=crash.trace)

    def _counters(self, decision: Decision, namespace: str) -> Iterator[Counter]:
        for change in decision.changes:
            if not change.template:
                yield self._metrics.of_mutation(change.policy, change.mode.value)
        if decision.coverage is not None and decision.coverage.missing:
            yield self._metrics.of_not_read(str(decision.coverage.kind), decision.coverage.reading.value)
        for result in decision.results:
            if result.exempted is not None:
                yield self._metrics.of_exemption(result.rule)
            else:
                yield from self._metrics.of_finding(result.rule, result.mode.value, namespace)

    # --- the rest --------------------------------------------------------------------------------------

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        missing = self.readiness.missing()
        if missing:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text="; ".join(missing) + "\n")
        return web.Response(text="ok\n")

    async def _render_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": m.CONTENT_TYPE})


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; on all addresses, IPv6 and IPv4, if `host` is empty. Port 0 takes a free one."""
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def _uid(body: bytes) -> str:
    """The uid of a review that is not read; empty if it is not where the API server writes it."""
    found = UID.search(body, 0, UID_WITHIN)
    return found[1].decode() if found else ""


def _parse(body: bytes) -> Request:
    try:
        return review.parse(body)
    except BadReview as error:
        raise Refusal(HTTPStatus.BAD_REQUEST, str(error)) from None
    except Exception as error:
        log.exception("review not understood")
        raise Refusal(HTTPStatus.BAD_REQUEST, "the body could not be understood") from error


def _done(work: Awaitable[T]) -> T:
    """The result of work that never waits."""
    try:
        next(iter(work.__await__()))
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("an endpoint that answers at once has waited")


def patience(timeout: str) -> float:
    """Seconds from the first byte on within which a call is answered that has this `?timeout=`."""
    return seconds_of(timeout) * (1 - DEADLINE_MARGIN)


_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")


@lru_cache(64)
def seconds_of(value: str) -> float:
    """Seconds in the `?timeout=` of a call, written by Go (`5s`, `1m0s`, `500ms`); unknown text counts as
    none given."""
    match = _DURATION.fullmatch(value)
    hours, minutes, seconds, millis = (float(part or 0) for part in match.groups()) if match else (0,) * 4
    total = hours * 3600 + minutes * 60 + seconds + millis / 1000
    return min(total, LONGEST_TIMEOUT) if total else DEFAULT_TIMEOUT


def _outcome(response: Response) -> str:
    if not response.allowed:
        return "denied"
    if response.patch:
        return "changed"
    return "warned" if response.warnings else "allowed"


def _because(answer: Answer) -> dict[str, object]:
    """The policies that changed an object, or the rules that refused it."""
    if answer.decision is None:
        return {"why": answer.response.status.message} if answer.response.status else {}
    if not answer.response.allowed:
        return {"rules": sorted({result.rule for result in answer.decision.results if result.denies})}
    return {"policies": [change.policy for change in answer.decision.changes if change.mode is Mode.ENFORCE]}


def _about(request: Request) -> dict[str, str | bool]:
    """How a request is named in the log."""
    name = request.name or text(request.object, "metadata", "name")
    if not name:
        name = text(request.object, "metadata", "generateName") + "*"
    return {
        "uid": request.uid,
        "operation": request.operation,
        "kind": str(request.kind),
        "namespace": request.namespace,
        "name": name,
        "user": request.username,
        "dryRun": request.dry_run,
    }
