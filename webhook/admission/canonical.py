"""The canonical form of a request: constants replace the values that do not describe the object.

Replicas of one pod template differ in their uids, in times and in the random ends of their names. A value
that is also elsewhere in the request is not replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from policies.kube.group_kinds import POD, GroupKind
from policies.kube.json import Json, text
from webhook.admission.envelope import Request, Response

CONSTANTS: Final[Mapping[str, Any]] = {
    "uid": "00000000-0000-0000-0000-000000000000",
    "creationTimestamp": "2000-01-01T00:00:00Z",
    "resourceVersion": "20000101000000",
    "managedFields": [{"manager": "00000000-0000-0000-0000-000000000000"}],
}
"""Constants for a replica's own values in the metadata. A missing value stays missing."""
RANDOM: Final = b"bcdfghjklmnpqrstvwxz2456789"
"""Of which the API server makes the ends of names, five characters long."""
CONSTANT: Final = b"0o1a0"
"""In place of them. No end that the API server makes has any of its characters."""
TOKEN_PREFIX: Final = b"kube-api-access-"
_END: Final = re.compile(rf"[{RANDOM.decode()}]{{5}}")
_PREFIX: Final = re.compile(r"[a-z0-9.-]*")
_TOKEN: Final = re.compile(rb'"kube-api-access-([a-z0-9]{5})"')


@dataclass(frozen=True, slots=True)
class Canonical:
    """A request without the values of a single replica."""

    text: bytes
    """All of the request but its uid, as JSON."""
    name: bytes = b""
    """The object's own name, if a constant replaces it."""
    token: bytes = b""
    """The own name of its token's volume, if a constant replaces it."""

    @classmethod
    def of(cls, request: Request) -> Canonical | None:
        """The canonical form; None for a request that the engine does not read, or that can't be written."""
        return request.cache.once(cls._of, request)

    @classmethod
    def _of(cls, request: Request) -> Canonical | None:
        obj = request.object
        if obj is None or request.operation not in ("CREATE", "UPDATE"):
            return None
        # Only a Pod's: other objects are found by their names in listings of the cluster.
        name, constant = _generated(obj) if request.kind == POD else ("", "")
        try:
            written = _written(request, name, constant)
            if name and (
                name.encode() in written or written.count(constant.encode()) != places(request, name)
            ):
                name = constant = ""  # the name is elsewhere, too: keep it
                written = _written(request, "", "")
        except orjson.JSONEncodeError:  # nested as deeply as can be
            return None
        tokens = _TOKEN.findall(written)
        if not tokens or not len(tokens) == tokens.count(tokens[0]) == written.count(TOKEN_PREFIX):
            return cls(written, name.encode())
        token = TOKEN_PREFIX + tokens[0]
        return cls(written.replace(token, steady(token)), name.encode(), token)

    def request(self) -> Request:
        """The request as the engine sees it: made from the text only."""
        kind, rest, groups, obj, old = orjson.loads(self.text)
        return Request("", GroupKind(*kind), **rest, groups=tuple(groups), object=obj, old_object=old)


_SHOWN: Final = (
    *(b"0o1", b"o1a", b"1a0", b"00000000-0"),
    *(b"2000-01-01", b"2000-0101", b"200001-01", b"20000101"),
)
"""A part of any constant."""


def shows_constants(response: Response) -> bool:
    """Whether an answer to a request in its canonical form has a constant in it, whole, cut off or in
    capitals: then it is not the answer to the request itself."""
    said = orjson.dumps([response.status, response.patch, response.warnings, response.audit]).lower()
    return any(each in said for each in _SHOWN)


def steady(own: bytes) -> bytes:
    """The constant in place of a name with a random end."""
    return own_name(own, CONSTANT)


def own_name(another: bytes, end: bytes) -> bytes:
    """The name of a replica by that of another one; empty if neither name has a random end."""
    return another[: -len(CONSTANT)] + end


def _written(request: Request, name: str, constant: str) -> bytes:
    return orjson.dumps(
        [
            [request.kind.group, request.kind.kind],
            {
                "operation": request.operation,
                "namespace": request.namespace,
                "name": constant if name and request.name == name else request.name,
                "subresource": request.subresource,
                "resource": request.resource,
                "dry_run": request.dry_run,
                "username": request.username,
            },
            request.groups,
            _steady(request.object, name, constant),
            _steady(request.old_object, name, constant),
        ]
    )


def _generated(obj: Json) -> tuple[str, str]:
    """An object's name and the constant for it, if the API server made its end; else empty texts."""
    metadata = obj.get("metadata")
    if type(metadata) is not dict:
        return "", ""
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if type(name) is not str or type(prefix) is not str or not prefix or not name.startswith(prefix):
        return "", ""
    if not (_END.fullmatch(name, len(prefix)) and _PREFIX.fullmatch(prefix)):
        return "", ""
    return name, prefix + CONSTANT.decode()


def places(request: Request, name: str) -> int:
    """How often a name is in a place of the object's name."""
    found = [request.name, *(text(obj, "metadata", "name") for obj in (request.object, request.old_object))]
    return found.count(name)


def _steady(obj: Json | None, name: str, constant: str) -> Json | None:
    metadata = obj.get("metadata") if obj is not None else None
    if obj is None or type(metadata) is not dict:
        return obj
    changed = {
        key: value
        for key, value in CONSTANTS.items()
        if metadata.get(key) and type(metadata[key]) is type(value)
    }
    if name and metadata.get("name") == name:
        changed["name"] = constant
    return {**obj, "metadata": {**metadata, **changed}} if changed else obj
