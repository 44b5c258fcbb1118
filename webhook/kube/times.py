"""Times of the API as seconds since the epoch, and the renewals of Leases."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from policies.kube.json import Json, text


def seconds_of(moment: str) -> float | None:
    """A time of the API in seconds since the epoch; None if it is malformed."""
    try:
        return datetime.fromisoformat(moment).timestamp() if moment else None
    except (ValueError, OverflowError):
        return None


def moment_of(seconds: float, timespec: str = "seconds") -> str:
    """Seconds since the epoch as the API writes them; a MicroTime with `timespec` "microseconds"."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


LEASES: Final = "coordination.k8s.io/v1"


def renewed_at(lease: Json) -> float | None:
    """The time of a Lease's last renewal; None if it is malformed."""
    return seconds_of(text(lease, "spec", "renewTime"))


def renewal(identity: str, now: float) -> Json:
    """The fields of a Lease's spec that a renewal sets."""
    return {"holderIdentity": identity, "renewTime": moment_of(now, "microseconds")}
