"""Kubernetes Events about what the webhook met, best effort.

The name of an Event is made from its content, so that all replicas update one Event instead of writing
one each.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import structlog

from policies.kube.json import Json
from policies.kube.names import shortened
from webhook.kube import paths
from webhook.kube.calls import JSON_MERGE, Writes
from webhook.kube.errors import ApiError

log = structlog.get_logger()

LONGEST_MESSAGE = 1024
"""The API server refuses longer ones."""


async def warn(api: Writes, regarding: Json, reason: str, message: str) -> None:
    """As `record`; failures are logged only."""
    try:
        await record(api, regarding, reason, message)
    except ApiError as error:
        name = regarding["metadata"]["name"]
        log.warning("event not recorded", reason=reason, regarding=name, error=str(error))


async def record(
    api: Writes, regarding: Json, reason: str, message: str, *, kind: str = "Warning", key: str = ""
) -> None:
    """Record an Event on the object `regarding` (apiVersion, kind, metadata). Raises ApiError.

    Two messages with the same `key` about the same object are one Event; without a key, two that are equal.
    """
    metadata = regarding["metadata"]
    namespace = metadata.get("namespace") or "default"
    message = shortened(message, LONGEST_MESSAGE)
    said = hashlib.sha256(f"{metadata.get('uid')}\0{reason}\0{key or message}".encode()).hexdigest()[:16]
    name = f"{metadata['name'][:200]}.{said}"
    identity = {
        key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion") if key in metadata
    }
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "name": name},
        "involvedObject": {
            "apiVersion": regarding.get("apiVersion", "v1"),
            "kind": regarding.get("kind", ""),
            **identity,
        },
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": "mlchassis"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    if not await api.unless_conflict("POST", paths.collection("v1", "events", namespace), event):
        again = {"lastTimestamp": now, "message": message}
        await api.unless_conflict("PATCH", paths.one("v1", "events", name, namespace), again, JSON_MERGE)
