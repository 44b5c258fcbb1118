"""The watch caches: what they keep, what they forget, and that they know what they don't know."""

from __future__ import annotations

import tracemalloc
from typing import Any

import orjson
import pytest

from policies.core.annotations import MODEL_CONFIG
from policies.core.listing import Listing
from policies.core.resources import Resource, resource_kinds
from policies.kube.json import Json
from tests.webhook.kube.filled import fill, stores_of
from webhook.kube import caches as facts
from webhook.kube.caches import ClusterCache, Store
from webhook.kube.calls import ApiError

[SERVICES] = [known for known in resource_kinds() if known.resource is Resource.SERVICES]


def service(name: str, namespace: str = "ml", **spec: Any) -> Json:
    metadata = {"name": name, "namespace": namespace, "annotations": {"big": "x" * 100}, "uid": "u"}
    return {"metadata": metadata, "spec": {"selector": {"app": name}, "ports": [{"port": 80}], **spec}}


def names(listing: Listing | None) -> list[str]:
    assert listing is not None
    return sorted(item["metadata"]["name"] for item in listing)


@pytest.fixture
def store() -> Store:
    return Store(SERVICES)


PORTS = [{"port": 80, "targetPort": "http"}, {"port": 81, "targetPort": 8081}, {"port": 82}, "odd"]


@pytest.mark.parametrize(
    ("spec", "stored"),
    [
        (
            {"selector": {"app": "a"}, "clusterIP": "None", "internalTrafficPolicy": "Cluster"},
            {"selector": {"app": "a"}, "clusterIP": "None"},
        ),
        (
            {"clusterIP": "10.0.0.1", "ports": PORTS},
            {"clusterIP": "10.0.0.1", "ports": [{"targetPort": "http"}]},
        ),
        ({"ports": PORTS[1:]}, None),
        ("odd", None),
    ],
)
def test_only_the_fields_that_rules_read_are_stored(store: Store, spec: Any, stored: Json | None) -> None:
    metadata = {"name": "a", "namespace": "ml"}
    fill(store, {"metadata": {**metadata, "uid": "u"}, "spec": spec, "status": {"loadBalancer": {}}})
    assert list(store.listing("ml")) == [{"metadata": metadata, **({"spec": stored} if stored else {})}]


def test_every_resource_has_a_source_and_each_kept_object_is_recognisable() -> None:
    assert {known.resource for known in resource_kinds()} == set(Resource) - {Resource.OBSERVED}
    for known in resource_kinds():
        store = Store(known)
        labels = {known.label: "true"} if known.label else {}
        fill(store, {"metadata": {"name": "a", "labels": labels}})
        (item,) = store.listing(None)
        assert item["metadata"]["name"] == "a"
        assert item.get("kind", known.group_kind.kind) == known.group_kind.kind


def test_a_listing_stays_the_same_object_until_something_in_its_namespace_changes(store: Store) -> None:
    fill(store, service("a"), service("b", "other"))
    ml, other, everything = store.listing("ml"), store.listing("other"), store.listing(None)
    store.put({**service("a"), "status": {"loadBalancer": {"ingress": []}}})
    assert store.listing("ml") is ml, "a change of what is not kept is no change"
    store.put(service("c", "other"))
    assert store.listing("ml") is ml
    assert store.listing("other") is not other
    assert names(store.listing("other")) == ["b", "c"]
    assert names(store.listing(None)) == ["a", "b", "c"]
    assert names(everything) == ["a", "b"], "a listing that was handed out never changes"


def test_removing_the_last_object_of_a_namespace_forgets_the_namespace(store: Store) -> None:
    fill(store, service("a"), service("b", "other"))
    store.remove(service("b", "other"))
    store.remove(service("never there", "other"))
    assert names(store.listing(None)) == ["a"]
    assert (len(store), names(store.listing("other"))) == (1, [])


