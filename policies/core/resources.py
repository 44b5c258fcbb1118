"""The resources of the cluster that mutators and rules read: the table `resources.yaml`. A test compares it
with the ClusterRole `mlchassis-facts`.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache, cached_property

from policies.core import data
from policies.core.settings import Model
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json
from policies.kube.metadata import controller, labels_of
from policies.kube.objects.kinds import type_of
from policies.kube.objects.metadata import Object
from policies.kube.objects.reading import WrongTypeError, read
from policies.kube.objects.workloads import Replicated


class Resource(StrEnum):
    """The name of a resource."""

    SERVICES = "services"
    CLAIMS = "persistentvolumeclaims"
    BUDGETS = "poddisruptionbudgets"
    AUTOSCALERS = "horizontalpodautoscalers"
    WORKLOADS = "workloads"
    """Deployments, StatefulSets, ReplicaSets and Rollouts without a controller, each with its `kind`."""
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
    """The recorded starts of pods. Not in the table: a part of the webhook's own ConfigMap for each
    namespace."""


class ResourceKind(Model):
    """A kind of object of a resource, and the fields of each object that are kept."""

    resource: Resource
    api_version: str = "v1"
    kind: str
    fields: tuple[str, ...] = ()
    """Paths kept in addition to `metadata.name` and `metadata.namespace`: a cache of 50,000 claims must fit
    in memory. `list[].key` keeps one key of the maps in a list, if its value is text; maps without it are
    dropped."""
    label: str = ""
    """Only objects with this label at "true" are read."""
    namespaced: bool = True
    controlled: bool = True
    """Whether objects with a controller are included; else only the controller is."""
    optional: bool = False
    """Whether a cluster may not serve the kind; then it has no such objects."""
    stays: tuple[str, ...] = ()
    """Fields that an existing object keeps if an applied manifest does not set them."""

    @cached_property
    def group_kind(self) -> GroupKind:
        return GroupKind.of(self.api_version, self.kind)

    @property
    def plural(self) -> str:
        return self.group_kind.resource

    @property
    def selector(self) -> str:
        """The label selector to list with; empty: all."""
        return f"{self.label}=true" if self.label else ""

    def problem(self, obj: Json) -> str:
        """Why an object cannot be read by the type of its kind; empty if it can."""
        try:
            read(obj, type_of(self.group_kind))
        except WrongTypeError as error:
            return str(error)
        return ""

    def includes(self, obj: Json) -> bool:
        """Whether the resource includes an object of this kind."""
        if self.label and labels_of(obj).get(self.label) != "true":
            return False
        return self.controlled or controller(obj) is None


resource_kinds = data.entries(ResourceKind, __package__, "resources.yaml")


@cache
def _resources() -> dict[type[Object], Resource]:
    return {type_of(known.group_kind): known.resource for known in resource_kinds()} | {
        Replicated: Resource.WORKLOADS
    }


def resource_of(as_type: type[Object]) -> Resource:
    """The resource of a type, such as that of `Service`; `Replicated` is the type of all workloads."""
    return _resources()[as_type]
