"""Queues of Kueue and of gang schedulers: whether a workload names one, and which one it should name."""

from __future__ import annotations

from typing import Final

from policies.core.facts import Facts
from policies.core.target import Target
from policies.kube.json import Json, dig, mapping, text
from policies.kube.metadata import annotations_of, labels_of
from policies.kube.names import is_subdomain
from policies.kube.objects.queues import QUEUE_NAME, LocalQueue

_QUEUE_LABELS: Final = (
    QUEUE_NAME,
    "kueue.x-k8s.io/pod-group-name",
    "volcano.sh/queue-name",
    "ray.io/scheduler-name",
    "ray.io/gang-scheduling-enabled",
    "ray.io/priority-class-name",
    "yunikorn.apache.org/task-group-name",
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io/name",
    "kai.scheduler/queue",
    "runai/queue",
    "queue",
)
"""Labels and annotations for a gang scheduler or a queue."""
_QUEUE_ANNOTATIONS: Final = (
    "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/queue-name",
    *_QUEUE_LABELS,
)

_DEFAULT: Final = "default"
"""A LocalQueue of this name takes workloads that name none (Kueue 0.10 and later, LocalQueueDefaulting)."""
SUSPENDED_GROUPS: Final = (
    "batch",
    "jobset.x-k8s.io",
    "kubeflow.org",
    "trainer.kubeflow.org",
    "ray.io",
    "workload.codeflare.dev",
)
"""The groups of the kinds that Kueue suspends (pkg/controller/jobs of Kueue 0.14)."""
_NOT: Final = ("CronJob", "Experiment", "Trial", "TrainingRuntime", "ClusterTrainingRuntime")


def queue_to_name(target: Target, facts: Facts) -> str:
    """The name of a LocalQueue of the namespace, if Kueue counts only workloads that name one and the
    workload names no queue; else empty."""
    queues = facts.objects(LocalQueue)
    if not queues or target.kind.group not in SUSPENDED_GROUPS or target.kind.kind in _NOT:
        return ""
    names = sorted(each.name for each in queues)
    if _DEFAULT in names or not all(map(is_subdomain, names)):
        return ""  # a name such as queue-${TEAM} is no name yet, and may become any
    # Kueue reads the annotation, which is deprecated, if there is no such label.
    if is_queued(target.obj):
        return ""
    return "" if any(is_queued(each.pod) for each in target.templates) else names[0]


def is_queued(obj: Json) -> bool:
    """Whether a workload or a pod names a queue, or a scheduler other than Kubernetes' own."""
    spec = mapping(obj, "spec")
    if text(spec, "schedulerName") not in ("", "default-scheduler"):
        return True
    if dig(spec, "runPolicy", "schedulingPolicy") is not None or spec.get("schedulingGates"):
        return True
    if spec.get("schedulingGroup") is not None or spec.get("workloadRef") is not None:
        return True  # Kubernetes' own gang scheduling, KEP-4671
    return any(key in labels_of(obj) for key in _QUEUE_LABELS) or any(
        key in annotations_of(obj) for key in _QUEUE_ANNOTATIONS
    )
