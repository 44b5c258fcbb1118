"""The canonical form of a request, which is equal for all replicas of a pod template.

Constants replace uids, times and the random suffixes of names. A name that also occurs elsewhere in the
request is not replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson
from msgspec import Struct
from msgspec.structs import asdict

from policies.kube.group_kinds import POD, GroupKind
from policies.kube.json import Json, text
from webhook.admission.answer import Response
from webhook.admission.envelope import Request

CONSTANTS: Final[Mapping[str, Any]] = {
    "uid": "00000000-0000-0000-0000-000000000000",
    "creationTimestamp": "2000-01-01T00:00:00Z",
    "resourceVersion": "20000101000000",
    "managedFields": [{"manager": "00000000-0000-0000-0000-000000000000"}],
}
"""Constants for metadata of a single replica. A missing field stays missing."""
RANDOM: Final = b"bcdfghjklmnpqrstvwxz2456789"
"""Characters of the API server's random name suffixes, which have five characters."""
CONSTANT: Final = b"0o1a0"
"""The constant for a suffix; none of its characters is in RANDOM."""
TOKEN_PREFIX: Final = b"kube-api-access-"
_END: Final = re.compile(rf"[{RANDOM.decode()}]{{5}}")
_PREFIX: Final = re.compile(r"[a-z0-9.-]*")
_TOKEN: Final = re.compile(rb'"kube-api-access-([a-z0-9]{5})"')


class Canonical(Struct, frozen=True):
    """A request without the values of a single replica."""

    text: bytes
    """The request without its uid, as JSON."""
    name: bytes = b""
    """The name of the object if a constant replaces it, else empty."""
    token: bytes = b""
    """The name of the service account token's volume if a constant replaces it, else empty."""

    @classmethod
    def of(cls, request: Request) -> Canonical | None:
        """The canonical form; None if the engine does not read the request, or JSON can't represent it."""
        return request.cache.once(cls._of, request)

    @classmethod
    def _of(cls, request: Request) -> Canonical | None:
        obj = request.object
        if obj is None or request.operation not in ("CREATE", "UPDATE"):
            return None
        # Only Pods: rules find other objects by their names in listings.
        name, constant = _generated(obj) if request.kind == POD else ("", "")
        try:
            written = _written(request, name, constant)
            if name and (
                name.encode() in written or written.count(constant.encode()) != places(request, name)
            ):
                name = constant = ""  # the name also occurs elsewhere
                written = _written(request, "", "")
        except orjson.JSONEncodeError:  # nested too deeply
            return None
        tokens = _TOKEN.findall(written)
        if not tokens or not len(tokens) == tokens.count(tokens[0]) == written.count(TOKEN_PREFIX):
            return cls(written, name.encode())
        token = TOKEN_PREFIX + tokens[0]
        return cls(written.replace(token, with_constant(token)), name.encode(), token)

    def request(self) -> Request:
        """The request for the engine, made from the canonical text only."""
        kind, rest, groups, obj, old = orjson.loads(self.text)
        return Request("", GroupKind(*kind), **rest, groups=tuple(groups), object=obj, old_object=old)


_SHOWN: Final = (
    *(b"0o1", b"o1a", b"1a0", b"00000000-0"),
    *(b"2000-01-01", b"2000-0101", b"200001-01", b"20000101"),
)
"""Parts of the constants: each part that identifies a constant contains one of these."""


def shows_constants(response: Response) -> bool:
    """Whether an answer to a canonical request contains a constant, also shortened or in capitals: then it is
    not the answer to the original request."""
    status = response.status and asdict(response.status)
    written = orjson.dumps([status, response.patch, response.warnings, response.audit]).lower()
    return any(each in written for each in _SHOWN)


def with_constant(own: bytes) -> bytes:
    """A name with the constant instead of its random suffix."""
    return name_of_replica(own, CONSTANT)


def name_of_replica(another: bytes, end: bytes) -> bytes:
    """The name of a replica, from its suffix and another replica's name; empty if names have no suffix."""
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
    """An object's name and the constant for it if the name has a random suffix, else empty texts."""
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
    """How many of the fields for the object's name contain `name`."""
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
    if "managedFields" in changed and (applied := _applied(metadata["managedFields"])):
        changed["managedFields"] = [*changed["managedFields"], *applied]
    if name and metadata.get("name") == name:
        changed["name"] = constant
    return {**obj, "metadata": {**metadata, **changed}} if changed else obj


def _applied(managed: list[Any]) -> list[Json]:
    """The fields that server-side apply set, which decisions depend on. Controllers do not apply their
    replicas."""
    return [
        {"operation": "Apply", "fieldsV1": each.get("fieldsV1")}
        for each in managed
        if type(each) is dict and each.get("operation") == "Apply"
    ]
