"""The AdmissionReview v1 envelope: bytes to a Request, and a Decision to bytes.

Source: https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from policies.kube.cache import Cache
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, dig, mapping, strings, text
from policies.kube.printable import printable
from webhook.admission.patch import Operation

API_VERSION = "admission.k8s.io/v1"
WARNING_LENGTH = 120
"""Characters of one warning: the API server logs longer ones as a fault of the webhook's."""
WARNINGS_LENGTH = 4096
"""Characters of all warnings together: the API server cuts off the rest."""


MOST_VALUES: Final = 300_000
"""JSON values of a review that is read, counted before any is made: they bound what reading it costs. Objects
of more than 20,000 fields are not decided (`webhook.admission.bounds`); an update has two of them, each with
its managed fields."""


class BadReview(ValueError):
    """The body is not an AdmissionReview v1 request; the message is one sentence for the caller."""


@dataclass(frozen=True, slots=True)
class Request:
    """One admission request. `object` is None on DELETE, `old_object` on CREATE."""

    uid: str
    kind: GroupKind
    operation: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    resource: str = ""
    object: Json | None = None
    old_object: Json | None = None
    dry_run: bool = False
    username: str = ""
    """The account that asks; empty offline, where a manifest is taken at its word."""
    groups: tuple[str, ...] = ()
    cache: Cache = field(default_factory=Cache, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Status:
    """Why a request is denied, as the client will see it."""

    code: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Response:
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


def parse(body: bytes) -> Request:
    """The request in an AdmissionReview. Raises BadReview."""
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadReview(f"the body is not JSON: {error}") from None
    _refuse_duplicate_keys(body, review)
    if not isinstance(review, dict) or review.get("kind") != "AdmissionReview":
        raise BadReview("the body is not an AdmissionReview")
    if review.get("apiVersion") != API_VERSION:
        raise BadReview(f"the AdmissionReview must be of version {API_VERSION}")
    request = review.get("request")
    if not isinstance(request, dict):
        raise BadReview("the AdmissionReview has no request")
    uid, operation, kind = text(request, "uid"), text(request, "operation"), mapping(request, "kind")
    if not uid:
        raise BadReview("the request has no uid")
    if operation not in ("CREATE", "UPDATE", "DELETE", "CONNECT"):
        raise BadReview("the request's operation must be CREATE, UPDATE, DELETE or CONNECT")
    if not text(kind, "kind"):
        raise BadReview("the request has no kind")
    return Request(
        uid=uid,
        kind=GroupKind(text(kind, "group"), text(kind, "kind")),
        operation=operation,
        namespace=text(request, "namespace"),
        name=text(request, "name"),
        subresource=text(request, "subResource"),
        resource=text(request, "resource", "resource"),
        object=_object(request, "object", required=operation in ("CREATE", "UPDATE")),
        old_object=_object(request, "oldObject", required=operation == "UPDATE"),
        dry_run=request.get("dryRun") is True,
        username=text(request, "userInfo", "username"),
        groups=tuple(strings(request, "userInfo", "groups")),
    )


def too_many_values(body: bytes) -> bool:
    """Whether a review has more values than are read: found by counting bytes, without making any value."""
    if _separators(body) <= MOST_VALUES:  # those in texts included
        return False
    texts_apart = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    return _separators(b"".join(texts_apart[::2])) > MOST_VALUES


def _separators(text: bytes) -> int:
    """No fewer than the values in a JSON text: each but the first follows one of these."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _refuse_duplicate_keys(body: bytes, review: Any) -> None:
    """Refuse two values under one key: readers that take the other value would be misled.

    orjson keeps the last value without a word, so compare the input with the result: every
    key brings a colon, and no colon is lost elsewhere unless it was written as an escape.
    """
    try:
        kept = orjson.dumps(review)
    except orjson.JSONEncodeError:
        raise BadReview("the body is nested too deeply") from None
    if body.count(b":") == kept.count(b":") and b"\\u003a" not in body and b"\\u003A" not in body:
        return
    json.loads(body, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadReview(f"the body has the key {twice[:60]!r} twice in one object")
    return result


def _object(request: Json, key: str, *, required: bool) -> Json | None:
    value = dig(request, key)
    if value is None and not required:
        return None
    if not isinstance(value, dict):
        raise BadReview(f"the request's {key} must be an object")
    return value


@dataclass(frozen=True, slots=True)
class Prepared:
    """The AdmissionReview that answers a request, all but the uid."""

    head: bytes
    tail: bytes

    def to(self, uid: str) -> bytes:
        """The answer to the request of that uid."""
        return self.head + orjson.dumps(uid) + self.tail


def render(uid: str, response: Response) -> bytes:
    """The AdmissionReview that answers a request, the uid echoed."""
    return prepared(response).to(uid)


def prepared(response: Response) -> Prepared:
    """An answer ready to be given under any uid."""
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
    head, _, tail = review.partition(b'""')  # the first empty text is the uid's
    return Prepared(head, tail)


def fitted(warnings: Sequence[str]) -> list[str]:
    """The warnings as the API server passes them on: lines of WARNING_LENGTH at most.

    A long warning goes on in indented lines; where all of them would exceed WARNINGS_LENGTH, those
    that fit are followed by a line with the number of the others.
    """
    distinct = list(dict.fromkeys(warnings))
    wrapped: list[list[str]] = []
    size = 0
    said: set[str] = set()
    for warning in distinct:
        wrapped.append(_wrapped(warning, said))
        said.update(wrapped[-1])
        size += _size(wrapped[-1])
        if size > WARNINGS_LENGTH:
            break
    else:
        return [line for lines in wrapped for line in lines]
    while True:
        rest = f"and {len(distinct) - len(wrapped)} more: chassis review"
        if size + len(rest) <= WARNINGS_LENGTH:
            return [*(line for lines in wrapped for line in lines), rest]
        size -= _size(wrapped.pop())


def _wrapped(warning: str, said: Set[str]) -> list[str]:
    """The lines of a warning. Of equal lines the API server and kubectl keep only the first, so a later
    warning would lose a line: it is broken elsewhere, until none of its lines is equal to an earlier one."""
    line = " ".join(warning.split())[: WARNINGS_LENGTH + 1]  # a longer line does not fit either way
    line = printable(line)  # the API server drops a warning that has control characters in it
    words = line.split(" ")
    long = max(map(len, words)) > WARNING_LENGTH // 2
    lines: list[str] = []
    for width in range(WARNING_LENGTH, WARNING_LENGTH // 2, -5):
        if long:
            lines = textwrap.wrap(
                line, width, subsequent_indent=_INDENT, break_on_hyphens=False, break_long_words=True
            )
        else:
            lines = _filled(words, width)
        if said.isdisjoint(lines):
            break
    return lines


_INDENT: Final = "  "


def _filled(words: Sequence[str], width: int) -> list[str]:
    """What `textwrap.wrap` makes of words that all fit a line, at a tenth of its cost."""
    lines, line = [], ""
    for word in words:
        if not line:
            line = word
        elif len(line) + 1 + len(word) <= width:
            line += f" {word}"
        else:
            lines.append(line)
            line = _INDENT + word
    return [*lines, line] if line else lines


def _size(lines: Sequence[str]) -> int:
    return sum(map(len, lines))
