"""Objects of a listing as a type."""

from __future__ import annotations

from policies.core.facts import Facts
from policies.core.listing import Listing, TypedIndex
from policies.core.resources import Resource, resource_kinds, resource_of
from policies.kube.json import Json
from policies.kube.objects.kinds import type_of
from policies.kube.objects.scaling import HorizontalPodAutoscaler
from policies.kube.objects.workloads import Replicated, StatefulSet


def autoscaler(name: str, of: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"scaleTargetRef": {"name": of}, "maxReplicas": 3}}


BY_TARGET = TypedIndex(HorizontalPodAutoscaler, lambda each: (each.spec.scale_target_ref.name,))


def test_objects_are_found_by_name_and_by_index_and_converted_once() -> None:
    listing = Listing([autoscaler("a", "x"), autoscaler("b", "y"), autoscaler("c", "y")])
    objects = listing.objects(HorizontalPodAutoscaler)
    assert listing.objects(HorizontalPodAutoscaler) is objects
    assert [each.name for each in objects] == ["a", "b", "c"]
    assert len(objects) == 3
    found = objects.named("b")
    assert found is not None
    assert found.spec.max_replicas == 3
    assert objects.one(BY_TARGET, "y") is objects.named("c"), "of several the last name"
    assert [each.name for each in objects.by(BY_TARGET, "y")] == ["b", "c"]
    assert next(objects.all_named("b")) is found
    assert objects.named("x") is None
    assert objects.one(BY_TARGET, "z") is None


def test_facts_find_the_resource_of_a_type() -> None:
    class Known:
        def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
            known = {Resource.AUTOSCALERS: Listing([autoscaler("a", "x")])}
            return known.get(resource) if namespace in (None, "ml") else None

    facts = Facts("ml", Known())
    assert [each.name for each in facts.objects(HorizontalPodAutoscaler) or ()] == ["a"]
    assert [each.name for each in facts.cluster_objects(HorizontalPodAutoscaler) or ()] == ["a"]
    assert facts.objects(Replicated) is None
    assert resource_of(Replicated) is resource_of(StatefulSet) is Resource.WORKLOADS


def test_every_watched_kind_has_a_type_of_its_own() -> None:
    assert all(resource_of(type_of(known.group_kind)) is known.resource for known in resource_kinds())
