"""autoscaler-exceeds-room: an autoscaler whose maximum exceeds a quota or the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.accelerators.node_affinity import is_within_limits
from policies.accelerators.placement import kept_apart, placement
from policies.accelerators.requests import GpuAffinity
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import DEPLOYMENT, LEADER_WORKER_SET, ROLLOUT, STATEFUL_SET
from policies.kube.nodes import HOSTNAME
from policies.quotas.quotas import quota_matches
from policies.relations.domains import MAX_NODES, Cause, domains, limits_of
from policies.rollouts.rollouts import autoscaler_of, minimum_replicas

_KEDA: Final = "keda-hpa-"
_KEDA_DEFAULT: Final = 100
"""maxReplicaCount of a ScaledObject that does not set it."""


def check(target: Target, facts: Facts) -> Findings:
    if not target.replicas:
        return
    autoscaler = autoscaler_of(target.kind.kind, target.name, facts)
    if autoscaler is None:
        return
    most, name = autoscaler.spec.max_replicas or 0, autoscaler.name
    least = minimum_replicas(target, facts)
    if most <= least or (most == _KEDA_DEFAULT and name.startswith(_KEDA)):
        return
    for room, why in (*_by_quotas(target, facts), *_by_nodes(target, facts)):
        if least <= room < most:  # another rule judges less than the minimum
            excess = most - int(room)
            yield Finding(
                "spec.replicas",
                f"HorizontalPodAutoscaler {name} may ask for {most} replicas, and {why}: "
                f"{excess} of them {'never runs' if excess == 1 else 'never run'}.",
                f"Set maxReplicas of {name} to {int(room)}, or make room for more.",
            )
            return


def _by_quotas(target: Target, facts: Facts) -> Iterator[tuple[float, str]]:
    for quota in quota_matches(target, facts):
        try:
            room = quota.room()
        except ValueError:
            continue  # the API server refuses such a quantity
        if room is not None:
            yield float(room.replicas), room.text


def _by_nodes(target: Target, facts: Facts) -> Iterator[tuple[float, str]]:
    """Empty unless the settings declare that the cluster gets no other nodes and pools."""
    settings = facts.settings(GpuAffinity)
    nodes = facts.nodes()
    if target.kind == LEADER_WORKER_SET or len(target.templates) != 1 or not nodes:
        return
    [template] = target.templates
    spec = template.typed.spec
    if spec.node_name or not is_within_limits(spec):
        return
    found = placement(template.view, facts)
    if found is not None:
        if found.nodes and (settings.fixed_size or settings.pools):
            room = found.room(one_each=kept_apart(template.typed, HOSTNAME))
            yield room, f"all nodes and pools together fit {room:.0f}"
    elif settings.fixed_size and len(nodes) <= MAX_NODES:
        for limit in limits_of(template):
            usable = None if limit.cause is Cause.SPREAD else domains(spec, limit, nodes)
            if usable is not None and usable.usable:
                room = usable.room(limit)
                yield room, f"{limit.cause.value} ({limit.key}) leaves room for {room:.0f}"


RULE = rule(__name__, check, (DEPLOYMENT, STATEFUL_SET, ROLLOUT, LEADER_WORKER_SET), unowned=True)
