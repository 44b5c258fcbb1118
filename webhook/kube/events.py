"""Kubernetes Events.

The name of an Event follows from its content, so that all replicas update the same Event.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import structlog

from policies.kube.json import Json
from policies.kube.names import shortened
from webhook.kube import paths
from webhook.kube.calls import JSON_MERGE, ApiError, Writes

log = structlog.get_logger()

MAX_MESSAGE_LENGTH = 1024
"""The API server refuses longer ones."""


async def warn(api: Writes, regarding: Json, reason: str, message: str) -> None:
    """Record an Event; errors are only logged."""
    try:
        await record(api, regarding, reason, message)
    except ApiError as error:
        name = regarding["metadata"]["name"]
        log.warning("event not recorded", reason=reason, regarding=name, error=str(error))


async def record(
    api: Writes, regarding: Json, reason: str, message: str, *, kind: str = "Warning", key: str = ""
) -> None:
    """Record an Event on the object `regarding` (apiVersion, kind, metadata). Raises ApiError.

    Events with the same object, reason and `key` are one; without a key, those with the same message.
    """
    metadata = regarding["metadata"]
    namespace = metadata.get("namespace") or "default"
    message = shortened(message, MAX_MESSAGE_LENGTH)
    digest = hashlib.sha256(f"{metadata.get('uid')}\0{reason}\0{key or message}".encode()).hexdigest()
    name = f"{metadata['name'][:200]}.{digest[:16]}"
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
        update = {"lastTimestamp": now, "message": message}
        await api.unless_conflict("PATCH", paths.one("v1", "events", name, namespace), update, JSON_MERGE)
