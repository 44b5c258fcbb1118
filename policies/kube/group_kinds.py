"""Group and kind: how Kubernetes names a type without its version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from policies.kube.json import Json, text


@dataclass(frozen=True, slots=True)
class Kind:
    """A Kubernetes kind without its version: versions are the API server's to convert."""

    group: str
    kind: str

    def __str__(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


def kind_of(obj: Json) -> Kind:
    group, slash, _ = text(obj, "apiVersion").rpartition("/")
    return Kind(group if slash else "", text(obj, "kind"))


POD: Final = Kind("", "Pod")


SERVICE: Final = Kind("", "Service")


CONFIG_MAP: Final = Kind("", "ConfigMap")


DEPLOYMENT: Final = Kind("apps", "Deployment")


STATEFUL_SET: Final = Kind("apps", "StatefulSet")


DAEMON_SET: Final = Kind("apps", "DaemonSet")


REPLICA_SET: Final = Kind("apps", "ReplicaSet")


JOB: Final = Kind("batch", "Job")


CRON_JOB: Final = Kind("batch", "CronJob")


DISRUPTION_BUDGET: Final = Kind("policy", "PodDisruptionBudget")


RAY_CLUSTER: Final = Kind("ray.io", "RayCluster")


RAY_JOB: Final = Kind("ray.io", "RayJob")


RAY_SERVICE: Final = Kind("ray.io", "RayService")


INFERENCE_SERVICE: Final = Kind("serving.kserve.io", "InferenceService")


JOB_SET: Final = Kind("jobset.x-k8s.io", "JobSet")


LEADER_WORKER_SET: Final = Kind("leaderworkerset.x-k8s.io", "LeaderWorkerSet")
