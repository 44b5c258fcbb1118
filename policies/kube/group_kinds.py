"""Group and kind of objects."""

from __future__ import annotations

from typing import Final, NamedTuple

from policies.kube.json import Json, text


class GroupKind(NamedTuple):
    """A Kubernetes kind without its version: the API server converts between versions."""

    group: str
    kind: str

    def __str__(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @classmethod
    def of(cls, api_version: str, kind: str) -> GroupKind:
        return cls(api_version.rpartition("/")[0], kind)

    @classmethod
    def parse(cls, written: str) -> GroupKind:
        """The kind that `str` writes: `Kind.group`, or `Kind` for the core group."""
        kind, _, group = written.partition(".")
        return cls(group, kind)

    @property
    def resource(self) -> str:
        """The plural in lower case, as `UnsafeGuessKindToResource` of k8s.io/apimachinery forms it, with `es`
        after x. A CRD may define another plural, which only the API server knows."""
        singular = self.kind.lower()
        if singular.endswith(("s", "x")):
            return f"{singular}es"
        return f"{singular[:-1]}ies" if singular.endswith("y") else f"{singular}s"


def kind_of(obj: Json) -> GroupKind:
    if obj.get("kind") == "Pod" and obj.get("apiVersion") == "v1":
        return POD  # the most frequent kind, without a new object
    return GroupKind.of(text(obj, "apiVersion"), text(obj, "kind"))


POD: Final = GroupKind("", "Pod")
SERVICE: Final = GroupKind("", "Service")
NETWORK_POLICY: Final = GroupKind("networking.k8s.io", "NetworkPolicy")
CONFIG_MAP: Final = GroupKind("", "ConfigMap")
SECRET: Final = GroupKind("", "Secret")
CLAIM: Final = GroupKind("", "PersistentVolumeClaim")
NAMESPACE: Final = GroupKind("", "Namespace")
SERVICE_ACCOUNT: Final = GroupKind("", "ServiceAccount")
ROLE: Final = GroupKind("rbac.authorization.k8s.io", "Role")
CLUSTER_ROLE: Final = GroupKind("rbac.authorization.k8s.io", "ClusterRole")
ROLE_BINDING: Final = GroupKind("rbac.authorization.k8s.io", "RoleBinding")
CLUSTER_ROLE_BINDING: Final = GroupKind("rbac.authorization.k8s.io", "ClusterRoleBinding")
DEPLOYMENT: Final = GroupKind("apps", "Deployment")
ROLLOUT: Final = GroupKind("argoproj.io", "Rollout")
KNATIVE_SERVICE: Final = GroupKind("serving.knative.dev", "Service")
INFERENCE_SERVICE: Final = GroupKind("serving.kserve.io", "InferenceService")
SELDON_DEPLOYMENT: Final = GroupKind("machinelearning.seldon.io", "SeldonDeployment")
STATEFUL_SET: Final = GroupKind("apps", "StatefulSet")
DAEMON_SET: Final = GroupKind("apps", "DaemonSet")
REPLICA_SET: Final = GroupKind("apps", "ReplicaSet")
SERVING: Final = (DEPLOYMENT, STATEFUL_SET, ROLLOUT)
"""Kinds that keep a number of like pods running, with a rolling update."""
REPLICATION_CONTROLLER: Final = GroupKind("", "ReplicationController")
JOB: Final = GroupKind("batch", "Job")
CRON_JOB: Final = GroupKind("batch", "CronJob")
AUTOSCALER: Final = GroupKind("autoscaling", "HorizontalPodAutoscaler")
SCALED_OBJECT: Final = GroupKind("keda.sh", "ScaledObject")
POD_AUTOSCALER: Final = GroupKind("autoscaling.aibrix.ai", "PodAutoscaler")
SCALED_JOB: Final = GroupKind("keda.sh", "ScaledJob")
DISRUPTION_BUDGET: Final = GroupKind("policy", "PodDisruptionBudget")
MUTATING_WEBHOOKS: Final = GroupKind("admissionregistration.k8s.io", "MutatingWebhookConfiguration")
VALIDATING_WEBHOOKS: Final = GroupKind("admissionregistration.k8s.io", "ValidatingWebhookConfiguration")
MUTATING_POLICY: Final = GroupKind("admissionregistration.k8s.io", "MutatingAdmissionPolicy")
VALIDATING_POLICY: Final = GroupKind("admissionregistration.k8s.io", "ValidatingAdmissionPolicy")
VOLCANO_JOB: Final = GroupKind("batch.volcano.sh", "Job")
INGRESS: Final = GroupKind("networking.k8s.io", "Ingress")
GATEWAY: Final = GroupKind("gateway.networking.k8s.io", "Gateway")
HTTP_ROUTE: Final = GroupKind("gateway.networking.k8s.io", "HTTPRoute")
GRPC_ROUTE: Final = GroupKind("gateway.networking.k8s.io", "GRPCRoute")
PRIORITY_CLASS: Final = GroupKind("scheduling.k8s.io", "PriorityClass")
CUSTOM_RESOURCE_DEFINITION: Final = GroupKind("apiextensions.k8s.io", "CustomResourceDefinition")
RAY_CLUSTER: Final = GroupKind("ray.io", "RayCluster")
RAY_SERVICE: Final = GroupKind("ray.io", "RayService")
RAY_JOB: Final = GroupKind("ray.io", "RayJob")
RAY_KINDS: Final = (RAY_CLUSTER, RAY_SERVICE, RAY_JOB)
LEADER_WORKER_SET: Final = GroupKind("leaderworkerset.x-k8s.io", "LeaderWorkerSet")
DISAGGREGATED_SET: Final = GroupKind("disaggregatedset.x-k8s.io", "DisaggregatedSet")
LOCAL_QUEUE: Final = GroupKind("kueue.x-k8s.io", "LocalQueue")
JOB_SET: Final = GroupKind("jobset.x-k8s.io", "JobSet")
MPI_JOB: Final = GroupKind("kubeflow.org", "MPIJob")
KUBEFLOW_JOBS: Final = tuple(
    GroupKind("kubeflow.org", kind)
    for kind in ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob")
)
