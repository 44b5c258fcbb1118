"""The AdmissionReview v1 of a request: bytes to a Request.

Source: https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from policies.kube.cache import Cache
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, dig, mapping, strings, text

API_VERSION = "admission.k8s.io/v1"
UID_WITHIN: Final = 1024
"""Bytes of an unparsed body that are searched for its uid."""
_UID: Final = re.compile(rb'"request": ?\{ ?"uid": ?"([A-Za-z0-9-]{1,64})"')
"""The API server writes the uid at the beginning of the request, the first object of that name."""
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


def place_of_uid(body: bytes) -> tuple[int, int]:
    """Where the uid begins and ends in a body that is not parsed; 0 and 0 if it is not where the API server
    writes it."""
    found = _UID.search(body, 0, UID_WITHIN)
    return found.span(1) if found else (0, 0)


def uid_of(body: bytes) -> str:
    """The uid of a review that is not parsed; empty if it is not where the API server writes it."""
    start, end = place_of_uid(body)
    return body[start:end].decode()


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
