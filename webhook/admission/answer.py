"""What a review is answered with, from a decision to the bytes.

| form | made by | for |
|---|---|---|
| `Response` | `messages.respond`, `allowed`, `patched`, `denied` | the fields that the API server reads |
| `Prepared` | `answer_encoding.prepared` | its bytes, without the uid of one request |
| `Answer` | an endpoint | the response, with the decision for log and metrics |
| `Recalled` | `webhook.fast_path` | an answer that was found without a decision |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import orjson
from msgspec import Struct, field

from webhook.admission.decision import Decision
from webhook.admission.json_patch import Operation


class Status(Struct, frozen=True):
    """Why a request is denied, as the client sees it."""

    code: int
    reason: str
    message: str


class Response(Struct, frozen=True):
    """The answer to one request; built by `allowed`, `patched` and `denied`."""

    status: Status | None = None
    patch: Sequence[Operation] = ()
    warnings: Sequence[str] = ()
    audit: Mapping[str, str] = field(default_factory=dict)

    @property
    def allowed(self) -> bool:
        return self.status is None


def allowed(warnings: Sequence[str] = (), audit: Mapping[str, str] | None = None) -> Response:
    return Response(warnings=warnings, audit=audit or {})


def patched(
    patch: Sequence[Operation], warnings: Sequence[str] = (), audit: Mapping[str, str] | None = None
) -> Response:
    return Response(patch=patch, warnings=warnings, audit=audit or {})


def denied(
    message: str,
    *,
    code: int = 403,
    reason: str = "Forbidden",
    warnings: Sequence[str] = (),
    audit: Mapping[str, str] | None = None,
) -> Response:
    """A refusal. Never use 429 or 5xx: client-go retries those by itself."""
    return Response(Status(code, reason, message), warnings=warnings, audit=audit or {})


class Prepared(Struct, frozen=True):
    """The AdmissionReview that answers a request, without the uid."""

    head: bytes
    tail: bytes

    def to(self, uid: str) -> bytes:
        return self.head + orjson.dumps(uid) + self.tail


class Note(Protocol):
    """What whoever records answers keeps with a remembered one, so that it is recorded again."""

    def record_again(self, uid: str, name: str) -> None:
        """Record the answer to another request; `name`: see `Recalled`."""


class Answer(Struct, frozen=True):
    """The answer to a review, and the decision for the log and the metrics."""

    response: Response
    decision: Decision | None = None
    ready: Prepared | None = None
    """The response as bytes, if they exist."""
    remember: Callable[[bytes, Note], None] | None = None
    """Takes the body and a note; the next such body is answered with a `Recalled` that contains the note."""


class Recalled(NamedTuple):
    """An answer that was found by the bytes of a review."""

    uid: str
    body: bytes
    """The AdmissionReview."""
    name: str
    """The object's name if it ends in a random suffix, else empty."""
    note: Note
