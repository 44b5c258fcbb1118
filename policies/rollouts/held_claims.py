"""ReadWriteOnce claims that two workloads mount: pods on two nodes can't both have the volume."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.contracts import Facts, Target
from policies.core.listing import TypedIndex
from policies.core.volumes import keeps_others_waiting
from policies.kube.objects.nodes import HOSTNAME, only_node, pinned_to_one_node
from policies.kube.objects.pods import PodSpec
from policies.kube.objects.storage import PersistentVolumeClaim
from policies.kube.objects.workloads import Replicated
from policies.rollouts.rollouts import minimum_of


def user_elsewhere(
    target: Target, pod: PodSpec, claim: PersistentVolumeClaim, facts: Facts
) -> Replicated | None:
    """Another workload that mounts a ReadWriteOnce claim of a pod, maybe on another node. The webhook's
    caches keep no volumes of other workloads: it is found in files and by a scan."""
    workloads = facts.objects(Replicated) if facts.whole is not None else None
    if not workloads or claim.spec.access_modes != ("ReadWriteOnce",):
        return None
    for other in workloads.by(_BY_CLAIM, claim.name):
        if (other.kind, other.name) == (target.kind.kind, target.name) or not minimum_of(other, facts):
            continue
        if _may_be_apart(pod, other.spec.template.spec, claim, facts):
            return other
    return None


def is_together(pod: PodSpec) -> bool:
    """Whether a pod only runs on a node with certain other pods."""
    return any(term.topology_key == HOSTNAME for term in pod.affinity.pod_affinity.required)


def _may_be_apart(pod: PodSpec, other: PodSpec, claim: PersistentVolumeClaim, facts: Facts) -> bool:
    here, there = only_node(pod), only_node(other)
    if here and there:
        return here != there
    fixed = (pinned_to_one_node(each) or is_together(each) for each in (pod, other))
    return not any(fixed) and keeps_others_waiting(claim, facts)


def _claims_mounted(workload: Replicated) -> Iterator[str]:
    sources = (each.persistent_volume_claim for each in workload.spec.template.spec.volumes)
    yield from dict.fromkeys(each.claim_name for each in sources if each is not None)


_BY_CLAIM: Final = TypedIndex(Replicated, _claims_mounted)
"""The workloads by each claim that their pods mount."""
