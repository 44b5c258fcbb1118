"""`chassis explain kinds`: the known kinds and how their pods are read, and a cluster's unknown kinds."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.workloads import (
    CompletedBy,
    Restarts,
    Workload,
    known_without_pods,
    known_workloads,
    workloads_by_kind,
)
from webhook.cli.connection import connected
from webhook.cli.terminal import wrapped
from webhook.kube.discovery import Embedding, unread_definitions

_MEANINGS = {
    Restarts.POD: "",
    Restarts.GROUP: "a failed pod restarts its group",
    Restarts.JOB: "failed pods are retried as the workload specifies",
}
_COMPLETED_BY = {
    CompletedBy.SERVING_RUNTIME: "spec.predictor.model.runtime: merged over the ServingRuntime or "
    "ClusterServingRuntime that it names, if that is in the same files or cluster",
    CompletedBy.TRAINING_RUNTIME: "spec.runtimeRef: merged over the TrainingRuntime or "
    "ClusterTrainingRuntime that it names, if that is in the same files or cluster",
    CompletedBy.TEMPLATE: "spec.workloadRef: the template of the Deployment, ReplicaSet or PodTemplate "
    "that it names, if that is in the same files or cluster",
}


def listing() -> Iterator[str]:
    yield "Kinds whose pods are read. `workloads` in webhook.yaml adds to them."
    for workload in sorted(known_workloads(), key=lambda each: (each.api_group, each.kind)):
        yield ""
        yield f"{workload.group_kind}  ({', '.join(workload.versions)})"
        for line in facts(workload):
            yield from wrapped(line, "  ", "    ")
    yield ""
    yield "Kinds that have no pods to read:"
    for kind, why in sorted(known_without_pods().items(), key=lambda each: str(each[0])):
        yield from wrapped(f"{kind}: {why}", "  ", "    ")
    yield "  and every kind of Kubernetes itself that is not listed above"


def facts(workload: Workload) -> Iterator[str]:
    """The paths of a kind's pods, and the known properties of its pods."""
    for path in workload.templates:
        yield f"{path or '(the object itself)'}: pod {workload.shape.value}"
    for path in workload.specs:
        yield f"{path}: pod spec"
    for path in workload.containers:
        yield f"{path}: a container that a serving runtime completes"
    for entry in workload.composed:
        parts = [*entry.containers, *filter(None, [entry.main]), *entry.fields.values()]
        yield f"{entry.at}: pod from {', '.join(parts)} (findings only warn)"
    for override in workload.overrides:
        yield f"{override.at}: {override.patch} merged over {override.base} (findings only warn)"
    for path in workload.objects:
        yield f"{path}: a whole object, read as its own kind"
    for each in workload.applied:
        form = "a text with whole objects" if each.as_text else "a whole object"
        yield f"{each.at}.{each.object}: {form}, judged by the rules of its kind (findings only warn)"
    if workload.completed_by is not None:
        yield f"{_COMPLETED_BY[workload.completed_by]} (findings only warn; not in admission)"
    for field in workload.unread:
        yield f"not read: {field.path}: {field.why}"
    about = [
        f"pods owned by {workload.owner}" if workload.owner else "",
        "pods run to completion" if workload.completes else "",
        "pods form a group" if workload.group else "",
        _MEANINGS[workload.restarts],
        "" if workload.projected else "reviewed as written: the operator edits the pods",
        "its operator merges other objects into the pods, so no injection is shown"
        if workload.merged
        else "",
    ]
    yield from filter(None, ["; ".join(filter(None, about))])
    if workload.probes:
        yield f"probes: {workload.probes}"
    yield f"source: {workload.source}"


def of_cluster(kubeconfig: str | None, context: str | None) -> Iterator[str]:
    """The unknown kinds of a cluster whose schema has pods. UserError if the cluster can't be read."""
    with connected(kubeconfig, context) as (api, wait):
        found: list[Embedding] | None = wait(unread_definitions(api, workloads_by_kind()))
    yield ""
    if found is None:
        yield (
            "Unknown kinds of this cluster are not listed, because you may not list its "
            "CustomResourceDefinitions."
        )
    elif not found:
        yield "Every kind of this cluster whose schema has pods is read."
    else:
        yield "Kinds of this cluster whose schema has pods but that are not read:"
        for each in found:
            yield f"  {each.kind}: {', '.join(each.paths)}"
