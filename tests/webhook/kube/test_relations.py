"""Waits of other workloads: what watch caches keep of them; caches and manifests give the same answers."""

from __future__ import annotations

from typing import Any

import pytest

from policies.core.facts import Cluster
from policies.core.target import Target, pod_templates
from policies.core.workloads import known_workloads
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json
from policies.relations import waiters
from policies.relations.links import MOST_LINKS
from policies.relations.waiters import KEPT, Kept, cycle_through
from tests.manifests import manifest
from webhook.kube.caches import ClusterCache
from webhook.kube.offline import ManifestCluster

WORKLOADS = {each.gk: each for each in known_workloads()}


def deployment(name: str, *waits_for: str, namespace: str = "ml", **status: int) -> Json:
    init = [
        {"name": f"wait-{n}", "command": ["sh", "-c", f"until nc -z {host} 80; do sleep 2; done"]}
        for n, host in enumerate(waits_for)
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"initContainers": init, "containers": [{"name": name, "image": "x"}]},
            },
        },
        "status": status,
    }


def service(name: str, namespace: str = "ml") -> Json:
    spec = {"selector": {"app": name}, "ports": [{"port": 80}]}
    return manifest("Service", name, spec, namespace=namespace)


def watched(*objects: Json) -> ClusterCache:
    """A cache that was filled as by lists, whose items have neither apiVersion nor kind."""
    cache = ClusterCache()
    for _, _, store in cache.sources:
        store.begin()
        for obj in objects:
            if obj["kind"] == store.kind:
                store.put({key: value for key, value in obj.items() if key not in ("apiVersion", "kind")})
        store.commit()
    return cache


def store_of(cache: ClusterCache, kind: str) -> Any:
    return next(store for _, _, store in cache.sources if store.kind == kind)


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
    for cluster in (watched(*objects), ManifestCluster(objects)):
        assert members(objects[0], cluster) == ["a", "b", "c"]
        assert members(objects[2], cluster) == ["c", "a", "b"]
        assert members(objects[3], cluster) == []
        assert members(objects[4], cluster) == [], "it waits for a cycle, but is no part of it"


def test_the_cache_follows_changes_of_waits_and_of_readiness() -> None:
    a, b = deployment("a", "b"), deployment("b", "a")
    cache = watched(b, service("a"), service("b"))
    assert members(a, cache) == ["a", "b"]
    store_of(cache, "Deployment").put(deployment("b"))
    assert members(a, cache) == []
    store_of(cache, "Deployment").put(deployment("b", "a", readyReplicas=3))
    target = Target(a, kind_of(a), pod_templates(a, WORKLOADS))
    cycle = cycle_through(target, "ml", cache)
    assert cycle is not None
    assert cycle.running is not None
    assert cycle.running.name == "b"


def test_only_a_change_between_some_and_no_ready_pods_changes_a_listing() -> None:
    cache = watched(deployment("b", "a", readyReplicas=1))
    before = store_of(cache, "Deployment").listing("ml")
    store_of(cache, "Deployment").put(deployment("b", "a", readyReplicas=7))
    assert store_of(cache, "Deployment").listing("ml") is before
    store_of(cache, "Deployment").put(deployment("b", "a", readyReplicas=0))
    assert store_of(cache, "Deployment").listing("ml") is not before


def test_a_workload_that_neither_waits_nor_serves_costs_nothing() -> None:
    (kept,) = store_of(watched(deployment("idle")), "Deployment").listing("ml")
    assert KEPT not in kept


def test_a_manifest_cannot_forge_what_the_cache_keeps() -> None:
    forged = {**deployment("b"), KEPT: [{"relation": "waits for", "host": "a"}]}
    objects = [deployment("a", "b"), forged, service("a"), service("b")]
    assert members(objects[0], ManifestCluster(objects)) == []
    assert members(objects[0], watched(*objects)) == []


def test_a_hostile_workload_has_a_bounded_number_of_links() -> None:
    words = " ".join(f"h{n}" for n in range(5_000))
    endless = deployment("a", *[f"s{n}" for n in range(500)])
    kept = waiters.kept(endless)
    assert kept is None or len(kept.links) <= MOST_LINKS
    script = f"for h in {words}; do until nc -z $h 80; do sleep 1; done; done"
    many = deployment("b")
    many["spec"]["template"]["spec"]["initContainers"] = [{"name": "w", "command": ["sh", "-c", script]}]
    kept = waiters.kept(many)
    assert kept is None or len(kept.links) <= MOST_LINKS


def test_a_command_that_costs_too_much_to_read_has_no_known_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(waiters.kept(deployment("a", "b")), Kept)
    monkeypatch.setattr(waiters, "MOST_STEPS", 5)
    assert waiters.kept(deployment("a", "b")) is None


def test_a_group_that_is_too_large_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = [deployment(f"d{n}", f"d{(n + 1) % 12}") for n in range(12)]
    objects = [*ring, *(service(f"d{n}") for n in range(12))]
    assert len(members(ring[0], watched(*objects))) == 12
    monkeypatch.setattr(waiters, "MOST_WAITERS", 8)
    assert members(ring[0], watched(*objects)) == []


def test_a_service_that_selects_everything_ends_a_wait() -> None:
    everything = {**service("all"), "spec": {"selector": {"tier": "ml"}}}
    objects = [deployment("a", "all"), deployment("b", "a"), deployment("c"), everything, service("a")]
    for obj in objects[:3]:
        obj["spec"]["template"]["metadata"]["labels"]["tier"] = "ml"
    assert members(objects[0], watched(*objects)) == [], "c starts, and answers"
    assert members(objects[0], watched(*objects[:2], *objects[3:])) == ["a"], "only a and b are behind it"


def test_nothing_is_found_where_services_or_workloads_are_not_known() -> None:
    a, b = deployment("a", "b"), deployment("b", "a")
    assert members(a, ClusterCache()) == []
    assert members(a, ManifestCluster([a, b])) == []
    assert members(a, ManifestCluster([service("a"), service("b")])) == []