def test_a_new_list_drops_missing_objects_in_one_step_and_keeps_equal_listings(store: Store) -> None:
    fill(store, service("a"), service("b"), service("c", "other"))
    ml, everything = store.listing("ml"), store.listing(None)
    fill(store, service("c", "other"), service("b"), service("a"))
    assert store.listing("ml") is ml
    assert store.listing(None) is everything
    store.begin()
    store.put(service("b"))
    store.put(service("d"))
    assert names(store.listing("ml")) == ["a", "b"]
    store.commit()
    assert names(store.listing("ml")) == ["b", "d"]
    assert names(store.listing(None)) == ["b", "d"]


def test_an_object_with_a_wrong_type_is_left_out_and_counted() -> None:
    skipped: list[Resource] = []
    cache = ClusterCache(on_skip=skipped.append)
    store = stores_of(cache)["Service"]
    fill(store, service("a"), service("b", type=7), service("c"))
    assert names(store.listing("ml")) == ["a", "c"]
    store.put(service("a", selector={"n": 1}))
    assert names(store.listing("ml")) == ["c"], "what it was before is no better"
    assert skipped == [Resource.SERVICES] * 2
    store.put(service("a"))
    assert names(store.listing("ml")) == ["a", "c"]


def test_a_wrong_type_in_a_field_that_is_not_kept_does_no_harm() -> None:
    store = stores_of(ClusterCache())["Deployment"]
    waits = {"name": "i", "command": ["sh", "-c", "until nc -z db 5432; do sleep 1; done"], "env": 3}
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"initContainers": [waits]}}
    fill(store, {"metadata": {"name": "a", "namespace": "ml"}, "spec": {"template": template}})
    assert names(store.listing("ml")) == ["a"]


def test_an_interrupted_list_keeps_the_last_state(store: Store) -> None:
    fill(store, service("a"))
    store.begin()
    store.put(service("b"))
    store.lost(ApiError(0, "Unreachable", "gone"))
    assert store.synced
    assert names(store.listing("ml")) == ["a"]
    store.put(service("c"))
    assert names(store.listing("ml")) == ["a", "c"]


@pytest.mark.parametrize(
    ("status", "known"), [(0, True), (500, True), (403, False), (404, False), (401, False)]
)
def test_forbidden_objects_are_unknown_during_an_outage_they_are_not(
    store: Store, status: int, known: bool
) -> None:
    fill(store, service("a"))
    before = store.listing("ml")
    store.lost(ApiError(status, "", ""))
    assert store.synced is known
    fill(store, service("a"))
    assert (store.listing("ml") is before) is known, "decisions without the right are not used again"


def test_a_kind_that_a_cluster_need_not_serve_is_known_to_have_no_objects() -> None:
    cache = ClusterCache()
    stores_of(cache)["LeaderWorkerSet"].lost(ApiError(404, "", "404 page not found"))
    assert names(cache.listing(Resource.GROUPS, "ml")) == []
    everything = cache.listing(Resource.GROUPS)
    stores_of(cache)["LeaderWorkerSet"].lost(ApiError(404, "", "404 page not found"))
    assert cache.listing(Resource.GROUPS) is everything, "a retry changes nothing"
    stores_of(cache)["Service"].lost(ApiError(404, "", "404 page not found"))
    assert cache.listing(Resource.SERVICES, "ml") is None


def test_cohorts_are_known_in_the_version_that_the_cluster_serves() -> None:
    """Kueue 0.9 to 0.12 serve v1alpha1. An empty list of v1beta1 would hide what a parent lends."""
    cache = ClusterCache()
    served = {path.split("/")[3]: store for path, _, store in cache.sources if path.endswith("/cohorts")}
    assert set(served) == {"v1alpha1", "v1beta1"}
    served["v1beta1"].lost(ApiError(404, "", "404 page not found"))
    assert cache.listing(Resource.COHORTS) is None, "the other version is not listed yet"
    fill(served["v1alpha1"], {"metadata": {"name": "ml"}, "spec": {"parent": "top"}})  # type: ignore[arg-type]
    assert [item["spec"] for item in cache.listing(Resource.COHORTS) or ()] == [{"parent": "top"}]


