"""rollout-quota-deadlock: a rollout whose new pod a full ResourceQuota refuses."""

from __future__ import annotations

from decimal import Decimal

from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import DEPLOYMENT, LEADER_WORKER_SET, RAY_SERVICE, ROLLOUT
from policies.kube.objects.limits import ResourceQuota
from policies.kube.objects.ray import RayService
from policies.quotas.limit_ranges import amounts, formatted
from policies.quotas.quotas import (
    QuotaMatch,
    covers,
    in_use,
    is_running,
    pods_of,
    quota_matches,
    used_by_other_manifests,
)
from policies.rollouts.rollouts import RollingUpdate, RolloutOutcome, outcome


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == RAY_SERVICE:
        yield from _second_cluster(target, facts)
        return
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
        return _stuck(target, each.update, f"{room.text}, and all of them run", Certainty.CERTAIN)
    if in_empty_namespace is RolloutOutcome.SHORT or each.update.unavailable:
        return None  # quota-exceeded reports the first; in the second an old pod makes room
    used = in_use(each.quota)
    if used is None:
        return _among_manifests(target, each, facts)
    room = each.room(used) if is_running(target, each.quota, facts) else None
    if room is None or room.replicas >= each.update.first:
        return None
    full = (
        f"ResourceQuota {room.quota} has {room.amount(room.used)} of {room.limit} in use now, "
        f"and one more replica takes {room.each}"
    )
    return _stuck(target, each.update, full, Certainty.LIKELY)


def _among_manifests(target: Target, each: QuotaMatch, facts: Facts) -> Finding | None:
    """A rollout that is stuck while the other workloads of the same manifests run."""
    used, _ = used_by_other_manifests(target, each.quota, facts)
    room = each.room(used)
    if room is None or outcome(each.update, float(room.replicas)) is not RolloutOutcome.STUCK:
        return None
    full = (
        f"ResourceQuota {room.quota} allows {room.limit}. The other workloads of this set take "
        f"{room.amount(room.used)}, and each replica takes {room.each}, "
        "so one more does not fit"
    )
    return _stuck(target, each.update, full, Certainty.LIKELY)


def _second_cluster(target: Target, facts: Facts) -> Findings:
    """A finding about a RayService, whose upgrade starts a second cluster before it removes the first."""
    spec, quotas = target.read(RayService).spec, facts.objects(ResourceQuota)
    if not quotas or target.has_controller or spec.upgrade_strategy.type == "None":
        return
    groups = spec.ray_cluster_config.worker_group_specs
    cluster = [
        pods_of(
            template.view,
            1 if template.entry is None else groups[template.entry].pods,
            facts,
            template.workload,
        )
        for template in target.templates
    ]
    for quota in quotas:
        usage: dict[str, Decimal] = {}
        for pods in cluster:
            if pods is None or not covers(quota, pods):
                return
            for name, amount in pods.usage.items():
                usage[name] = usage.get(name, Decimal(0)) + amount
        try:
            hard = amounts(quota.spec.hard)
        except ValueError:
            continue  # a quantity that no API server accepts
        for name in sorted(hard.keys() & usage.keys()):
            if usage[name] <= hard[name] < 2 * usage[name]:
                yield Finding(
                    "spec.upgradeStrategy",
                    "An upgrade starts a second cluster before it removes the first. Each takes "
                    f"{formatted(name, usage[name])} {name}, and ResourceQuota {quota.name} allows "
                    f"{formatted(name, hard[name])}. It refuses pods of the new cluster, which never becomes "
                    "ready.",
                    "Raise the quota to twice the cluster, or set upgradeStrategy.type: None and accept an "
                    "interruption.",
                    Certainty.LIKELY,
                )
                return


def _stuck(target: Target, update: RollingUpdate, full: str, certainty: Certainty) -> Finding:
    starts = "a new group" if target.kind == LEADER_WORKER_SET else update.starts
    return Finding(
        update.path,
        f"{full}. A rollout starts {starts} before it stops an old one. The quota refuses "
        f"{update.either('the new one', 'some of them')}, and the rollout never completes.",
        f"{update.in_place}, or raise the quota{update.either(' by one replica', '')}.",
        certainty,
    )


RULE = rule(__name__, check, (DEPLOYMENT, ROLLOUT, LEADER_WORKER_SET, RAY_SERVICE), unowned=True)
