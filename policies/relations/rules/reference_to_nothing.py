"""reference-to-nothing: references to an object of the default kind, while one of another kind exists, and
those of a pool to a Service of almost that name; and images that their registry no longer has."""

from __future__ import annotations

from typing import Final

from policies.core import data
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.facts import WholeObjects
from policies.core.services import POOLS
from policies.core.settings import Field, Model
from policies.kube.field_paths import every_value_at, field_path
from policies.kube.group_kinds import SERVICE, GroupKind
from policies.kube.images import glob_matches, registry, repository_and_tag
from policies.kube.json import mapping, text
from policies.kube.names import alike, listed
from policies.kube.pods import Container

_PICKERS: Final = ("extensionRef", "endpointPickerRef")
"""The fields of an InferencePool with its endpoint picker, in older and newer versions."""
_NAMES: Final = 64
"""Services of a namespace with which a missing name is compared."""


class Reference(Model):
    """An entry of `references.yaml`. Kinds are written as `Kind.group`."""

    kinds: tuple[str, ...] = Field(min_length=1, description="the kinds that have the reference")
    at: str = Field(description="the path of the map with the name")
    field: str = Field(description="the field in it that people leave out")
    means: str = Field(description="the kind that is meant without it")
    other: str = Field(description="the other kind")
    instead: str = Field(description="what to write for the other kind")
    source: str = Field(description="the documentation or thread that shows it")


class Withdrawn(Model):
    """An entry of `withdrawn_images.yaml`."""

    registry: str
    owner: str = Field(description="the first part of the images' path")
    names: tuple[str, ...] = Field((), description="the other part; empty: all")
    without: tuple[str, ...] = Field((), description="globs of names that are left")
    kept: tuple[str, ...] = Field((), description="the tags that are left; with a digest, nobody knows")
    since: str = Field(description="month and year")
    instead: str = Field(description="what to do, with {name} for the other part of the path")
    source: str


@data.table
def _references() -> dict[GroupKind, Reference]:
    entries = data.load_list(Reference, "policies.relations", "references.yaml")
    return {GroupKind.parse(kind): each for each in entries for kind in each.kinds}


@data.table
def _withdrawn() -> dict[str, Withdrawn]:
    entries = data.load_list(Withdrawn, "policies.relations", "withdrawn_images.yaml")
    return {each.owner: each for each in entries}


def check(target: Target, facts: Facts) -> Findings:
    if target.kind in POOLS:
        yield from _of_pool(target, facts)
    if (reference := _references().get(target.kind)) is not None:
        yield from _of_default_kind(reference, target, facts)
    for template in target.templates:
        yield from _withdrawn_images(template)


def _withdrawn_images(template: PodTemplate) -> Findings:
    """One finding for each image, at the first container that has it."""
    images: dict[str, list[Container]] = {}
    for container in template.containers():
        if container.typed.image_pull_policy != "Never":
            images.setdefault(container.image, []).append(container)
    for image, containers in images.items():
        owner, _, name = repository_and_tag(image)[0].partition("/")
        gone = _withdrawn().get(owner)
        if gone is None or not _lacks(gone, name, image):
            continue
        who = listed(each.name for each in containers)
        yield Finding(
            template.at(containers[0], "image"),
            f"{f'Container {who} has' if len(containers) == 1 else f'Containers {who} have'} an image that "
            f"{gone.registry} removed in {gone.since}. On a node without a copy of it, the pod stays in "
            "ImagePullBackOff.",
            gone.instead.format(name=name),
            Certainty.LIKELY,  # the nodes may pull through a cache
        )


def _lacks(gone: Withdrawn, name: str, image: str) -> bool:
    """Whether an image of an owner is one of those that the registry no longer has."""
    if registry(image) != gone.registry or (gone.names and name not in gone.names):
        return False
    if any(glob_matches(each, name) for each in gone.without):
        return False
    return not gone.kept or ("@" not in image and (repository_and_tag(image)[1] or "latest") not in gone.kept)


def _of_default_kind(known: Reference, target: Target, facts: Facts) -> Findings:
    whole = facts.whole
    means, other = GroupKind.parse(known.means), GroupKind.parse(known.other)
    for steps, node in every_value_at(target.obj, known.at) if whole is not None else ():
        name = text(node, "name")
        if whole is None or not name or not isinstance(node, dict) or node.get(known.field):
            continue
        if _has(means, name, whole, facts) or not _has(other, name, whole, facts):
            continue
        yield Finding(
            f"{field_path(steps)}.name",
            f"Without {known.field}, this names the {means.kind} {name}, which isn't there, and not the "
            f"{other.kind} {name}. Only the status or the controller's log says so.",
            f"Add {known.instead}.",
        )


def _of_pool(target: Target, facts: Facts) -> Findings:
    """The endpoint picker of an InferencePool, without which a gateway sends no request."""
    whole = facts.whole
    for field in _PICKERS if whole is not None else ():
        reference = mapping(target.spec, field)
        name = text(reference, "name")
        if whole is None or not name or text(reference, "kind") not in ("", "Service") or "$" in name:
            continue
        known = [text(each, "metadata", "name") for each in whole.every(SERVICE, facts.namespace)]
        if len(known) > _NAMES:
            return
        like = alike(name, known)
        if like and name not in known:
            yield Finding(
                f"spec.{field}.name",
                f"There is no Service {name} among these manifests, only {like}. The gateway doesn't reach "
                "the endpoint picker, and the requests for this pool fail.",
                f"Name {like}.",
                Certainty.LIKELY,
            )


def _has(kind: GroupKind, name: str, whole: WholeObjects, facts: Facts) -> bool:
    """Whether there is such an object; kinds of the whole cluster say so in their name."""
    namespace = "" if kind.kind.startswith("Cluster") else facts.namespace
    return whole.named(kind, namespace, name) is not None


RULE = rule(__name__, check, unowned=True, also=(*_references(), *POOLS))
