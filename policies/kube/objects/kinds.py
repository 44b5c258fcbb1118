"""The types by kind."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from policies.kube import group_kinds as gk
from policies.kube.group_kinds import GroupKind
from policies.kube.objects.devices import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from policies.kube.objects.jobs import CronJob, Job, JobSet
from policies.kube.objects.limits import LimitRange, Namespace, PriorityClass, ResourceQuota
from policies.kube.objects.metadata import Object
from policies.kube.objects.network_policies import NetworkPolicy
from policies.kube.objects.nodes import Node, NodePool
from policies.kube.objects.pods import Pod
from policies.kube.objects.queues import ClusterQueue, Cohort, LocalQueue, ResourceFlavor
from policies.kube.objects.ray import RayCluster, RayJob, RayService
from policies.kube.objects.rbac import ClusterRole, Role, RoleBinding, ServiceAccount
from policies.kube.objects.scaling import (
    HorizontalPodAutoscaler,
    PodDisruptionBudget,
    ScaledJob,
    ScaledObject,
)
from policies.kube.objects.services import (
    AIServiceBackend,
    Backend,
    Gateway,
    GatewayClass,
    Ingress,
    OpenShiftRoute,
    Route,
    Service,
    VirtualService,
)
from policies.kube.objects.storage import ConfigMap, PersistentVolume, PersistentVolumeClaim, StorageClass
from policies.kube.objects.webhooks import AdmissionPolicy, WebhookConfiguration
from policies.kube.objects.workloads import (
    DaemonSet,
    Deployment,
    LeaderWorkerSet,
    ReplicaSet,
    Rollout,
    StatefulSet,
)

TYPES: Final[Mapping[GroupKind, type[Object]]] = MappingProxyType(
    {
        gk.POD: Pod,
        gk.SERVICE: Service,
        gk.CONFIG_MAP: ConfigMap,
        gk.CLAIM: PersistentVolumeClaim,
        gk.DEPLOYMENT: Deployment,
        gk.ROLLOUT: Rollout,
        gk.STATEFUL_SET: StatefulSet,
        gk.DAEMON_SET: DaemonSet,
        gk.REPLICA_SET: ReplicaSet,
        gk.JOB: Job,
        gk.CRON_JOB: CronJob,
        gk.JOB_SET: JobSet,
        gk.AUTOSCALER: HorizontalPodAutoscaler,
        gk.DISRUPTION_BUDGET: PodDisruptionBudget,
        gk.POD_AUTOSCALER: HorizontalPodAutoscaler,
        gk.SCALED_OBJECT: ScaledObject,
        gk.SCALED_JOB: ScaledJob,
        gk.LEADER_WORKER_SET: LeaderWorkerSet,
        gk.RAY_CLUSTER: RayCluster,
        gk.RAY_SERVICE: RayService,
        gk.RAY_JOB: RayJob,
        gk.NAMESPACE: Namespace,
        gk.MUTATING_WEBHOOKS: WebhookConfiguration,
        gk.VALIDATING_WEBHOOKS: WebhookConfiguration,
        gk.MUTATING_POLICY: AdmissionPolicy,
        gk.VALIDATING_POLICY: AdmissionPolicy,
        gk.INGRESS: Ingress,
        gk.NETWORK_POLICY: NetworkPolicy,
        gk.SERVICE_ACCOUNT: ServiceAccount,
        gk.ROLE: Role,
        gk.CLUSTER_ROLE: ClusterRole,
        gk.ROLE_BINDING: RoleBinding,
        gk.CLUSTER_ROLE_BINDING: RoleBinding,
        gk.HTTP_ROUTE: Route,
        gk.GATEWAY: Gateway,
        GroupKind("gateway.networking.k8s.io", "GatewayClass"): GatewayClass,
        GroupKind("aigateway.envoyproxy.io", "AIGatewayRoute"): Route,
        GroupKind("aigateway.envoyproxy.io", "AIServiceBackend"): AIServiceBackend,
        GroupKind("gateway.envoyproxy.io", "Backend"): Backend,
        GroupKind("route.openshift.io", "Route"): OpenShiftRoute,
        GroupKind("networking.istio.io", "VirtualService"): VirtualService,
        GroupKind("", "Node"): Node,
        GroupKind("", "PersistentVolume"): PersistentVolume,
        GroupKind("", "ResourceQuota"): ResourceQuota,
        GroupKind("", "LimitRange"): LimitRange,
        GroupKind("storage.k8s.io", "StorageClass"): StorageClass,
        GroupKind("scheduling.k8s.io", "PriorityClass"): PriorityClass,
        GroupKind("resource.k8s.io", "DeviceClass"): DeviceClass,
        GroupKind("resource.k8s.io", "ResourceSlice"): ResourceSlice,
        GroupKind("resource.k8s.io", "ResourceClaim"): ResourceClaim,
        GroupKind("resource.k8s.io", "ResourceClaimTemplate"): ResourceClaimTemplate,
        gk.LOCAL_QUEUE: LocalQueue,
        GroupKind("kueue.x-k8s.io", "ClusterQueue"): ClusterQueue,
        GroupKind("kueue.x-k8s.io", "Cohort"): Cohort,
        GroupKind("kueue.x-k8s.io", "ResourceFlavor"): ResourceFlavor,
        GroupKind("karpenter.sh", "NodePool"): NodePool,
    }
)


def type_of(kind: GroupKind) -> type[Object]:
    """The type of a kind; for others the type of every object."""
    return TYPES.get(kind, Object)
