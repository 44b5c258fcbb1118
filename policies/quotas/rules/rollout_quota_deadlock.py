"""rollout-quota-deadlock: a rollout whose new pod a full ResourceQuota refuses."""

from __future__ import annotations

from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import DEPLOYMENT, LEADER_WORKER_SET
from policies.quotas.limit_ranges import shown
from policies.quotas.quotas import Judged, in_use, is_running, judged, others_in_set
from policies.rollouts.rollouts import Outcome, outcome


def check(target: Target, facts: Facts) -> Findings:
    for each in judged(target, facts):
        try:
            found = _finding(target, each, facts)
        except ValueError:
            continue  # a quantity that no API server accepts
        if found is not None:
            yield found
            return


def _finding(target: Target, each: Judged, facts: Facts) -> Finding | None:
    room = each.room()
    if room is None:
        return None
    by_itself = outcome(each.update, float(room.replicas))
    if by_itself is Outcome.STUCK:
        full = f"ResourceQuota {room.quota} has room for {room.such} ({room.terms}), and all of them run"
        return _stuck(target, full, Certainty.CERTAIN)
    if by_itself is Outcome.SHORT or each.update.unavailable:
        return None  # quota-exceeded reports the first; in the second an old pod makes room
    used = in_use(each.quota)
    if used is None:
        return _in_set(target, each, facts)
    room = each.room(used) if is_running(target, facts) else None
    if room is None or room.replicas >= 1:
        return None
    full = (
        f"ResourceQuota {room.quota} has {shown(room.resource, room.taken)} of {room.allowed} in use now, "
        f"and one more replica takes {shown(room.resource, room.each)}"
    )
    return _stuck(target, full, Certainty.LIKELY)


def _in_set(target: Target, each: Judged, facts: Facts) -> Finding | None:
    """A rollout that is stuck while the other workloads of the same manifests run."""
    taken, _ = others_in_set(target, each.quota, facts)
    room = each.room(taken)
    if room is None or outcome(each.update, float(room.replicas)) is not Outcome.STUCK:
        return None
    full = (
        f"ResourceQuota {room.quota} allows {room.allowed}. The other workloads of this set take "
        f"{shown(room.resource, room.taken)}, and each replica takes {shown(room.resource, room.each)}, "
        "so one more does not fit"
    )
    return _stuck(target, full, Certainty.LIKELY)


def _stuck(target: Target, full: str, certainty: Certainty) -> Finding:
    groups = target.kind == LEADER_WORKER_SET
    strategy = "rolloutStrategy.rollingUpdateConfiguration" if groups else "strategy.rollingUpdate"
    return Finding(
        f"spec.{strategy}.maxUnavailable",
        f"{full}. A rollout starts a new {'group' if groups else 'pod'} before it stops an old one: "
        "the quota refuses it, and the rollout never completes.",
        "Set maxUnavailable to 1 and maxSurge to 0, or raise the quota by one replica.",
        certainty,
    )


RULE = rule(__name__, check, (DEPLOYMENT, LEADER_WORKER_SET))
