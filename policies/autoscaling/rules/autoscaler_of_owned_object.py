"""autoscaler-of-owned-object: autoscalers of workloads whose replicas an operator of `owners.yaml` sets, and
annotations of autoscalers that such an operator replaces."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from policies.core import data
from policies.core.autoscalers import scaled_by
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.settings import Field, Model
from policies.kube.group_kinds import AUTOSCALER, INFERENCE_SERVICE, SCALED_OBJECT, GroupKind
from policies.kube.json import Json, dig, text
from policies.kube.objects.metadata import Object, ObjectReference
from policies.kube.objects.scaling import ScaledObject


class ReplacedAnnotation(Model):
    """An annotation of a custom resource that its operator writes from a field."""

    annotation: str
    field: str = Field(description="the path of the field")
    default: str = Field("", description="what it writes without the field; empty: no such annotation")
    source: str = Field(description="the code that shows it")


class OwnerKind(Model):
    """An entry of `owners.yaml`."""

    kind: str = Field(pattern=r"^\w+\.[\w.-]+$", description="the custom resource, as `Kind.group`")
    names: tuple[str, ...] = Field(
        description="the names of its Deployments and StatefulSets; the first `*` is its own name; "
        "any text may follow a second one"
    )
    unless: tuple[str, ...] = Field(
        (), description="annotations, as `key=value`, with which its operator leaves the replicas to others"
    )
    instead: str = Field(description="the fields that scale it: the end of a sentence that begins with `Use`")
    itself: str = Field(
        "has no scale subresource",
        description="why an autoscaler can't scale the resource itself; empty: new versions can be scaled",
    )
    replaces: tuple[ReplacedAnnotation, ...] = Field(
        (), description="annotations for an autoscaler that its operator replaces"
    )
    without_selector: bool = Field(
        False,
        description="whether it has a scale subresource without a selector: KEDA itself sets zero and one "
        "replica, or its minimum, but its HorizontalPodAutoscaler, which sets more, fails",
    )
    source: str = Field(description="the documentation that shows it")

    @property
    def group_kind(self) -> GroupKind:
        return GroupKind.parse(self.kind)


class Owned(Struct, frozen=True):
    """A workload of an operator."""

    owner: OwnerKind
    name: str
    """The name of the custom resource."""
    itself: bool
    """Whether the custom resource itself is scaled."""


def _owner_of(reference: ObjectReference, facts: Facts) -> Owned | None:
    """The custom resource that a reference names, or whose workload it names; None if none is known."""
    for owner in _owners():
        kind = owner.group_kind
        if (reference.api_version.partition("/")[0], reference.kind) == (kind.group, kind.kind):
            return Owned(owner, reference.name, itself=True)
        # KEDA takes a reference without a kind for a Deployment.
        if reference.kind in ("", "Deployment", "StatefulSet") and facts.whole is not None:
            for name in _possible(owner, reference.name):
                obj = facts.whole.named(kind, facts.namespace, name)
                if obj is not None and not _leaves_replicas(owner, obj):
                    return Owned(owner, name, itself=False)
    return None


def _leaves_replicas(owner: OwnerKind, obj: Json) -> bool:
    """Whether an annotation of a custom resource leaves the replicas of its workloads to others."""
    pairs = (each.partition("=") for each in owner.unless)
    return any(text(obj, "metadata", "annotations", key) == value for key, _, value in pairs)


def _possible(owner: OwnerKind, workload: str) -> Iterator[str]:
    """The names of custom resources that would make a workload of a name."""
    for pattern in owner.names:
        prefix, _, after = pattern.partition("*")
        suffix, several, end = after.partition("*")
        name = workload.removeprefix(prefix)
        if (
            workload.startswith(prefix)
            and (suffix in name if several else True)
            and name.endswith(end if several else suffix)
        ):
            yield name.partition(suffix)[0] if several else name[: len(name) - len(suffix)]


_owners = data.entries(OwnerKind, "policies.autoscaling", "owners.yaml")


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == INFERENCE_SERVICE:
        yield from _replaced(target)
        return
    reference = scaled_by(target)
    owned = _owner_of(reference, facts)
    if owned is None or (owned.itself and not owned.owner.itself):
        return
    if owned.itself and owned.owner.without_selector and _needs_no_autoscaler(target):
        return
    kind = owned.owner.group_kind.kind
    yield Finding(
        "spec.scaleTargetRef",
        f"The kind {kind} {owned.owner.itself}, so the autoscaler can't scale it."
        if owned.itself
        else (
            f"{kind} {owned.name} owns {reference.kind or 'Deployment'} {reference.name}, and its operator "
            "resets the replicas."
        ),
        f"Use {owned.owner.instead}{_or_annotate(owned)}.",
    )


def _or_annotate(owned: Owned) -> str:
    """The end of a sentence: how the operator leaves the replicas to others, if it does."""
    if owned.itself or not owned.owner.unless:
        return ""
    return f", or annotate the {owned.owner.group_kind.kind} with {owned.owner.unless[0]}"


def _needs_no_autoscaler(target: Target) -> bool:
    """Whether KEDA itself sets every number of replicas of a ScaledObject.

    `scaleFromZeroOrIdle` and `scaleToZeroOrIdle` update the scale subresource and read no selector:
    https://github.com/kedacore/keda/blob/8b4f083ca8c8c2baf8477e322bd4d16ac4dfa09a/pkg/scaling/executor/scale_scaledobjects.go
    """
    if target.kind != SCALED_OBJECT:
        return False
    spec = target.read(ScaledObject).spec
    most = spec.max_replica_count
    return most is not None and most <= max(1, spec.min_replica_count or 0)


def _replaced(target: Target) -> Findings:
    """One finding about the annotations that differ from what the operator replaces them by."""
    annotations = target.read(Object).metadata.annotations
    if not annotations:
        return
    for owner in _owners():
        if owner.group_kind != target.kind or _leaves_replicas(owner, target.obj):
            continue
        found = []
        for each in owner.replaces:
            wanted = annotations.get(each.annotation, "")
            set_to = dig(target.obj, *each.field.split("."))
            value = each.default if set_to is None else str(set_to)
            if wanted and wanted != value:
                found.append((each, wanted, _becomes(value, by_default=set_to is None)))
        if not found:
            continue
        one = len(found) == 1
        fields = dict.fromkeys(f"{each.field}, which is {becomes}" for each, _, becomes in found)
        which = "this annotation" if one else "the annotations"
        yield Finding(
            f"metadata.annotations[{found[0][0].annotation}]",
            f"The operator of {target.kind.kind} replaces {which} "
            + (
                f"({found[0][1]})"
                if one
                else " and ".join(f"{each.annotation} ({now})" for each, now, _ in found)
            )
            + f" by {', and '.join(fields)}. {'It has' if one else 'They have'} no effect.",
            f"Set {' and '.join(dict.fromkeys(each.field for each, _, _ in found))} instead.",
        )


def _becomes(value: str, *, by_default: bool) -> str:
    if not value:
        return "not set"
    return f"{value} by default" if by_default else value


RULE = rule(__name__, check, (AUTOSCALER, SCALED_OBJECT, INFERENCE_SERVICE), unowned=True)
