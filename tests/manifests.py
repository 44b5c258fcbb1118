"""Kubernetes objects as plain JSON, without the lines that all have."""

from __future__ import annotations

from typing import Any

KINDS = {
    "apps/v1": "DaemonSet Deployment StatefulSet",
    "autoscaling/v2": "HorizontalPodAutoscaler",
    "batch/v1": "CronJob Job",
    "policy/v1": "Eviction PodDisruptionBudget",
    "coordination.k8s.io/v1": "Lease",
    "scheduling.k8s.io/v1": "PriorityClass",
    "v1": (
        "ConfigMap LimitRange Namespace Node PersistentVolume PersistentVolumeClaim Pod "
        "ReplicationController ResourceQuota Secret Service ServiceAccount"
    ),
    "admissionregistration.k8s.io/v1": "MutatingWebhookConfiguration ValidatingWebhookConfiguration",
    "apiextensions.k8s.io/v1": "CustomResourceDefinition",
    "argoproj.io/v1alpha1": "Rollout Workflow WorkflowTaskResult",
    "jobset.x-k8s.io/v1alpha2": "JobSet",
    "karpenter.sh/v1": "NodePool",
    "keda.sh/v1alpha1": "ScaledObject",
    "kubeflow.org/v1": "PyTorchJob",
    "kubeflow.org/v2beta1": "MPIJob",
    "leaderworkerset.x-k8s.io/v1": "LeaderWorkerSet",
    "networking.k8s.io/v1": "Ingress",
    "ray.io/v1": "RayCluster",
    "resource.k8s.io/v1": "DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice",
    "serving.kserve.io/v1beta1": "InferenceService",
    "wgpolicyk8s.io/v1alpha2": "PolicyReport",
    "workload.codeflare.dev/v1beta2": "AppWrapper",
}
VERSIONS = {kind: version for version, kinds in KINDS.items() for kind in kinds.split()}


def manifest(
    kind: str,
    name: Any,
    spec: Any = None,
    *,
    data: Any = None,
    version: str = "",
    **metadata: Any,
) -> dict[str, Any]:
    """An object; `version` is its apiVersion if it is not the one in `KINDS`."""
    made = {
        "apiVersion": version or VERSIONS[kind],
        "kind": kind,
        "metadata": {"name": name, **metadata},
    }
    return made | {key: value for key, value in (("spec", spec), ("data", data)) if value is not None}
