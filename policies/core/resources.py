"""The resources of a cluster that mutators and rules may ask about: the one table of the resources that are
read, kept and recognised. The ClusterRole `mlchassis-facts` grants just this, which a test holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from policies.core.annotations import MODEL_CONFIG
from policies.kube.group_kinds import (
    AUTOSCALER,
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    LEADER_WORKER_SET,
    NAMESPACE,
    REPLICA_SET,
    SERVICE,
    STATEFUL_SET,
    GroupKind,
)
from policies.kube.json import Json
from policies.kube.metadata import controller, labels_of


class Resource(StrEnum):
    """What mutators and rules call it."""

    SERVICES = "services"
    CLAIMS = "persistentvolumeclaims"
    BUDGETS = "poddisruptionbudgets"
    AUTOSCALERS = "horizontalpodautoscalers"
    WORKLOADS = "workloads"
    """Deployments, StatefulSets and ReplicaSets without a controller, each with its `kind`."""
    GROUPS = "leaderworkersets"
    """LeaderWorkerSets; none where the cluster does not serve them."""
    NODES = "nodes"
    MODEL_CONFIGS = "configmaps"
    """ConfigMaps with the label `mlchassis.dev/model-config: "true"`, with their `data`."""
    NAMESPACES = "namespaces"
    DEVICE_CLASSES = "deviceclasses"
    """DeviceClasses of DRA; none where the cluster does not serve them."""
    DEVICE_SLICES = "resourceslices"
    """The devices that DRA drivers offer, as their number; none where the cluster does not serve them."""
    CLAIM_TEMPLATES = "resourceclaimtemplates"
    """ResourceClaimTemplates. ResourceClaims are not watched: the API server changes one with each pod."""
    PRIORITY_CLASSES = "priorityclasses"
    QUOTAS = "resourcequotas"
    LIMIT_RANGES = "limitranges"
    VOLUMES = "persistentvolumes"
    STORAGE_CLASSES = "storageclasses"
    LOCAL_QUEUES = "localqueues"
    CLUSTER_QUEUES = "clusterqueues"
    COHORTS = "cohorts"
    FLAVORS = "resourceflavors"
    """Kueue's; none where the cluster does not serve them."""
    NODE_POOLS = "nodepools"
    """Karpenter's; none where the cluster does not serve them."""
    OBSERVED = "observed"
    """What the leader recorded of earlier starts. It is not in the table below: it is a part of the webhook's
    own ConfigMap for each namespace."""


@dataclass(frozen=True, slots=True)
class Known:
    """A kind of object that a resource is made of, and what of each object is kept."""

    resource: Resource
    group_kind: GroupKind
    fields: tuple[str, ...]
    """Paths kept in addition to `metadata.name` and `metadata.namespace`. A rule that wants to read another
    field adds it here; a cache of 50,000 claims must fit in memory. `list[].key`: of the maps of a
    list that one key, if it is text; maps without it are left out."""
    version: str = "v1"
    label: str = ""
    """Only objects with this label at "true" are read."""
    namespaced: bool = True
    controlled: bool = True
    """Whether those count that have a controller: it is the one that is asked about."""
    optional: bool = False
    """Whether a cluster may not serve the kind; then there are no such objects."""
    stays: tuple[str, ...] = ()
    """Fields that a manifest may leave out, and that an object keeps if the manifest is applied to it."""

    @property
    def api_version(self) -> str:
        group = self.group_kind.group
        return f"{group}/{self.version}" if group else self.version

    @property
    def plural(self) -> str:
        return self.group_kind.resource

    @property
    def selector(self) -> str:
        """The label selector to list with; empty: all."""
        return f"{self.label}=true" if self.label else ""

    def counts(self, obj: Json) -> bool:
        """Whether an object of this kind is one that is asked about."""
        if self.label and labels_of(obj).get(self.label) != "true":
            return False
        return self.controlled or controller(obj) is None


_WORKLOAD: Final = ("kind", "spec.replicas", "spec.selector", "spec.template.metadata.labels")
_STATEFUL: Final = (*_WORKLOAD, "spec.podManagementPolicy", "spec.serviceName")


def _known_workload(kind: GroupKind, fields: tuple[str, ...]) -> Known:
    return Known(Resource.WORKLOADS, kind, fields, controlled=False, stays=("spec.replicas",))


def _known_queue(
    resource: Resource, kind: str, *fields: str, version: str = "v1beta1", namespaced: bool = False
) -> Known:
    of_kueue = GroupKind("kueue.x-k8s.io", kind)
    return Known(resource, of_kueue, fields, version=version, namespaced=namespaced, optional=True)


