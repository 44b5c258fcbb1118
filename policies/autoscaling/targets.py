"""The pods of the workload that a ScaledObject scales."""

from __future__ import annotations

from policies.core.facts import BY_NAME, Facts
from policies.core.pod_view import PodView
from policies.core.resources import Resource
from policies.kube.json import mapping, text
from policies.kube.objects.metadata import ObjectReference


def pods_of(reference: ObjectReference, facts: Facts) -> list[PodView]:
    """The pod templates of the workload; without their containers in the webhook's cache."""
    workloads = facts.listing(Resource.WORKLOADS)
    named = () if workloads is None else workloads.by(BY_NAME)[reference.name]
    kind = reference.kind or "Deployment"
    return [facts.view(mapping(each, "spec", "template")) for each in named if text(each, "kind") == kind]
