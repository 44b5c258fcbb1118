"""Kueue's queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policies.kube.objects.metadata import EMPTY, LabelSelector, Named, Object, Part, Quantity
from policies.kube.objects.nodes import Taint
from policies.kube.objects.placement import Toleration

QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
"""The label by which a workload names its LocalQueue."""


class LocalQueueSpec(Part):
    cluster_queue: str = ""


class LocalQueue(Object):
    spec: LocalQueueSpec = LocalQueueSpec()


class ResourceBudget(Part):
    """The quota of one resource in a flavor."""

    name: str = ""
    nominal_quota: Quantity | None = None
    borrowing_limit: Quantity | None = None
    lending_limit: Quantity | None = None


class FlavorQuotas(Part):
    name: str = ""
    resources: tuple[ResourceBudget, ...] = ()


class ResourceGroup(Part):
    covered_resources: tuple[str, ...] = ()
    flavors: tuple[FlavorQuotas, ...] = ()


class AdmissionChecksStrategy(Part):
    admission_checks: tuple[Named, ...] = ()


class ClusterQueueSpec(Part):
    namespace_selector: LabelSelector | None = None
    """The namespaces that it serves. None: no namespace."""
    resource_groups: tuple[ResourceGroup, ...] = ()
    cohort: str = ""
    cohort_name: str = ""
    admission_checks: tuple[str, ...] = ()
    admission_checks_strategy: AdmissionChecksStrategy = AdmissionChecksStrategy()


class ClusterQueue(Object):
    spec: ClusterQueueSpec = ClusterQueueSpec()

    @property
    def is_dispatched(self) -> bool:
        """Whether MultiKueue creates the pods of its workloads in other clusters, by the name of a check.
        https://kueue.sigs.k8s.io/docs/concepts/multikueue/
        """
        named = (each.name for each in self.spec.admission_checks_strategy.admission_checks)
        return any("multikueue" in name.lower() for name in (*self.spec.admission_checks, *named))


class CohortSpec(Part):
    resource_groups: tuple[ResourceGroup, ...] = ()
    parent: str = ""
    parent_name: str = ""


class Cohort(Object):
    spec: CohortSpec = CohortSpec()


class ResourceFlavorSpec(Part):
    node_labels: Mapping[str, str] = EMPTY
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()


class ResourceFlavor(Object):
    spec: ResourceFlavorSpec = ResourceFlavorSpec()
