"""Leases: the API version, and the fields of a renewal."""

from __future__ import annotations

from typing import Final

from policies.kube.json import Json, text
from policies.kube.times import moment_of, seconds_of

LEASES: Final = "coordination.k8s.io/v1"


def renewed_at(lease: Json) -> float | None:
    """The time of a Lease's last renewal; None if it is malformed."""
    return seconds_of(text(lease, "spec", "renewTime"))


def renewal(identity: str, now: float) -> Json:
    """The fields of a Lease's spec that a renewal sets."""
    return {"holderIdentity": identity, "renewTime": moment_of(now, "microseconds")}
