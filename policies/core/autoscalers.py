"""What an autoscaler scales, which autoscaler a workload has, and those that KEDA makes of ScaledObjects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.facts import BY_NAME, Facts
from policies.core.listing import TypedIndex
from policies.core.pod_view import PodView
from policies.core.resources import Resource
from policies.core.target import Target
from policies.kube.group_kinds import AUTOSCALER
from policies.kube.json import Json, integer, mapping, maps, text
from policies.kube.metadata import annotations_of
from policies.kube.objects.metadata import ObjectReference
from policies.kube.objects.scaling import KEDA_MOST, HorizontalPodAutoscaler, ScaledObject
from policies.kube.objects.workloads import Replicated
from policies.kube.quantities import whole_number

_DIGITS: Final = 9
_PAUSED: Final = ("autoscaling.keda.sh/paused", "autoscaling.keda.sh/paused-replicas")


def scaled_by(target: Target) -> ObjectReference:
    """What a HorizontalPodAutoscaler or a ScaledObject scales."""
    if target.kind == AUTOSCALER:
        return target.read(HorizontalPodAutoscaler).spec.scale_target_ref
    return target.read(ScaledObject).spec.scale_target_ref


def scaled_workload(autoscaler: HorizontalPodAutoscaler, facts: Facts) -> Replicated | None:
    """The workload that an autoscaler scales, if it is known."""
    target, workloads = autoscaler.spec.scale_target_ref, facts.objects(Replicated)
    named = workloads.all_named(target.name) if workloads else ()
    return next((each for each in named if each.kind == target.kind), None)


def pods_of(reference: ObjectReference, facts: Facts) -> list[PodView]:
    """The pod templates of the workload; without their containers in the webhook's cache."""
    workloads = facts.listing(Resource.WORKLOADS)
    named = () if workloads is None else workloads.by(BY_NAME)[reference.name]
    kind = reference.kind or "Deployment"
    return [facts.view(mapping(each, "spec", "template")) for each in named if text(each, "kind") == kind]


def autoscaler_of(kind: str, name: str, facts: Facts) -> HorizontalPodAutoscaler | None:
    """The autoscaler of the workload of a kind and name, if one is known."""
    autoscalers = facts.objects(HorizontalPodAutoscaler)
    return autoscalers.one(_BY_TARGET, (kind, name)) if autoscalers else None


def _target_of(autoscaler: HorizontalPodAutoscaler) -> Iterator[tuple[str, str]]:
    target = autoscaler.spec.scale_target_ref
    yield target.kind, target.name


_BY_TARGET: Final = TypedIndex(HorizontalPodAutoscaler, _target_of)


def autoscaler_minimum(autoscaler: HorizontalPodAutoscaler) -> int:
    """The minimum replicas of an autoscaler, and 1 for the `minReplicas: 0` of Kubernetes 1.37: without pods,
    no eviction can be blocked."""
    return max(1, autoscaler.spec.min_replicas or 1)


def autoscaler_of_scaled_object(obj: Json) -> Json | None:
    """The HorizontalPodAutoscaler of a ScaledObject, with the fields that rules read; None if it is paused.

    Its minimum is at least 1: KEDA itself removes the last pod and adds the first (`GetHPAMinReplicas` in
    apis/keda/v1alpha1/scaledobject_types.go).
    """
    if any(key in annotations_of(obj) for key in _PAUSED):
        return None
    reference = mapping(obj, "spec", "scaleTargetRef")
    config = mapping(obj, "spec", "advanced", "horizontalPodAutoscalerConfig")
    scaled_object = text(obj, "metadata", "name")
    name = text(config, "name") or f"keda-hpa-{scaled_object}"
    owner = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "name": scaled_object,
        "controller": True,
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {**mapping(obj, "metadata"), "name": name, "ownerReferences": [owner]},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": text(reference, "apiVersion") or "apps/v1",
                "kind": text(reference, "kind") or "Deployment",
                "name": text(reference, "name"),
            },
            "minReplicas": max(1, integer(obj, "spec", "minReplicaCount", default=0)),
            "maxReplicas": integer(obj, "spec", "maxReplicaCount", default=KEDA_MOST),
            "metrics": list(_metrics(obj)),
            "behavior": mapping(config, "behavior"),
        },
    }


def _metrics(obj: Json) -> Iterator[Json]:
    """The metrics of the triggers (KEDA 2.18, `GetMetricSpecForScaling` in pkg/scalers/cpu_memory_scaler.go).

    All triggers but cpu and memory become external metrics; their names begin with the trigger's index and
    scaler. Until KEDA 2.17 `metricType` was `metadata.type`.
    """
    for index, trigger in enumerate(maps(obj, "spec", "triggers")):
        resource = text(trigger, "type")
        if resource not in ("cpu", "memory"):
            yield {"type": "External", "external": {"metric": {"name": f"s{index}-{resource}"}}}
            continue
        metadata = mapping(trigger, "metadata")
        target: Json = {"type": text(trigger, "metricType") or text(metadata, "type")}
        value = whole_number(text(metadata, "value"), _DIGITS)
        if value is not None:
            target["averageUtilization"] = value
        source: Json = {"name": resource, "target": target}
        container = text(metadata, "containerName")
        if container:
            source["container"] = container
            yield {"type": "ContainerResource", "containerResource": source}
        else:
            yield {"type": "Resource", "resource": source}
