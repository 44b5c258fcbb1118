"""Groups of pods that start together: whether other members wait until a pod is Ready.

If the members wait for a pod's readiness while its server waits for the members, the group never forms. So
probes that delay readiness are added only if no member waits for it.

Source: LeaderWorkerSet v0.9, pkg/controllers/pod_controller.go (startupPolicy LeaderReady: the operator
creates the workers' StatefulSet once the leader is Ready); kubernetes.io, "DNS for Services and Pods".
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.core.target import PodTemplate, Target
from policies.kube.group_kinds import LEADER_WORKER_SET, kind_of
from policies.kube.json import Json, dig, integer, text
from policies.kube.objects.metadata import ObjectMeta
from policies.kube.objects.workloads import LeaderWorkerSet

RAY_CLUSTER_NAME: Final = "ray.io/cluster"
RAY_GROUP: Final = "ray.io/group"
RAY_NODE_TYPE: Final = "ray.io/node-type"
RAY_SERVES: Final = "ray.io/serve"
"""The label of the pods of a RayService, false on its head."""
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


def in_leader_worker_set(pod: ObjectMeta) -> bool:
    """Whether a restart of any container of the pod, init containers included, may recreate its whole group
    (`ContainerRestarted` in pkg/utils/pod)."""
    owner = pod.controller
    return LWS_NAME in pod.labels or (owner is not None and bool(owner.startup_policy))


def labels_of_pods(target: Target, template: PodTemplate) -> dict[str, str]:
    """The labels of a template's pods, with the name that LeaderWorkerSet's operator adds."""
    labels = dict(template.typed.metadata.labels)
    return labels | {LWS_NAME: target.name} if target.kind == LEADER_WORKER_SET else labels


def leads(pod: PodView, facts: Facts) -> Waits | None:
    """Whether the workers of a LeaderWorkerSet wait for the pod; None if the pod is not a leader of one."""
    metadata, owner = pod.typed.metadata, pod.owner
    labels = metadata.labels
    if owner is not None and owner.startup_policy:  # the template of the LeaderWorkerSet under review
        return Waits.NO if owner.size == 1 or owner.startup_policy != LEADER_READY else Waits.YES
    if LWS_NAME not in labels or labels.get(LWS_WORKER) != "0":
        return None
    if metadata.annotations.get(LWS_SIZE) == "1":
        return Waits.NO
    groups = facts.objects(LeaderWorkerSet)
    group = None if groups is None else groups.named(labels[LWS_NAME])
    if group is None:
        return Waits.UNKNOWN
    return Waits.YES if group.spec.startup_policy == LEADER_READY else Waits.NO


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
