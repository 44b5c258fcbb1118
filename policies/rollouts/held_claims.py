"""ReadWriteOnce claims that two workloads mount: pods on two nodes can't both have the volume."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from policies.core.contracts import Facts, Target
from policies.core.listing import Index, TypedIndex
from policies.core.volumes import keeps_others_waiting
from policies.kube.group_kinds import DAEMON_SET, POD
from policies.kube.json import Json
from policies.kube.objects.nodes import HOSTNAME, only_node, pinned_to_one_node
from policies.kube.objects.pods import Pod, PodSpec
from policies.kube.objects.reading import read, readable
from policies.kube.objects.storage import PersistentVolumeClaim
from policies.kube.objects.workloads import PodController, Replicated
from policies.rollouts.rollouts import minimum_of


class ClaimUser(Struct, frozen=True):
    """A workload, or a Pod without a controller, that mounts a claim for as long as it exists."""

    name: str
    """With its kind."""
    pod: PodSpec
    exists: bool = False
    """Whether it is in a cluster, and not only in a manifest."""


def user_elsewhere(
    target: Target, pod: PodSpec, claim: PersistentVolumeClaim, facts: Facts
) -> ClaimUser | None:
    """Another workload that mounts a ReadWriteOnce claim of a pod, maybe on another node."""
    return next(users_elsewhere(target, pod, claim, facts), None)


def users_elsewhere(
    target: Target, pod: PodSpec, claim: PersistentVolumeClaim, facts: Facts
) -> Iterator[ClaimUser]:
    """All of them. The webhook's caches keep no volumes of other workloads: they are found in files and by a
    scan."""
    if claim.spec.access_modes == ("ReadWriteOnce",):
        for user in _users(target, claim.name, facts):
            if _may_be_apart(pod, user.pod, claim, facts):
                yield user


def _users(target: Target, claim: str, facts: Facts) -> Iterator[ClaimUser]:
    """The other workloads that mount a claim."""
    if facts.whole is None:
        return
    workloads = facts.objects(Replicated)
    for other in workloads.by(_BY_CLAIM, claim) if workloads else ():
        # Two kinds with one name, in different files, are alternatives.
        if other.name != target.name and minimum_of(other, facts):
            yield ClaimUser(f"{other.kind} {other.name}", other.spec.template.spec, other.exists)
    for daemon in facts.whole.typed(DAEMON_SET, facts.namespace, PodController):
        if daemon.name != target.name and claim in claims_mounted(daemon.spec.template.spec):
            yield ClaimUser(f"DaemonSet {daemon.name}", daemon.spec.template.spec, daemon.exists)
    for obj in facts.whole.other_pods(facts.namespace).by(_PODS_BY_CLAIM)[claim]:
        single = read(obj, Pod)
        if (POD, single.name) != (target.kind, target.name):
            yield ClaimUser(f"Pod {single.name}", single.spec, single.exists)


def server_elsewhere(
    target: Target, pod: PodSpec, claim: PersistentVolumeClaim, facts: Facts
) -> ClaimUser | None:
    """A workload that mounts a ReadWriteOnce claim of a pod that ends, and runs on nodes with another value
    of a label that the pod selects."""
    if claim.spec.access_modes != ("ReadWriteOnce",) or not pod.node_selector:
        return None
    for user in _users(target, claim.name, facts):
        others = user.pod.node_selector
        if any(others.get(key, value) != value for key, value in pod.node_selector.items()):
            return user if keeps_others_waiting(claim, facts) else None
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


def claims_mounted(pod: PodSpec) -> Iterator[str]:
    """The names of the claims that a pod mounts."""
    sources = (each.persistent_volume_claim for each in pod.volumes)
    yield from dict.fromkeys(each.claim_name for each in sources if each is not None)


_BY_CLAIM: Final = TypedIndex(Replicated, lambda workload: claims_mounted(workload.spec.template.spec))
"""The workloads by each claim that their pods mount."""


def _claims_of_pod(obj: Json) -> Iterator[str]:
    pod = readable(obj, Pod)
    yield from () if pod is None else claims_mounted(pod.spec)


_PODS_BY_CLAIM: Final = Index(_claims_of_pod)
