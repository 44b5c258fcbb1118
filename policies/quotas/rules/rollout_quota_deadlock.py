"""rollout-quota-deadlock: a rollout whose new pod a full ResourceQuota refuses."""

from __future__ import annotations

from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import DEPLOYMENT, LEADER_WORKER_SET
from policies.quotas.quotas import QuotaMatch, in_use, is_running, quota_matches, used_by_other_manifests
from policies.rollouts.rollouts import RolloutOutcome, outcome


def check(target: Target, facts: Facts) -> Findings:
    for each in quota_matches(target, facts):
        try:
            found = _finding(target, each, facts)
        except ValueError:
            continue  # a quantity that no API server accepts
        if found is not None:
            yield found
            return


def _finding(target: Target, each: QuotaMatch, facts: Facts) -> Finding | None:
    room = each.room()
    if room is None:
        return None
    in_empty_namespace = outcome(each.update, float(room.replicas))
    if in_empty_namespace is RolloutOutcome.STUCK:
        return _stuck(target, f"{room.text}, and all of them run", Certainty.CERTAIN)
    if in_empty_namespace is RolloutOutcome.SHORT or each.update.unavailable:
        return None  # quota-exceeded reports the first; in the second an old pod makes room
    used = in_use(each.quota)
    if used is None:
        return _among_manifests(target, each, facts)
    room = each.room(used) if is_running(target, each.quota, facts) else None
    if room is None or room.replicas >= 1:
        return None
    full = (
        f"ResourceQuota {room.quota} has {room.amount(room.used)} of {room.limit} in use now, "
        f"and one more replica takes {room.amount(room.per_replica)}"
    )
    return _stuck(target, full, Certainty.LIKELY)


def _among_manifests(target: Target, each: QuotaMatch, facts: Facts) -> Finding | None:
    """A rollout that is stuck while the other workloads of the same manifests run."""
    used, _ = used_by_other_manifests(target, each.quota, facts)
    room = each.room(used)
    if room is None or outcome(each.update, float(room.replicas)) is not RolloutOutcome.STUCK:
        return None
    full = (
        f"ResourceQuota {room.quota} allows {room.limit}. The other workloads of this set take "
        f"{room.amount(room.used)}, and each replica takes {room.amount(room.per_replica)}, "
        "so one more does not fit"
    )
    return _stuck(target, full, Certainty.LIKELY)


def _stuck(target: Target, full: str, certainty: Certainty) -> Finding:
    groups = target.kind == LEADER_WORKER_SET
    strategy = "rolloutStrategy.rollingUpdateConfiguration" if groups else "strategy.rollingUpdate"
    return Finding(
        f"spec.{strategy}.maxUnavailable",
        f"{full}. A rollout starts a new {'group' if groups else 'pod'} before it stops an old one. The "
        "quota refuses the new one, and the rollout never completes.",
        "Set maxUnavailable to 1 and maxSurge to 0, or raise the quota by one replica.",
        certainty,
    )


RULE = rule(__name__, check, (DEPLOYMENT, LEADER_WORKER_SET), unowned=True)
