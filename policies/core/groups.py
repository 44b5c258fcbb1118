"""Groups of pods that start together: whether other members wait until a pod is Ready.

If the members wait for a pod's readiness while its server waits for the members, the group never forms. So
probes that delay readiness are added only if no member waits for it.

Source: LeaderWorkerSet v0.9, pkg/controllers/pod_controller.go (startupPolicy LeaderReady: the operator
creates the workers' StatefulSet once the leader is Ready); kubernetes.io, "DNS for Services and Pods".
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from policies.core.facts import Facts, find_by_name
from policies.core.resources import Resource
from policies.kube.group_kinds import LEADER_WORKER_SET, kind_of
from policies.kube.json import Json, dig, integer, text
from policies.kube.metadata import annotations_of, controller, labels_of

LWS_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
LWS_WORKER: Final = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"
STARTUP_POLICY: Final = "startupPolicy"
SIZE: Final = "size"
LEADER_READY: Final = "LeaderReady"
GROUP_FACTOR: Final = 2
"""A restart of one member restarts or stalls its group, so liveness waits this many times as long."""


class Waits(Enum):
    """Whether other members of a pod's group wait until the pod is Ready."""

    NO = auto()
    """No member waits, or the pod has no group."""
    YES = auto()
    """The operator creates the others once this pod is Ready."""
    UNKNOWN = auto()
    """The settings that decide it are unknown."""


def in_leader_worker_set(pod: Json) -> bool:
    """Whether a restart of any container of the pod, init containers included, may recreate its whole group
    (`ContainerRestarted` in pkg/utils/pod)."""
    owner = controller(pod)
    return LWS_NAME in labels_of(pod) or (owner is not None and STARTUP_POLICY in owner)


def leads(pod: Json, facts: Facts) -> Waits | None:
    """Whether the workers of a LeaderWorkerSet wait for the pod; None if the pod is not a leader of one."""
    owner = controller(pod)
    if owner is not None and STARTUP_POLICY in owner:  # the template of the LeaderWorkerSet under review
        alone = integer(owner, SIZE, default=1) == 1
        return Waits.NO if alone or owner[STARTUP_POLICY] != LEADER_READY else Waits.YES
    labels = labels_of(pod)
    if LWS_NAME not in labels or labels.get(LWS_WORKER) != "0":
        return None
    if annotations_of(pod).get(LWS_SIZE) == "1":
        return Waits.NO
    group = find_by_name(facts.listing(Resource.GROUPS), labels[LWS_NAME])
    if group is None:
        return Waits.UNKNOWN
    return Waits.YES if text(group, "spec", STARTUP_POLICY) == LEADER_READY else Waits.NO


def peers_wait(pod: Json, facts: Facts) -> Waits:
    """Whether the other members of a StatefulSet are created, or find this pod by the headless Service, only
    after it is Ready. NO for other pods."""
    if leads(pod, facts) is not None or LWS_NAME in labels_of(pod):
        return Waits.NO  # its Service publishes unready addresses
    owner = controller(pod)
    sets, services = facts.listing(Resource.WORKLOADS), facts.listing(Resource.SERVICES)
    if owner is None or text(owner, "kind") != "StatefulSet":
        return Waits.NO
    if sets is None or services is None:
        return Waits.UNKNOWN
    name = text(owner, "name")
    named = (each for each in sets if text(each, "metadata", "name") == name)
    found = next((each for each in named if each.get("kind") == "StatefulSet"), None)
    if found is None:
        return Waits.UNKNOWN
    if text(found, "spec", "podManagementPolicy") != "Parallel":
        return Waits.YES
    service = find_by_name(services, text(found, "spec", "serviceName"))
    if service is None:
        return Waits.UNKNOWN
    return Waits.NO if dig(service, "spec", "publishNotReadyAddresses") is True else Waits.YES


def leader_of(obj: Json, path: str) -> Json:
    """The startup policy and size of a LeaderWorkerSet, if its leaders are created from the template at a
    path."""
    if kind_of(obj) != LEADER_WORKER_SET:
        return {}
    group = dig(obj, "spec", "leaderWorkerTemplate")
    if not isinstance(group, dict) or (path.endswith("workerTemplate") and group.get("leaderTemplate")):
        return {}
    policy = text(obj, "spec", STARTUP_POLICY) or "LeaderCreated"
    return {STARTUP_POLICY: policy, SIZE: integer(group, "size", default=1)}
