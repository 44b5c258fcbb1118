"""A review's way from the bytes of its body to the bytes of its answer: read, decide, encode, record.

Law: every review gets an answer. A body that is no review is refused with one plain sentence; a bug of ours
becomes an allowed review with a warning (or the answer that `onError` sets).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final, Protocol, TypeVar, cast, runtime_checkable

import structlog

from webhook.admission import envelope as review
from webhook.admission.envelope import MOST_VALUES, BadReview, Request, Response, allowed, too_many_values
from webhook.admission.messages import Answer, Recalled
from webhook.server import metrics as m
from webhook.server.bodies import Refusal
from webhook.server.journal import Journal, described
from webhook.server.log import verbose
from webhook.server.record import UID, UID_WITHIN, Identity, Reading, SharedRecords

log = structlog.get_logger()

HOLD_SECONDS: Final = 3.0
"""How long a review may hold the process past its deadline, before the supervisor ends the process: on a node
that is short of CPU an honest review takes a second."""
ENDED: Final = (
    "ML Chassis did not read this object: reading it ended the webhook's process before (the log of the "
    "webhook shows the review). It was admitted unchanged."
)
TOO_MANY: Final = (
    f"ML Chassis did not read this object: the review has more than {MOST_VALUES:,} values. It was "
    "admitted unchanged."
)
T = TypeVar("T")


@runtime_checkable
class Recalling(Protocol):
    """An endpoint that knows the answers to some bodies by their bytes."""

    def recall(self, body: bytes) -> Recalled | None: ...


Endpoint = Callable[[Request, float], Answer] | Callable[[Request, float], Awaitable[Answer]]
"""Answers a request, at once or, where it is a coroutine function, after it has waited for something; the
float is the deadline on the event loop's clock."""
OnError = Callable[[str, Request], Response]
"""What the endpoint of that name answers where it has failed itself."""


class Reviews:
    """Answers reviews with some admission endpoints, each reached under its name."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        on_error: OnError,
        metrics: m.Metrics,
        journal: Journal,
        shared: SharedRecords,
        *,
        traced: bool,
        fast: Callable[[], bool],
    ) -> None:
        """`traced`: each review must be read. `fast`: whether the fast path is on at the moment."""
        self._endpoints, self._on_error = endpoints, on_error
        self._metrics, self._journal, self._shared, self._fast = metrics, journal, shared, fast
        self.at_once = {
            name
            for name, endpoint in endpoints.items()
            # Where reviews are traced, their headers must be read.
            if not (inspect.iscoroutinefunction(endpoint) or traced)
        }
        """The endpoints whose `answer` never waits."""
        self._recalling = {
            name: cast(Recalling, endpoint)
            for name, endpoint in endpoints.items()
            if isinstance(endpoint, Recalling) and not traced
        }

    def recalled(self, name: str, body: bytes) -> bytes | None:
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
            self._journal.record_again(known, body)
        except Exception:
            log.exception("answer not recorded", endpoint=name, uid=known.uid)
        return known.body

    def answer_at_once(self, name: str, body: bytes, deadline: float) -> bytes:
        """`answer` of an endpoint that never waits."""
        return _done(self.answer(name, body, deadline))

    async def answer(self, name: str, body: bytes, deadline: float) -> bytes:
        """The answer to a body, by `deadline` on the event loop's clock. Refusal if it is no review."""
        identity = Identity.of_body(body)
        if self._shared.suspects.holds(identity):
            return self._unread(name, _uid(body), ENDED, identity)
        if too_many_values(body):
            return self._unread(name, _uid(body), TOO_MANY, identity)
        clock = asyncio.get_running_loop().time
        reading = Reading(self._shared.record, identity, lambda: max(deadline - clock(), 0) + HOLD_SECONDS)
        return await reading.noted(self._decided(name, body, deadline, reading))

    async def _decided(self, name: str, body: bytes, deadline: float, reading: Reading) -> bytes:
        request = _parse(body)
        about = {"endpoint": name, **described(request)}
        identity = Identity.of_request(request)
        if identity is not None and self._shared.suspects.holds(identity):
            return self._unread(name, request.uid, ENDED, identity)
        try:
            reading.about(about, identity)
            answered = self._endpoints[name](request, deadline)
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
            self._journal.record(name, request, answer, outcome, about)
        except Exception:  # the answer is given even if recording it fails
            log.exception("answer not recorded", endpoint=name, uid=request.uid)
        if answer.learn is not None and name in self._recalling:
            try:
                answer.learn(body, self._journal.record_for_replicas(name, request, answer, outcome, about))
            except Exception:
                log.exception("answer not remembered", **about)
        return rendered

    def _unread(self, name: str, uid: str, why: str, identity: Identity) -> bytes:
        """The answer to a review that is let in as it is. Refusal if its uid is not known."""
        if not uid:
            raise Refusal(HTTPStatus.BAD_REQUEST, "a review that is not read needs a uid to be answered")
        self._metrics.request(name, "undecidable", m.OTHER)
        log.warning("review not read", endpoint=name, why=why, review=identity.hex())
        return review.render(uid, allowed([why]))


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


def _outcome(response: Response) -> str:
    if not response.allowed:
        return "denied"
    if response.patch:
        return "changed"
    return "warned" if response.warnings else "allowed"
