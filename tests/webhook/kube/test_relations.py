"""Waits of other workloads: what watch caches keep of them; caches and manifests give the same answers."""

from __future__ import annotations

import pytest

from policies.core.facts import Cluster
from policies.core.pod_templates import pod_templates
from policies.core.target import Target
from policies.core.workloads import workloads_by_kind
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json
from policies.relations import wait_cycles
from policies.relations.links import CACHED_LINKS, MAX_LINKS, CachedLinks, cached_links
from policies.relations.wait_cycles import cycle_through
from tests.manifests import manifest
from tests.webhook.kube.filled import filled, stores_of
from webhook.kube.caches import ClusterCache
from webhook.manifests.cluster import ManifestCluster

WORKLOADS = workloads_by_kind()


def deployment(name: str, *waits_for: str, **status: int) -> Json:
    scripts = [f"until nc -z {host} 80; do sleep 2; done" for host in waits_for]
    init = [{"name": f"wait-{n}", "command": ["sh", "-c", script]} for n, script in enumerate(scripts)]
    spec = {"initContainers": init, "containers": [{"name": name, "image": "x"}]}
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    selector = {"matchLabels": {"app": name}}
    made = manifest("Deployment", name, {"selector": selector, "template": template}, namespace="ml")
    return {**made, "status": status}


def service(name: str) -> Json:
    return manifest("Service", name, {"selector": {"app": name}, "ports": [{"port": 80}]}, namespace="ml")


def members(obj: Json, cluster: Cluster) -> list[str]:
    target = Target(obj, kind_of(obj), pod_templates(obj, WORKLOADS))
    cycle = cycle_through(target, obj["metadata"]["namespace"], cluster)
    return [step.waiter.name for step in cycle.steps] if cycle else []


def test_a_watch_cache_and_manifests_give_the_same_cycles() -> None:
    objects = [
        deployment("a", "b"),
        deployment("b", "c", "outside.example"),
        deployment("c", "a.ml", "d"),
        deployment("d"),
        deployment("e", "a"),
        *map(service, "abcde"),
    ]
    for cluster in (filled(*objects), ManifestCluster(objects)):
        assert members(objects[0], cluster) == ["a", "b", "c"]
        assert members(objects[2], cluster) == ["c", "a", "b"]
        assert members(objects[3], cluster) == []
        assert members(objects[4], cluster) == [], "it waits for a cycle, but is no part of it"


def test_the_cache_follows_changes_of_waits_and_of_readiness() -> None:
    a, b = deployment("a", "b"), deployment("b", "a")
    cache = filled(b, service("a"), service("b"))
    assert members(a, cache) == ["a", "b"]
    stores_of(cache)["Deployment"].put(deployment("b"))
    assert members(a, cache) == []
    stores_of(cache)["Deployment"].put(deployment("b", "a", readyReplicas=3))
    target = Target(a, kind_of(a), pod_templates(a, WORKLOADS))
    cycle = cycle_through(target, "ml", cache)
    assert cycle is not None
    assert cycle.running is not None
    assert cycle.running.name == "b"


def test_only_a_change_between_some_and_no_ready_pods_changes_a_listing() -> None:
    cache = filled(deployment("b", "a", readyReplicas=1))
    before = stores_of(cache)["Deployment"].listing("ml")
    stores_of(cache)["Deployment"].put(deployment("b", "a", readyReplicas=7))
    assert stores_of(cache)["Deployment"].listing("ml") is before
    stores_of(cache)["Deployment"].put(deployment("b", "a", readyReplicas=0))
    assert stores_of(cache)["Deployment"].listing("ml") is not before


def test_a_workload_that_neither_waits_nor_is_ready_has_no_cached_links() -> None:
    (kept,) = stores_of(filled(deployment("idle")))["Deployment"].listing("ml")
    assert CACHED_LINKS not in kept


def test_a_manifest_cannot_forge_cached_links() -> None:
    forged = {**deployment("b"), CACHED_LINKS: [{"relation": "waits for", "host": "a"}]}
    objects = [deployment("a", "b"), forged, service("a"), service("b")]
    assert members(objects[0], ManifestCluster(objects)) == []
    assert members(objects[0], filled(*objects)) == []


def test_a_hostile_workload_has_a_bounded_number_of_links() -> None:
    hosts = " ".join(f"h{n}" for n in range(5_000))
    looped = deployment("b", "h")
    script = f"for h in {hosts}; do until nc -z $h 80; do sleep 1; done; done"
    looped["spec"]["template"]["spec"]["initContainers"][0]["command"][2] = script
    for hostile in (deployment("a", *[f"s{n}" for n in range(500)]), looped):
        cached = cached_links(hostile)
        assert cached is None or len(cached.links) <= MAX_LINKS


def test_a_command_that_costs_too_much_to_read_has_no_known_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(cached_links(deployment("a", "b")), CachedLinks)
    monkeypatch.setattr("policies.relations.links.MAX_STEPS", 5)
    assert cached_links(deployment("a", "b")) is None


def test_a_group_that_is_too_large_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = [deployment(f"d{n}", f"d{(n + 1) % 12}") for n in range(12)]
    objects = [*ring, *(service(f"d{n}") for n in range(12))]
    assert len(members(ring[0], filled(*objects))) == 12
    monkeypatch.setattr(wait_cycles, "MAX_WAITERS", 8)
    assert members(ring[0], filled(*objects)) == []


def test_a_service_that_selects_everything_ends_a_wait() -> None:
    everything = {**service("all"), "spec": {"selector": {"tier": "ml"}}}
    objects = [deployment("a", "all"), deployment("b", "a"), deployment("c"), everything, service("a")]
    for obj in objects[:3]:
        obj["spec"]["template"]["metadata"]["labels"]["tier"] = "ml"
    assert members(objects[0], filled(*objects)) == [], "c starts, and answers"
    assert members(objects[0], filled(*objects[:2], *objects[3:])) == ["a"], "only a and b are behind it"


def test_nothing_is_found_where_services_or_workloads_are_not_known() -> None:
    a, b = deployment("a", "b"), deployment("b", "a")
    assert members(a, ClusterCache()) == []
    assert members(a, ManifestCluster([a, b])) == []
    assert members(a, ManifestCluster([service("a"), service("b")])) == []
