"""The kinds that are known, and where each keeps its pod templates. No reading of objects."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Final

from pydantic import Field

from policies.core import data
from policies.core.settings import Model
from policies.kube.group_kinds import GroupKind

KSERVE_CONTAINER: Final = "kserve-container"
"""What KServe calls the container that it makes from a predictor's model and a ServingRuntime."""


class Shape(StrEnum):
    """What stands at a path: a pod template, or a pod spec with no metadata of its own."""

    TEMPLATE = "template"
    SPEC = "spec"


class Workload(Model):
    """Where a kind keeps its pod templates, and what the pods made from them are like."""

    api_group: str = Field(description="API group of the kind; empty for the core group")
    kind: str = Field(description="the kind, such as RayCluster")
    templates: tuple[str, ...] = Field(
        description="paths of pod templates: names joined by dots, `[*]` for every element of a "
        "list and `.*` for every value of a map"
    )
    shape: Shape = Field(
        Shape.TEMPLATE,
        description="`template` where metadata and spec stand at the path, `spec` where a pod "
        "spec does (its pods then carry the object's own labels and annotations)",
    )
    containers: tuple[str, ...] = Field(
        (),
        description="paths of single containers that a serving runtime completes to a pod, such as the "
        "`model` of KServe's predictor; the pod's other fields stand beside them",
    )
    completes: bool = Field(False, description="whether its pods run to completion, as a Job's do")
    projected: bool = Field(
        True,
        description="whether rules judge the template as the pod-level policies would leave it; "
        "false where another operator edits the pods after this one",
    )
    owner: str = Field("", description="kind of the object that owns the pods; empty: the workload itself")

    @property
    def gk(self) -> GroupKind:
        return GroupKind(self.api_group, self.kind)


@cache
def known_workloads() -> tuple[Workload, ...]:
    """The kinds of workloads.yaml; `webhook.yaml` may add to them."""
    return data.load_list(Workload, __package__, "workloads.yaml")
