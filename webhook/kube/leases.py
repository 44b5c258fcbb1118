"""What all users of Leases share: their API, and the time of the last renewal."""

from __future__ import annotations

from typing import Final

from policies.kube.json import Json, text
from policies.kube.times import moment_of, seconds_of

LEASES: Final = "coordination.k8s.io/v1"


def renewed_at(lease: Json) -> float | None:
    """When a Lease was last renewed; None if that is not legible."""
    return seconds_of(text(lease, "spec", "renewTime"))


def renewal(identity: str, now: float) -> Json:
    """The fields of a Lease's spec that a renewal sets."""
    return {"holderIdentity": identity, "renewTime": moment_of(now, "microseconds")}
