"""The resources of a cluster that mutators and rules may ask about: the one table, `resources.yaml`, of the
resources that are read, kept and recognised. The ClusterRole `mlchassis-facts` grants just this, which a test
holds.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache, cached_property

from policies.core import data
from policies.core.settings import Model
from policies.kube.group_kinds import GroupKind
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


class ResourceKind(Model):
    """A kind of object that a resource is made of, and what of each object is kept."""

    resource: Resource
    api_version: str = "v1"
    kind: str
    fields: tuple[str, ...] = ()
    """Paths kept in addition to `metadata.name` and `metadata.namespace`. A rule that wants to read another
    field adds it here; a cache of 50,000 claims must fit in memory. `list[].key`: of the maps of a
    list that one key, if it is text; maps without it are left out."""
    label: str = ""
    """Only objects with this label at "true" are read."""
    namespaced: bool = True
    controlled: bool = True
    """Whether those count that have a controller: it is the one that is asked about."""
    optional: bool = False
    """Whether a cluster may not serve the kind; then there are no such objects."""
    stays: tuple[str, ...] = ()
    """Fields that a manifest may leave out, and that an object keeps if the manifest is applied to it."""

    @cached_property
    def group_kind(self) -> GroupKind:
        return GroupKind(self.api_version.rpartition("/")[0], self.kind)

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


@cache
def resource_kinds() -> tuple[ResourceKind, ...]:
    """The table: the file `resources.yaml`."""
    return data.load_list(ResourceKind, __package__, "resources.yaml")