KNOWN: Final = (
    Known(
        Resource.SERVICES,
        SERVICE,
        (
            "spec.selector",
            "spec.clusterIP",
            "spec.type",
            "spec.externalName",
            "spec.publishNotReadyAddresses",
            "spec.ports[].targetPort",
        ),
        stays=("spec.clusterIP",),
    ),
    Known(
        Resource.CLAIMS,
        CLAIM,
        ("spec.accessModes", "spec.volumeName", "spec.storageClassName"),
        stays=("spec.volumeName", "spec.storageClassName"),
    ),
    Known(Resource.BUDGETS, DISRUPTION_BUDGET, ("spec.selector", "spec.minAvailable", "spec.maxUnavailable")),
    Known(
        Resource.AUTOSCALERS,
        AUTOSCALER,
        ("spec.scaleTargetRef", "spec.minReplicas", "spec.maxReplicas"),
        version="v2",
    ),
    _known_workload(DEPLOYMENT, _WORKLOAD),
    _known_workload(STATEFUL_SET, _STATEFUL),
    _known_workload(REPLICA_SET, _WORKLOAD),
    Known(Resource.GROUPS, LEADER_WORKER_SET, ("spec.startupPolicy",), optional=True),
    Known(
        Resource.NODES,
        GroupKind("", "Node"),
        (
            "metadata.labels",
            "spec.taints",
            "spec.unschedulable",
            "status.allocatable",
            "status.nodeInfo.kubeletVersion",
        ),
        namespaced=False,
        stays=("metadata.labels", "spec.taints", "status"),
    ),
    Known(Resource.MODEL_CONFIGS, CONFIG_MAP, ("metadata.labels", "data"), label=MODEL_CONFIG),
    Known(Resource.NAMESPACES, NAMESPACE, ("metadata.labels",), namespaced=False, stays=("metadata.labels",)),
    Known(
        Resource.DEVICE_CLASSES,
        GroupKind("resource.k8s.io", "DeviceClass"),
        ("spec.extendedResourceName", "spec.selectors"),
        namespaced=False,
        optional=True,
    ),
    # The devices themselves are kept as one number (`policies.relations.devices.offer_of`).
    Known(
        Resource.DEVICE_SLICES,
        GroupKind("resource.k8s.io", "ResourceSlice"),
        ("spec.driver", "spec.pool", "spec.nodeName"),
        namespaced=False,
        optional=True,
    ),
    Known(
        Resource.CLAIM_TEMPLATES,
        GroupKind("resource.k8s.io", "ResourceClaimTemplate"),
        ("spec.spec.devices.requests",),
        optional=True,
    ),
    Known(
        Resource.PRIORITY_CLASSES,
        GroupKind("scheduling.k8s.io", "PriorityClass"),
        (),
        namespaced=False,
    ),
    Known(
        Resource.QUOTAS,
        GroupKind("", "ResourceQuota"),
        ("spec.hard", "spec.scopes", "spec.scopeSelector", "status.used"),
        stays=("status",),
    ),
    Known(Resource.LIMIT_RANGES, GroupKind("", "LimitRange"), ("spec.limits",)),
    Known(Resource.VOLUMES, GroupKind("", "PersistentVolume"), ("spec.nodeAffinity",), namespaced=False),
    Known(
        Resource.STORAGE_CLASSES,
        GroupKind("storage.k8s.io", "StorageClass"),
        ("metadata.annotations", "provisioner", "parameters", "volumeBindingMode", "allowedTopologies"),
        namespaced=False,
    ),
    # Kueue 0.15 and later serve this version next to v1beta2.
    _known_queue(Resource.LOCAL_QUEUES, "LocalQueue", "spec.clusterQueue", namespaced=True),
    _known_queue(
        Resource.CLUSTER_QUEUES, "ClusterQueue", "spec.resourceGroups", "spec.cohort", "spec.cohortName"
    ),
    # Kueue 0.9 to 0.12 serve Cohorts as v1alpha1 only, later ones not at all.
    _known_queue(Resource.COHORTS, "Cohort", "spec.resourceGroups", "spec.parent", version="v1alpha1"),
    _known_queue(Resource.COHORTS, "Cohort", "spec.resourceGroups", "spec.parentName"),
    _known_queue(
        Resource.FLAVORS, "ResourceFlavor", "spec.nodeLabels", "spec.nodeTaints", "spec.tolerations"
    ),
    Known(
        Resource.NODE_POOLS,
        GroupKind("karpenter.sh", "NodePool"),
        ("spec.template.metadata.labels", "spec.template.spec.requirements", "spec.template.spec.taints"),
        namespaced=False,
        optional=True,
    ),
)
