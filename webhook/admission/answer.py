"""What a review is answered with, from a decision to the bytes.

| form | made by | for |
|---|---|---|
| `Response` | `messages.respond`, `allowed`, `patched`, `denied` | the fields that the API server reads |
| `Prepared` | `prepared` | its bytes, without the uid of one request |
| `Answer` | an endpoint | the response, with the decision for log and metrics |
| `Recalled` | `webhook.fast_path` | an answer that was found without a decision |

Source: https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import orjson
from msgspec import Struct, field

from webhook.admission.decision import Decision
from webhook.admission.envelope import API_VERSION
from webhook.admission.json_patch import Operation
from webhook.admission.wrapping import fitted


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


def prepared(response: Response) -> Prepared:
    """The AdmissionReview v1 of a response, with its warnings in lines."""
    answer: dict[str, Any] = {"uid": "", "allowed": response.allowed}
    if response.status is not None:
        answer["status"] = {
            "status": "Failure",
            "code": response.status.code,
            "reason": response.status.reason,
            "message": response.status.message,
        }
    elif response.patch:
        answer["patchType"] = "JSONPatch"
        answer["patch"] = base64.b64encode(orjson.dumps(response.patch)).decode()
    if response.warnings:
        answer["warnings"] = fitted(response.warnings)
    if response.audit:
        answer["auditAnnotations"] = dict(response.audit)
    review = orjson.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": answer})
    head, _, tail = review.partition(b'""')  # the first empty string is the uid
    return Prepared(head, tail)


def render(uid: str, response: Response) -> bytes:
    """The AdmissionReview that answers the request with this uid."""
    return prepared(response).to(uid)


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
