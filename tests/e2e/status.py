"""What the status of an object shows: predicates for `Api.wait`."""

from __future__ import annotations

from collections.abc import Callable

from tests.e2e.api import JSON


def has_condition(kind: str, status: str = "True", *, says: str = "") -> Callable[[JSON], bool]:
    """Whether an object has a condition of that type and status, with this in its message."""

    def holds(item: JSON) -> bool:
        conditions = item.get("status", {}).get("conditions") or ()
        return any(
            (each["type"], each["status"]) == (kind, status) and says in each.get("message", "")
            for each in conditions
        )

    return holds


established = has_condition("Established")
is_ready = has_condition("Ready")


def finished(job: JSON) -> str | None:
    """How a Job has ended: "Complete" or "Failed"."""
    return next((kind for kind in ("Complete", "Failed") if has_condition(kind)(job)), None)


def rolled_out(deployment: JSON) -> bool:
    """Whether all replicas of a Deployment are available and of its last revision, and no others are left."""
    status = deployment.get("status", {})
    counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "availableReplicas")]
    current = status.get("observedGeneration") == deployment["metadata"]["generation"]
    return bool(current and counts == [deployment["spec"]["replicas"]] * 3)


def unschedulable(pod: JSON) -> bool:
    """Whether the scheduler found no node for the pod."""
    return any(each.get("reason") == "Unschedulable" for each in pod["status"].get("conditions", ()))
