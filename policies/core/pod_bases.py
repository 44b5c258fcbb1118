"""The bases of pods: which object completes the pods of another. That is a serving runtime, a training
runtime, or a workload with the template.

`kserve` and `trainer` merge as the operators do. If the other object is missing or lacks a required field,
there is no pod, and the object counts as partly read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from policies.core.composing import Origins
from policies.core.workloads import CompletedBy, Workload
from policies.kube.group_kinds import DEPLOYMENT, REPLICA_SET, GroupKind
from policies.kube.json import Json, text

Find = Callable[[GroupKind, str, str], Json | None]
"""The whole object of a kind, a namespace (empty: not namespaced) and a name; None if it is unknown."""

SERVING_RUNTIME: Final = GroupKind("serving.kserve.io", "ServingRuntime")
CLUSTER_SERVING_RUNTIME: Final = GroupKind("serving.kserve.io", "ClusterServingRuntime")
TRAINING_RUNTIME: Final = GroupKind("trainer.kubeflow.org", "TrainingRuntime")
CLUSTER_TRAINING_RUNTIME: Final = GroupKind("trainer.kubeflow.org", "ClusterTrainingRuntime")
POD_TEMPLATE: Final = GroupKind("", "PodTemplate")
BASE_KINDS: Final = (
    SERVING_RUNTIME,
    CLUSTER_SERVING_RUNTIME,
    TRAINING_RUNTIME,
    CLUSTER_TRAINING_RUNTIME,
    DEPLOYMENT,
    REPLICA_SET,
    POD_TEMPLATE,
)
"""The kinds whose objects complete the pods of others."""


class Reference(Struct, frozen=True):
    """A reference to an object that completes pods."""

    at: str
    """Field path of the reference."""
    candidates: tuple[tuple[GroupKind, bool], ...]
    """The possible kinds in order, each with whether it is namespaced."""
    name: str


class Base(Struct, frozen=True):
    """The object that completes the pods of another."""

    obj: Json
    kind: GroupKind
    at: str
    """Field path of the reference to it."""

    @property
    def name(self) -> str:
        return text(self.obj, "metadata", "name")


class BasedPod(Struct, frozen=True):
    """One pod that its base completes."""

    spec: Json
    metadata: Json
    origins: Origins
    """Paths in the other object begin with `ELSEWHERE`."""
    path: str
    """Field path of the pod's description in the workload."""
    reads: tuple[str, ...]
    """Field paths that are read here, although the table of kinds declares them unread."""
    replaces: tuple[str, ...]
    """Field paths of the templates that this pod replaces."""


def reference_of(obj: Json, workload: Workload) -> Reference | None:
    """The reference to the object that completes the pods of a workload."""
    match workload.completed_by:
        case CompletedBy.SERVING_RUNTIME:
            name = text(obj, "spec", "predictor", "model", "runtime")
            candidates = ((SERVING_RUNTIME, True), (CLUSTER_SERVING_RUNTIME, False))
            return Reference("spec.predictor.model.runtime", candidates, name) if name else None
        case CompletedBy.TRAINING_RUNTIME:
            name = text(obj, "spec", "runtimeRef", "name")
            kind = text(obj, "spec", "runtimeRef", "kind") or CLUSTER_TRAINING_RUNTIME.kind
            known = {each.kind: each for each in (TRAINING_RUNTIME, CLUSTER_TRAINING_RUNTIME)}
            if not name or kind not in known:
                return None
            return Reference("spec.runtimeRef", ((known[kind], kind == TRAINING_RUNTIME.kind),), name)
        case CompletedBy.TEMPLATE:
            name, kind = text(obj, "spec", "workloadRef", "name"), text(obj, "spec", "workloadRef", "kind")
            known = {each.kind: each for each in (DEPLOYMENT, REPLICA_SET, POD_TEMPLATE)}
            return (
                Reference("spec.workloadRef", ((known[kind], True),), name)
                if name and kind in known
                else None
            )
    return None


def base_of(obj: Json, workload: Workload, namespace: str, find: Find) -> Base | None:
    """The object that completes the pods of a workload; None if it is unknown."""
    reference = reference_of(obj, workload)
    if reference is None:
        return None
    for kind, namespaced in reference.candidates:
        found = find(kind, namespace if namespaced else "", reference.name)
        if found is not None:
            return Base(found, kind, reference.at)
    return None
