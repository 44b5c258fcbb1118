"""The base classes of all types; metadata of objects, and selectors of labels.

A field that is absent or null has its default: an empty text, tuple or map, False, or None where rules
distinguish absence from a value. Names are the API's in snake_case, except for a few that are shortened.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias, dataclass_transform

import msgspec

from policies.kube.group_kinds import GroupKind

IntOrString: TypeAlias = int | str
"""A number, or a text such as a percentage or the name of a port."""
Quantity: TypeAlias = str | int | float
"""An amount such as `500m`, `40Gi` or 2; `policies.kube.quantities` parses it."""

EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
"""The map of a field that is absent."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Part(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True):
    """A map inside an object. Not a part of garbage collection, since JSON has no cycles."""


class Present(Part):
    """A map of which only the presence counts."""


class Named(Part):
    """A map of which only the name counts."""

    name: str = ""


class OwnerReference(Part):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    startup_policy: str = ""
    """Of a LeaderWorkerSet, if the pod is one of its templates (`policies.core.groups.leader_of`)."""
    size: int = 1
    """The same."""

    @property
    def group_kind(self) -> GroupKind:
        return GroupKind.of(self.api_version, self.kind)


class ObjectMeta(Part):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
    generation: int = 0
    labels: Mapping[str, str] = EMPTY
    annotations: Mapping[str, str] = EMPTY
    owner_references: tuple[OwnerReference, ...] = ()
    deletion_timestamp: str | None = None

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that is marked as controller."""
        for reference in self.owner_references:
            if reference.controller:
                return reference
        return None


NO_METADATA = ObjectMeta()


class Object(Part):
    """A Kubernetes object. Objects of the cluster's listings have no apiVersion, and most have no kind."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = NO_METADATA

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def group_kind(self) -> GroupKind:
        return GroupKind.of(self.api_version, self.kind)

    @property
    def exists(self) -> bool:
        """Whether it is in a cluster, or is being applied to one, and is not only in a file."""
        return bool(self.metadata.uid)

    @property
    def rank(self) -> tuple[bool, str]:
        """Its place among objects that share a finding: those of files come first, then by name."""
        return self.exists, self.name

    @property
    def is_manifest(self) -> bool:
        """Whether an object of a listing comes from a file, so that the cluster may have others."""
        return bool(self.api_version)


class Condition(Part):
    """Of an object's status."""

    type: str = ""
    status: str = ""
    reason: str = ""
    last_transition_time: str = ""


class Requirement(Part):
    """A requirement on one label: of a selector, a node affinity or Karpenter."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels satisfy it; they never satisfy an unknown operator."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels
        return False


class LabelSelector(Part):
    match_labels: Mapping[str, str] = EMPTY
    match_expressions: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects an object with these labels. An empty selector selects all."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )


class ObjectReference(Part):
    """A reference to an object of the same namespace."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
