"""The kinds that are known, and where each keeps its pod templates: data, and no reading of objects."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from policies.core.settings import Model
from policies.kube.group_kinds import (
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    RAY_CLUSTER,
    RAY_JOB,
    RAY_SERVICE,
    REPLICA_SET,
    STATEFUL_SET,
    GroupKind,
)

_KUBEFLOW_REPLICAS: Final = {
    GroupKind("kubeflow.org", "PyTorchJob"): "pytorchReplicaSpecs",
    GroupKind("kubeflow.org", "TFJob"): "tfReplicaSpecs",
    GroupKind("kubeflow.org", "MPIJob"): "mpiReplicaSpecs",
    GroupKind("kubeflow.org", "XGBoostJob"): "xgbReplicaSpecs",
    GroupKind("kubeflow.org", "PaddleJob"): "paddleReplicaSpecs",
    GroupKind("kubeflow.org", "JAXJob"): "jaxReplicaSpecs",
}
KUBEFLOW_JOBS: Final = tuple(_KUBEFLOW_REPLICAS)

KSERVE_CONTAINER: Final = "kserve-container"
"""What KServe calls the container that it makes from a predictor's model and a ServingRuntime."""
_KSERVE_MODELS: Final = (
    *("model", "huggingface", "lightgbm", "onnx", "paddle", "pmml", "pytorch", "sklearn", "tensorflow"),
    *("triton", "xgboost"),
)


class Shape(StrEnum):
    """What stands at a path: a pod template, or a pod spec with no metadata of its own."""

    TEMPLATE = "template"
    SPEC = "spec"


class Workload(Model):
    """Where a kind keeps its pod templates, and what the pods made from them are like."""

    api_group: str = Field(description="API group of the kind; empty for the core group")
    kind: str = Field(description="the kind, such as RayCluster")
    templates: tuple[str, ...] = Field(
        description="paths of pod templates: names joined by dots, `[*]` for every element of a "
        "list and `.*` for every value of a map"
    )
    shape: Shape = Field(
        Shape.TEMPLATE,
        description="`template` where metadata and spec stand at the path, `spec` where a pod "
        "spec does (its pods then carry the object's own labels and annotations)",
    )
    containers: tuple[str, ...] = Field(
        (),
        description="paths of single containers that a serving runtime completes to a pod, such as the "
        "`model` of KServe's predictor; the pod's other fields stand beside them",
    )
    completes: bool = Field(False, description="whether its pods run to completion, as a Job's do")
    projected: bool = Field(
        True,
        description="whether rules judge the template as the pod-level policies would leave it; "
        "false where another operator edits the pods after this one",
    )
    owner: str = Field("", description="kind of the object that owns the pods; empty: the workload itself")

    @property
    def gk(self) -> GroupKind:
        return GroupKind(self.api_group, self.kind)


def _workload(kind: GroupKind, *templates: str, **options: Any) -> Workload:
    return Workload(api_group=kind.group, kind=kind.kind, templates=templates, **options)


def _ray(kind: GroupKind, prefix: str) -> Workload:
    templates = (f"{prefix}headGroupSpec.template", f"{prefix}workerGroupSpecs[*].template")
    return _workload(kind, *templates, projected=False, owner="RayCluster")


WORKLOADS: Final[tuple[Workload, ...]] = (
    _workload(DEPLOYMENT, "spec.template", owner="ReplicaSet"),
    _workload(REPLICA_SET, "spec.template"),
    _workload(STATEFUL_SET, "spec.template"),
    _workload(DAEMON_SET, "spec.template"),
    _workload(JOB, "spec.template", completes=True),
    _workload(CRON_JOB, "spec.jobTemplate.spec.template", completes=True, owner="Job"),
    _ray(RAY_CLUSTER, "spec."),
    _ray(RAY_JOB, "spec.rayClusterSpec."),
    _ray(RAY_SERVICE, "spec.rayClusterConfig."),
    _workload(
        INFERENCE_SERVICE,
        "spec.predictor",
        "spec.predictor.workerSpec",
        "spec.transformer",
        "spec.explainer",
        containers=tuple(f"spec.predictor.{field}" for field in _KSERVE_MODELS),
        shape=Shape.SPEC,
        owner="ReplicaSet",
    ),
    *(
        _workload(
            GroupKind("serving.kserve.io", kind),
            "spec",
            "spec.workerSpec",
            shape=Shape.SPEC,
            owner="ReplicaSet",
        )
        for kind in ("ServingRuntime", "ClusterServingRuntime")
    ),
    _workload(JOB_SET, "spec.replicatedJobs[*].template.spec.template", completes=True, owner="Job"),
    _workload(
        LEADER_WORKER_SET,
        "spec.leaderWorkerTemplate.leaderTemplate",
        "spec.leaderWorkerTemplate.workerTemplate",
        owner="StatefulSet",
    ),
    *(
        _workload(kind, f"spec.{replicas}.*.template", completes=True)
        for kind, replicas in _KUBEFLOW_REPLICAS.items()
    ),
)
"""Every kind whose pod templates are read; `webhook.yaml` may add to it."""
