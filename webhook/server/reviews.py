"""A review from the bytes of its body to the bytes of its answer: parse, decide, encode, record.

Law: every review gets an answer. A body that is not a review is refused with one sentence. A bug in the
webhook admits the object with a warning, or as `onError` sets.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar, cast, runtime_checkable

import structlog

from webhook.admission.answer import Answer, Recalled, Response, allowed, prepared, render
from webhook.admission.envelope import MAX_VALUES, BadReview, Request, parse, too_many_values, uid_of
from webhook.server import metrics as m
from webhook.server.bodies import Refusal
from webhook.server.journal import Answered, Journal, log_fields
from webhook.server.log import verbose
from webhook.server.shared_memory import Identity, ReviewRecord, SharedRecords

log = structlog.get_logger()

DEFAULT_TIMEOUT: Final = 10.0
MAX_TIMEOUT: Final = 30.0
DEADLINE_MARGIN: Final = 0.1
"""Share of the caller's timeout that is reserved for sending the answer."""
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")
HOLD_SECONDS: Final = 3.0
"""How long a review may block the process after its deadline before the supervisor kills the process: on a
node that is short of CPU, a harmless review takes a second."""
KILLED: Final = (
    "ML Chassis did not read this object, because reading it ended the webhook's process before (the log "
    "of the webhook shows the review). It was admitted unchanged."
)
TOO_MANY: Final = (
    f"ML Chassis did not read this object, because the review has more than {MAX_VALUES:,} values. It was "
    "admitted unchanged."
)
T = TypeVar("T")


@runtime_checkable
class Recalling(Protocol):
    """An endpoint that remembers the answers to some bodies."""

    def recall(self, body: bytes) -> Recalled | None: ...


Endpoint = Callable[[Request, float], Answer] | Callable[[Request, float], Awaitable[Answer]]
"""A function or coroutine function that answers a request. The float is the deadline on the event loop's
clock."""
OnError = Callable[[str, Request], Response]
"""Returns the answer if the endpoint of that name raises an exception."""


@lru_cache(64)
def time_limit(timeout: str) -> float:
    """Seconds from the first byte of a request to its answer.

    `timeout`: the request's `?timeout=` as Go writes it (`5s`, `1m0s`, `500ms`); other text counts as absent.
    """
    match = _DURATION.fullmatch(timeout)
    hours, minutes, seconds, millis = (float(part or 0) for part in match.groups()) if match else (0,) * 4
    total = hours * 3600 + minutes * 60 + seconds + millis / 1000
    return min(total or DEFAULT_TIMEOUT, MAX_TIMEOUT) * (1 - DEADLINE_MARGIN)


class Reviews:
    """Answers reviews with the admission endpoints, by name."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        on_error: OnError,
        metrics: m.Metrics,
        journal: Journal,
        shared: SharedRecords,
    ) -> None:
        self._endpoints, self._on_error = endpoints, on_error
        self._metrics, self._journal, self._shared = metrics, journal, shared
        self.synchronous = {name for name, each in endpoints.items() if not inspect.iscoroutinefunction(each)}
        """The endpoints that `answer_synchronously` accepts."""
        self._recalling = {
            name: cast(Recalling, each) for name, each in endpoints.items() if isinstance(each, Recalling)
        }

    def recall(self, endpoint: str, body: bytes) -> bytes | None:
        """The remembered answer to a body; None if there is none.

        The body is not parsed, so no parser can hang, and the supervisor needs no record.
        """
        recalling = self._recalling.get(endpoint)
        if recalling is None or verbose():
            return None
        try:
            known = recalling.recall(body)
        except Exception:
            log.exception("answer not recalled", endpoint=endpoint)
            return None
        if known is None:
            return None
        try:
            known.note.record_again(known.uid, known.name)
        except Exception:
            log.exception("answer not recorded", endpoint=endpoint, uid=known.uid)
        return known.body

    def answer_synchronously(self, endpoint: str, body: bytes, deadline: float) -> bytes:
        """`answer` without an event loop; `endpoint` is one of `synchronous`."""
        return _run(self.answer(endpoint, body, deadline))

    async def answer(self, endpoint: str, body: bytes, deadline: float) -> bytes:
        """The answer to a body, by `deadline` on the event loop's clock. Refusal if it is not a review."""
        identity = Identity.of_body(body)
        if self._shared.suspects.holds(identity):
            return self._admit_unread(endpoint, uid_of(body), KILLED, identity)
        if too_many_values(body):
            return self._admit_unread(endpoint, uid_of(body), TOO_MANY, identity)
        clock = asyncio.get_running_loop().time
        record = ReviewRecord(self._shared.state, identity, lambda: max(deadline - clock(), 0) + HOLD_SECONDS)
        return await record.around(self._parse_and_answer(endpoint, body, deadline, record))

    async def _parse_and_answer(
        self, endpoint: str, body: bytes, deadline: float, record: ReviewRecord
    ) -> bytes:
        request = _parse(body)
        fields = {"endpoint": endpoint, **log_fields(request)}
        identity = Identity.of_request(request)
        if identity is not None and self._shared.suspects.holds(identity):
            return self._admit_unread(endpoint, request.uid, KILLED, identity)
        try:
            record.describe(fields, identity)
            answer = await self._answer_of(endpoint, request, deadline)
            rendered = (answer.ready or prepared(answer.response)).to(request.uid)
            outcome = _outcome(answer.response)
        except Exception:
            log.exception("admission failed", **fields)
            answer = Answer(self._on_error(endpoint, request))
            rendered = render(request.uid, answer.response)
            outcome = "failed"
        self._record(body, Answered(endpoint, request, answer, outcome, fields))
        return rendered

    async def _answer_of(self, endpoint: str, request: Request, deadline: float) -> Answer:
        answered = self._endpoints[endpoint](request, deadline)
        if isinstance(answered, Answer):
            return answered
        async with asyncio.timeout_at(deadline):
            return await answered

    def _record(self, body: bytes, answered: Answered) -> None:
        """Record the answer and let it be recalled; it is given even if that fails."""
        endpoint, remember = answered.endpoint, answered.answer.remember
        try:
            self._journal.record(answered)
        except Exception:
            log.exception("answer not recorded", endpoint=endpoint, uid=answered.request.uid)
        if remember is None or endpoint not in self._recalling:
            return
        try:
            remember(body, self._journal.record_for_replicas(answered))
        except Exception:
            log.exception("answer not remembered", **answered.fields)

    def _admit_unread(self, endpoint: str, uid: str, why: str, identity: Identity) -> bytes:
        """Admit the object of a review that is not parsed. Refusal if the uid is unknown."""
        if not uid:
            raise Refusal(HTTPStatus.BAD_REQUEST, "a review that is not read needs a uid to be answered")
        self._metrics.request(endpoint, "undecidable", m.OTHER)
        log.warning("review not read", endpoint=endpoint, why=why, review=identity.decode())
        return render(uid, allowed([why]))


def _parse(body: bytes) -> Request:
    try:
        return parse(body)
    except BadReview as error:
        raise Refusal(HTTPStatus.BAD_REQUEST, str(error)) from None
    except Exception as error:
        log.exception("review not understood")
        raise Refusal(HTTPStatus.BAD_REQUEST, "the body could not be understood") from error


def _run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("a synchronous endpoint has waited")


def _outcome(response: Response) -> str:
    if not response.allowed:
        return "denied"
    if response.patch:
        return "changed"
    return "warned" if response.warnings else "allowed"
