"""The AdmissionReview v1: bytes to a Request, and a Response to bytes.

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
from webhook.admission.json_patch import Operation

API_VERSION = "admission.k8s.io/v1"
WARNING_LENGTH = 120
"""Characters of one warning. The API server logs longer ones as a fault of the webhook."""
WARNINGS_LENGTH = 4096
"""Characters of all warnings together. The API server drops the rest."""
MAX_VALUES: Final = 300_000
"""JSON values in a review. They are counted before parsing and bound its cost. Objects with more than 20,000
fields are undecided (`webhook.admission.bounds`); an update contains two objects with managed fields."""


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
    """The account of the request; empty on the command line, where owner references are trusted."""
    groups: tuple[str, ...] = ()
    cache: Cache = field(default_factory=Cache, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Status:
    """Why a request is denied, as the client sees it."""

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
    """Whether a review has more than MAX_VALUES values: counted in the bytes, without parsing."""
    if _separators(body) <= MAX_VALUES:  # also counts separators in strings
        return False
    parts = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    return _separators(b"".join(parts[::2])) > MAX_VALUES


def _separators(text: bytes) -> int:
    """An upper bound of the values in a JSON text: each but the first follows one of these."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _refuse_duplicate_keys(body: bytes, review: Any) -> None:
    """Refuse two values under one key: other parsers may use the other value.

    orjson keeps the last value silently, so compare the colons of the input with those of the result: every
    key has one, and no other colon is lost unless it was escaped.
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
    """The AdmissionReview that answers a request, without the uid."""

    head: bytes
    tail: bytes

    def to(self, uid: str) -> bytes:
        return self.head + orjson.dumps(uid) + self.tail


def render(uid: str, response: Response) -> bytes:
    """The AdmissionReview that answers the request with this uid."""
    return prepared(response).to(uid)


def prepared(response: Response) -> Prepared:
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


def fitted(warnings: Sequence[str]) -> list[str]:
    """The warnings in lines of at most WARNING_LENGTH, as the API server passes them on.

    Long warnings continue in indented lines. If all of them exceed WARNINGS_LENGTH, a line with the number of
    the others follows those that fit.
    """
    distinct = list(dict.fromkeys(warnings))
    wrapped: list[list[str]] = []
    size = 0
    seen: set[str] = set()
    for warning in distinct:
        wrapped.append(_wrapped(warning, seen))
        seen.update(wrapped[-1])
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


def _wrapped(warning: str, seen: Set[str]) -> list[str]:
    """The lines of a warning, none of which is equal to an earlier one: the API server and kubectl would drop
    it."""
    line = " ".join(warning.split())[: WARNINGS_LENGTH + 1]  # a longer line does not fit in any case
    line = printable(line)  # the API server drops warnings with control characters
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
        if seen.isdisjoint(lines):
            break
    return lines


_INDENT: Final = "  "


def _filled(words: Sequence[str], width: int) -> list[str]:
    """`textwrap.wrap` for words that all fit in a line, at a tenth of its cost."""
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
