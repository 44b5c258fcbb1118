"""Namespaces, their quotas and LimitRanges, and PriorityClasses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from policies.kube.objects.metadata import EMPTY, Object, Part, Quantity

NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""The label that the API server sets on every namespace; files lack it."""


class Namespace(Object):
    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels with the one that the API server sets."""
        return {**self.metadata.labels, NAMESPACE_NAME: self.name}


class ScopeRequirement(Part):
    scope_name: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class ScopeSelector(Part):
    match_expressions: tuple[ScopeRequirement, ...] = ()


class ResourceQuotaSpec(Part):
    hard: Mapping[str, Quantity] = EMPTY
    scopes: tuple[str, ...] = ()
    scope_selector: ScopeSelector = ScopeSelector()


class ResourceQuotaStatus(Part):
    used: Mapping[str, Quantity] | None = None


class ResourceQuota(Object):
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class LimitRangeItem(Part):
    type: str = ""
    min: Mapping[str, Quantity] = EMPTY
    max: Mapping[str, Quantity] = EMPTY
    default: Mapping[str, Quantity] = EMPTY
    default_request: Mapping[str, Quantity] = EMPTY
    max_limit_request_ratio: Mapping[str, Quantity] = EMPTY


class LimitRangeSpec(Part):
    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(Object):
    spec: LimitRangeSpec = LimitRangeSpec()

    def items_of(self, kind: str) -> Iterator[LimitRangeItem]:
        """The items for `Container`, `Pod` or `PersistentVolumeClaim`."""
        return (item for item in self.spec.limits if item.type == kind)


class PriorityClass(Object):
    value: int = 0
    global_default: bool = False
    preemption_policy: str = ""