def test_nothing_is_known_before_the_first_list_and_unknown_is_not_empty() -> None:
    seen: list[tuple[Resource, bool]] = []
    cache = ClusterCache(lambda resource, synced: seen.append((resource, synced)))
    assert all(cache.listing(resource) is None for resource in Resource)
    assert set(seen) == {(resource, False) for resource in Resource}


def test_workloads_are_known_once_all_their_kinds_are() -> None:
    seen: list[bool] = []
    cache = ClusterCache(lambda resource, synced: seen.append(synced) if resource == "workloads" else None)
    by_kind = stores_of(cache)
    deployment = {"metadata": {"name": "d", "namespace": "ml"}, "spec": {"replicas": 2}}
    fill(by_kind["Deployment"], deployment)
    fill(by_kind["StatefulSet"], {"metadata": {"name": "s", "namespace": "ml"}})
    assert cache.listing(Resource.WORKLOADS, "ml") is None
    fill(by_kind["ReplicaSet"])
    fill(by_kind["Rollout"])
    found = cache.listing(Resource.WORKLOADS, "ml")
    assert found is not None
    assert [(item["kind"], item["metadata"]["name"]) for item in found] == [
        ("Deployment", "d"),
        ("StatefulSet", "s"),
    ]
    assert cache.listing(Resource.WORKLOADS, "ml") is found
    by_kind["Deployment"].put({**deployment, "spec": {"replicas": 3}})
    changed = cache.listing(Resource.WORKLOADS, "ml")
    assert changed is not None
    assert changed[0]["spec"] == {"replicas": 3}
    assert found[0]["spec"] == {"replicas": 2}
    assert names(cache.listing(Resource.WORKLOADS, "empty")) == []
    by_kind["ReplicaSet"].lost(ApiError(403, "Forbidden", ""))
    assert cache.listing(Resource.WORKLOADS, "ml") is None
    assert seen[-2:] == [True, False]


def test_listings_of_several_kinds_are_bounded_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "MERGED_KEPT", 10)
    cache = ClusterCache()
    by_kind = stores_of(cache)
    for kind in ("Deployment", "StatefulSet", "ReplicaSet", "Rollout"):
        fill(by_kind[kind])
    for n in range(100):
        by_kind["Deployment"].put({"metadata": {"name": "d", "namespace": f"ci-{n}"}})
        assert names(cache.listing(Resource.WORKLOADS, f"ci-{n}")) == ["d"]
    assert 0 < len(cache._merged) <= 10
    by_kind["Deployment"].remove({"metadata": {"name": "d", "namespace": "ci-99"}})
    assert (Resource.WORKLOADS, "ci-99") not in cache._merged
    assert (Resource.WORKLOADS, "ci-98") in cache._merged
    fill(by_kind["Deployment"])
    assert not cache._merged


def test_replica_sets_of_a_deployment_are_not_kept_and_leave_when_they_are_adopted() -> None:
    store = stores_of(ClusterCache())["ReplicaSet"]
    owner = {"kind": "Deployment", "name": "d", "controller": True}
    owned = {"metadata": {"name": "owned", "namespace": "ml", "ownerReferences": [owner]}}
    free = {"metadata": {"name": "free", "namespace": "ml"}}
    fill(store, owned, free)
    assert names(store.listing("ml")) == ["free"]
    store.put({"metadata": {**free["metadata"], "ownerReferences": [owner]}})
    assert names(store.listing("ml")) == []


