"""The typed fields of the cluster's objects, and the fields that the webhook's caches keep of them.

A rule that reads a typed field of another object finds it in files. In the webhook the field has its default
unless the table of resources keeps it, so the rule would be silent there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import msgspec

from policies.core.resources import ResourceKind, resource_kinds
from policies.kube.objects.kinds import type_of
from policies.kube.objects.metadata import Part
from tests.tables import table

READ_BY_NO_RULE_OF_OTHERS = {
    # Only the rule about the object itself reads these.
    "Service": {"spec.ports[].name", "spec.ports[].port"},
    "PodDisruptionBudget": {"spec.unhealthyPodEvictionPolicy", "status"},  # `scan --missed` reads that
    "HorizontalPodAutoscaler": {"spec.targetCPUUtilizationPercentage"},
    "PriorityClass": {"value", "globalDefault", "preemptionPolicy"},
    # Rules about the rollout or the pods of a workload read its own object, and of others only how many pods
    # it has and which.
    "Deployment": {
        "spec.paused",
        "spec.progressDeadlineSeconds",
        "spec.progressDeadlineAbort",
        "spec.strategy",
        "spec.template",
        "status",
    },
    "Rollout": {
        "spec.paused",
        "spec.progressDeadlineSeconds",
        "spec.progressDeadlineAbort",
        "spec.strategy",
        "spec.template",
        "spec.workloadRef",
        "status",
    },
    "StatefulSet": {
        "spec.updateStrategy",
        "spec.ordinals",
        "spec.volumeClaimTemplates",
        "spec.template",
        "status",
    },
    "ReplicaSet": {"spec.template", "status"},
    "LeaderWorkerSet": {"spec.replicas", "spec.leaderWorkerTemplate", "spec.rolloutStrategy"},
    "NodePool": {"spec.template.metadata"},
    # Each version has one of the two fields.
    "Cohort": {"spec.parent", "spec.parentName"},
}
"""Typed fields that no rule reads of objects other than its own; a prefix stands for all below it."""


def typed_fields(struct: type[Part], prefix: str = "") -> Iterator[str]:
    """The JSON paths of the fields of a type, down to the values that are no types of ours."""
    for field in msgspec.structs.fields(struct):
        if not prefix and field.encode_name in {"apiVersion", "kind", "metadata"}:
            continue
        path = f"{prefix}{field.encode_name}"
        part, is_list = _part(field.type)
        if part is None:
            yield path
        else:
            yield from typed_fields(part, f"{path}{'[]' if is_list else ''}.")


def _part(annotation: object) -> tuple[type[Part] | None, bool]:
    """The type of ours inside an annotation, and whether it is that of the items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation, False
    for each in get_args(annotation):
        if isinstance(each, type) and issubclass(each, Part):
            return each, getattr(annotation, "__origin__", None) is tuple
    return None, False


def covers(kept: str, path: str) -> bool:
    """Whether a kept path keeps a typed field: the field itself, or a map above it."""
    return path == kept or path.startswith((f"{kept}.", f"{kept}[]."))


@table("known", resource_kinds())
def test_the_caches_keep_every_typed_field_that_rules_read_of_others(known: ResourceKind) -> None:
    unread = READ_BY_NO_RULE_OF_OTHERS.get(known.kind, set())
    lost = [
        path
        for path in typed_fields(type_of(known.group_kind))
        if not any(covers(kept, path) for kept in (*known.fields, *unread))
    ]
    assert not lost, "policies/core/resources.yaml does not keep these fields, so no rule would see them"


def test_exceptions_are_typed_and_not_kept() -> None:
    known = {each.kind: each for each in resource_kinds()}
    for kind, paths in READ_BY_NO_RULE_OF_OTHERS.items():
        typed = list(typed_fields(type_of(known[kind].group_kind)))
        for path in paths:
            assert any(covers(path, each) for each in typed), f"{kind} has no field {path}"
