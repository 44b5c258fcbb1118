"""autoscaler-exceeds-room: an autoscaler whose maximum exceeds a quota, the nodes or Karpenter's limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.placement import kept_apart, placement
from policies.core.autoscalers import autoscaler_of
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.kube.group_kinds import (
    INFERENCE_SERVICE,
    LEADER_WORKER_SET,
    RAY_KINDS,
    SERVING,
)
from policies.kube.objects.nodes import HOSTNAME, Node, NodePool
from policies.kube.objects.ray import RayObject
from policies.kube.objects.scaling import KEDA_MOST
from policies.kube.scheduling import is_within_limits
from policies.quotas.quotas import quota_matches
from policies.relations.domains import MAX_NODES, DomainCause, domains, limits_of
from policies.relations.node_pools import bound_of
from policies.rollouts.rollouts import made_autoscalers, minimum_replicas

_KEDA: Final = "keda-hpa-"
_OWN_MACHINES: Final = ("", "k3s", "kind", "minikube", "rke2")
"""The beginnings of a node's providerID outside of clouds."""
_RAY_DEFAULT: Final = 2**31 - 1
"""maxReplicas of a worker group that does not set it."""


class _Scaled(Struct, frozen=True):
    """The pods that an autoscaler adds."""

    path: str
    name: str
    """The autoscaler, as the start of a sentence."""
    field: str
    """The field with its maximum, as a part of a sentence."""
    least: int
    most: int
    pods: str = "replicas"
    template: PodTemplate | None = None
    """None for replicas of several pods."""


def check(target: Target, facts: Facts) -> Findings:
    for scaled in _scaled(target, facts):
        for room, why, sure in (*_by_quotas(target, scaled, facts), *_by_nodes(scaled, facts)):
            if scaled.least <= room < scaled.most:  # another rule judges less than the minimum
                certainty = Certainty.CERTAIN if sure else Certainty.UNDECIDED
                excess = scaled.most - int(room)
                yield Finding(
                    scaled.path,
                    f"{scaled.name} may scale to {scaled.most} {scaled.pods}, but {why}. "
                    f"{excess} of them {'never runs' if excess == 1 else 'never run'}.",
                    f"Set {scaled.field} to {int(room)}, or make room for more.",
                    certainty,
                )
                break


def _scaled(target: Target, facts: Facts) -> Iterator[_Scaled]:
    if target.kind in RAY_KINDS:
        yield from _by_ray(target)
    elif target.kind == INFERENCE_SERVICE:
        for made in made_autoscalers(target):
            component, field = made.path.split(".")[1:]
            of = f"of the {component}"
            yield _Scaled(
                made.path,
                f"The autoscaler {of}",
                f"{field} {of}",
                made.least,
                made.most,
                template=made.template,
            )
    elif target.replicas:
        autoscaler = autoscaler_of(target.kind.kind, target.name, facts)
        if autoscaler is None:
            return
        most = autoscaler.spec.max_replicas or 0
        if most == KEDA_MOST and autoscaler.name.startswith(_KEDA):
            return
        field = "maxReplicaCount" if autoscaler.is_kedas else "maxReplicas"
        several = target.kind == LEADER_WORKER_SET or len(target.templates) != 1
        yield _Scaled(
            "spec.replicas",
            autoscaler.title,
            f"{field} of {autoscaler.title.rpartition(' ')[2]}",
            minimum_replicas(target, facts),
            most,
            template=None if several else target.templates[0],
        )


def _by_ray(target: Target) -> Iterator[_Scaled]:
    """The worker groups of a Ray cluster with autoscaling."""
    cluster = target.read(RayObject).cluster
    for template in target.templates if cluster.enable_in_tree_autoscaling else ():
        before, marker, _ = template.path.partition(".workerGroupSpecs[")
        if not marker or template.entry is None:
            continue
        group = cluster.worker_group_specs[template.entry]
        if group.max_replicas is not None and group.max_replicas < _RAY_DEFAULT and group.num_of_hosts == 1:
            yield _Scaled(
                f"{before}.workerGroupSpecs[{template.entry}].maxReplicas",
                "Ray's autoscaler",
                f"maxReplicas of group {group.group_name}",
                group.min_replicas,
                group.max_replicas,
                f"pods of group {group.group_name}",
                template,
            )


def _by_quotas(target: Target, scaled: _Scaled, facts: Facts) -> Iterator[tuple[float, str, bool]]:
    for quota in quota_matches(target, facts):
        if scaled.path != "spec.replicas" and (
            quota.templates != (scaled.template,) or quota.pods[0].count != 1
        ):
            continue
        try:
            room = quota.room()
        except ValueError:
            continue  # the API server refuses such a quantity
        if room is not None:
            yield float(room.replicas), room.text, True


def _by_nodes(scaled: _Scaled, facts: Facts) -> Iterator[tuple[float, str, bool]]:
    """Empty unless the settings declare that the cluster gets no other nodes and pools, Karpenter's NodePools
    have limits, or no node is a machine of a cloud, which may add others."""
    template, settings = scaled.template, facts.settings(GpuAffinity)
    if template is None or template.typed.spec.node_name or not is_within_limits(template.typed.spec):
        return
    if not settings.knows_all_nodes:
        bound = bound_of(template, facts)
        if bound is not None:
            reason = f"the limits of Karpenter's nodes leave room for {bound.room} ({bound.limits})"
            yield bound.room, reason, True
            return
        if not _are_machines_of_the_owner(facts):
            return
    nodes, found = facts.nodes(), placement(template.view, facts)
    if not nodes:
        return
    if found is not None:
        if found.nodes:
            room = found.room(one_each=kept_apart(template.typed, HOSTNAME))
            yield room, f"all nodes and pools together fit only {room:.0f}", settings.knows_all_nodes
    elif settings.fixed_size and len(nodes) <= MAX_NODES:
        for limit in limits_of(template):
            usable = None if limit.cause is DomainCause.SPREAD else domains(template.typed.spec, limit, nodes)
            if usable is not None and usable.usable:
                room = usable.room(limit)
                yield room, f"{limit.cause.value} ({limit.key}) leaves room for only {room:.0f}", True


def _are_machines_of_the_owner(facts: Facts) -> bool:
    """Whether no known node comes from a cloud, and Karpenter adds none."""
    nodes = facts.cluster_objects(Node)
    if not nodes or len(nodes) > MAX_NODES or facts.cluster_objects(NodePool) or facts.is_unread(NodePool):
        return False
    return all(each.spec.provider_id.partition("://")[0] in _OWN_MACHINES for each in nodes)


RULE = rule(
    __name__,
    check,
    (*SERVING, LEADER_WORKER_SET, INFERENCE_SERVICE, *RAY_KINDS),
    unowned=True,
)