def test_memory_is_bounded_by_the_fields_that_are_kept() -> None:
    """5,000 nodes, 10,000 Services and 50,000 claims must fit into some 100 MB: measured on a tenth of it."""

    def node(n: int) -> Json:
        labels = {f"feature.node.kubernetes.io/cpu-{feature}": "true" for feature in range(40)}
        return {
            "metadata": {"name": f"node-{n}", "labels": {**labels, "kubernetes.io/hostname": f"node-{n}"}},
            "spec": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": {"cpu": "95", "memory": f"{n}Ki", "pods": "110", "nvidia.com/gpu": "8"},
                "images": [{"names": [f"registry.example/{image}" * 3]} for image in range(50)],
            },
        }

    def claim(n: int) -> Json:
        spec = {"accessModes": ["ReadWriteOnce"], "volumeName": f"pvc-{n:036}", "storageClassName": "gp3"}
        return {"metadata": {"name": f"data-db-{n}", "namespace": f"ns-{n % 500}"}, "spec": spec}

    by_kind = stores_of(ClusterCache())
    tracemalloc.start()
    try:
        for kind, make, count in (
            ("Node", node, 500),
            ("Service", lambda n: service(f"svc-{n}", f"ns-{n % 500}", clusterIP=f"10.0.0.{n}"), 1000),
            ("PersistentVolumeClaim", claim, 5000),
        ):
            by_kind[kind].begin()
            for n in range(count):
                by_kind[kind].put(orjson.loads(orjson.dumps(make(n))))
            by_kind[kind].commit()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 12_000_000


def test_two_thousand_edits_of_a_model_config_leave_the_memory_where_it_was() -> None:
    """100 KiB each: every old version is let go, though rules have read it."""
    cache = ClusterCache()
    store = stores_of(cache)["ConfigMap"]
    fill(store)
    metadata = {"name": "models", "namespace": "ml"}
    tracemalloc.start()
    try:
        for n in range(2000):
            text = f"{n:08}" * (100 * 1024 // 8)
            store.put({"metadata": metadata, "data": {"a.json": text, f"{n}.json": str(n)}})
            assert cache.listing(Resource.MODEL_CONFIGS, "ml") is not None
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_kind_of_which_there_is_too_much_is_unknown_until_there_is_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(facts, "STORE_BYTES", 100_000)
    cache = ClusterCache()
    store = stores_of(cache)["ConfigMap"]

    def item(n: int, size: int = 30_000) -> Json:
        metadata = {"name": f"m-{n}", "namespace": "ml", "labels": {MODEL_CONFIG: "true"}}
        return {"metadata": metadata, "data": {"a": "x" * size}}

    def overflow(put: Json) -> None:
        with pytest.raises(ApiError, match="so none is") as refused:
            store.put(put)
        store.lost(refused.value)  # as its reflector does
        assert cache.listing(Resource.MODEL_CONFIGS, "ml") is None

    fill(store, item(0), item(1), item(2))
    for _ in range(100):  # edits count once
        store.put(item(2, 29_000))
        store.put(item(2))
    overflow(item(3))
    assert len(store) == 0
    store.begin()
    for n in range(3):
        store.put(item(n))
    overflow(item(3))
    fill(store, item(0))
    assert names(cache.listing(Resource.MODEL_CONFIGS, "ml")) == ["m-0"]
    for n in range(100):
        store.put(item(n + 1))
        store.remove(item(n + 1))
    assert cache.listing(Resource.MODEL_CONFIGS, "ml") is not None


def test_objects_of_files_fill_it_like_first_lists() -> None:
    cluster, deployment = ClusterCache(), {"metadata": {"name": "a", "namespace": "ml"}}
    cluster.fill(
        [
            {"apiVersion": "v1", "kind": "Service", **service("a")},
            {"apiVersion": "apps/v1", "kind": "Deployment", **deployment},
        ]
    )
    assert names(cluster.listing(Resource.SERVICES, "ml")) == ["a"]
    assert names(cluster.listing(Resource.SERVICES, "other")) == []
    assert names(cluster.listing(Resource.WORKLOADS, "ml")) == ["a"]
    assert cluster.listing(Resource.NODES) is None, (
        "no file has a node, so nobody knows whether there are any"
    )
