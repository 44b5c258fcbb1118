"""What an autoscaler scales, which autoscaler a workload has, and those of other controllers: KEDA's
ScaledObjects and AIBrix's PodAutoscalers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from policies.core.facts import Facts
from policies.core.listing import BY_NAME, TypedIndex
from policies.core.pod_view import PodView
from policies.core.resources import Resource
from policies.core.target import Target
from policies.kube.group_kinds import AUTOSCALER, POD_AUTOSCALER, SCALED_OBJECT, GroupKind, kind_of
from policies.kube.json import Json, mapping, text
from policies.kube.objects.metadata import ObjectReference
from policies.kube.objects.reading import readable
from policies.kube.objects.scaling import KEDA_MOST, HorizontalPodAutoscaler, ScaledObject, Trigger
from policies.kube.objects.workloads import Replicated
from policies.kube.quantities import whole_number

MAKERS: Final = (SCALED_OBJECT, POD_AUTOSCALER)
"""Kinds of objects that count as autoscalers."""
_PAUSED: Final = ("autoscaling.keda.sh/paused", "autoscaling.keda.sh/paused-replicas")


def scaled_by(target: Target) -> ObjectReference:
    """What a HorizontalPodAutoscaler, a ScaledObject or a PodAutoscaler scales."""
    if target.kind in (AUTOSCALER, POD_AUTOSCALER):
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


def made_autoscaler(obj: Json) -> Json | None:
    """The HorizontalPodAutoscaler that an object of one of the `MAKERS` counts as, with the fields that rules
    read; None if there is none."""
    return _of_pod_autoscaler(obj) if kind_of(obj) == POD_AUTOSCALER else autoscaler_of_scaled_object(obj)


def _of_pod_autoscaler(obj: Json) -> Json | None:
    """Of AIBrix. It makes a HorizontalPodAutoscaler of this name, or sets the replicas itself
    (pkg/controller/podautoscaler/hpa_resources.go in AIBrix 0.6). None for one with other bounds at times, or
    for one role of several."""
    scaled = readable(obj, HorizontalPodAutoscaler)
    if scaled is None or "schedules" in mapping(obj, "spec") or mapping(obj, "spec", "subTargetSelector"):
        return None
    spec = {**mapping(obj, "spec"), "metrics": [{"type": "External"}]}
    own = {"name": f"{scaled.name}-hpa", "ownerReferences": [_owner(POD_AUTOSCALER, scaled.name)]}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": mapping(obj, "metadata") | own,
        "spec": spec,
    }


def _owner(kind: GroupKind, name: str) -> Json:
    return {
        "apiVersion": f"{kind.group}/v1alpha1",
        "kind": kind.kind,
        "name": name,
        "controller": True,
    }


def autoscaler_of_scaled_object(obj: Json) -> Json | None:
    """The HorizontalPodAutoscaler of a ScaledObject, with the fields that rules read; None if it is paused
    or cannot be read.

    Its minimum is at least 1: KEDA itself removes the last pod and adds the first (`GetHPAMinReplicas` in
    apis/keda/v1alpha1/scaledobject_types.go).
    """
    scaled = readable(obj, ScaledObject)
    if scaled is None or any(key in scaled.metadata.annotations for key in _PAUSED):
        return None
    spec = scaled.spec
    config = spec.advanced.horizontal_pod_autoscaler_config
    reference = spec.scale_target_ref
    name = config.name or f"keda-hpa-{scaled.name}"
    own = {"name": name, "ownerReferences": [_owner(SCALED_OBJECT, scaled.name)]}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": mapping(obj, "metadata") | own,
        "spec": {
            "scaleTargetRef": {
                "apiVersion": reference.api_version or "apps/v1",
                "kind": reference.kind or "Deployment",
                "name": reference.name,
            },
            "minReplicas": max(1, spec.min_replica_count or 0),
            "maxReplicas": KEDA_MOST if spec.max_replica_count is None else spec.max_replica_count,
            "metrics": list(_metrics(spec.triggers)),
            "behavior": msgspec.to_builtins(config.behavior),
        },
    }


def _metrics(triggers: Iterable[Trigger]) -> Iterator[Json]:
    """The metrics of the triggers (KEDA 2.18, `GetMetricSpecForScaling` in pkg/scalers/cpu_memory_scaler.go).

    All triggers but cpu and memory become external metrics; their names begin with the trigger's index and
    scaler. Until KEDA 2.17 `metricType` was `metadata.type`.
    """
    for index, trigger in enumerate(triggers):
        if trigger.type not in ("cpu", "memory"):
            yield {"type": "External", "external": {"metric": {"name": f"s{index}-{trigger.type}"}}}
            continue
        target: Json = {"type": trigger.metric_type or trigger.metadata.get("type", "")}
        value = whole_number(trigger.metadata.get("value", ""))
        if value is not None:
            target["averageUtilization"] = value
        source: Json = {"name": trigger.type, "target": target}
        container = trigger.metadata.get("containerName")
        if container:
            source["container"] = container
            yield {"type": "ContainerResource", "containerResource": source}
        else:
            yield {"type": "Resource", "resource": source}
