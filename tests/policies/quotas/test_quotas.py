"""What a quota counts of a pod: the sums, the scopes, and what is not known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.facts import Cluster, Facts
from policies.core.listing import Listing
from policies.core.pod_templates import pod_templates
from policies.core.pod_view import PodView
from policies.core.resources import Resource
from policies.core.target import Target
from policies.core.workloads import Workload, workloads_by_kind
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json
from policies.kube.objects.limits import ResourceQuota
from policies.kube.objects.reading import read
from policies.quotas import quotas
from policies.quotas.limit_ranges import amounts, formatted, total
from policies.quotas.quotas import Pods, covers, pods_of, quota_matches, usage_of
from policies.quotas.rules import limit_range_conflict, quota_exceeded, rollout_quota_deadlock
from tests.manifests import manifest
from tests.tables import table
from tests.webhook.kube.filled import filled
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.overlaid import OverlaidCluster

WORKLOADS = workloads_by_kind()


class Namespace:
    """A cluster of which some resources are known."""

    def __init__(self, **known: Iterable[Json]) -> None:
        self._known = {Resource[name]: Listing(objects) for name, objects in known.items()}

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return self._known.get(resource)


def facts(**known: Iterable[Json]) -> Facts:
    return Facts(cluster=Namespace(**known))


def pod(*main: Json, init: Iterable[Json] = (), **spec: Any) -> Json:
    return {
        "spec": {
            "containers": [{"name": f"m{n}", "resources": each} for n, each in enumerate(main)],
            "initContainers": list(init),
            **spec,
        }
    }


def pods(made: Json, known: Facts | None = None) -> Pods:
    found = pods_of(PodView(made), 1, known or facts(LIMIT_RANGES=[]), None)
    assert found is not None
    return found


def quota(*scopes: str, terms: Iterable[Json] = (), hard: Json | None = None, **more: Any) -> Json:
    spec: Json = {"hard": hard or {"pods": "2"}, "scopes": list(scopes)}
    spec["scopeSelector"] = {"matchExpressions": list(terms)}
    return {"metadata": {"name": "team"}, "spec": spec, **more}


STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=6)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), STEPS)
def test_a_pod_takes_the_most_that_it_needs_at_one_moment(
    main: list[int], starts: list[tuple[bool, int]]
) -> None:
    """Simulated: native sidecars stay, other init containers come one after the other."""
    running = most = 0
    for stays, cpu in starts:
        most = max(most, running + cpu)
        running += cpu if stays else 0
    most = max(most, running + sum(main))
    init = [
        {
            "name": f"i{n}",
            "resources": {"requests": {"cpu": cpu}},
            **({"restartPolicy": "Always"} if stays else {}),
        }
        for n, (stays, cpu) in enumerate(starts)
    ]
    made = pod(*({"requests": {"cpu": cpu}} for cpu in main), init=init)
    each = pods(made).containers
    assert total((one.container, one.requests) for one in each)["cpu"] == most


def test_the_names_under_which_a_quota_counts() -> None:
    taken = {
        "requests": {"cpu": "500m", "memory": "1Gi", "hugepages-2Mi": "4Mi", "vendor.example/gpu": 2},
        "limits": {"memory": "2Gi", "vendor.example/gpu": 2, "hugepages-2Mi": "4Mi"},
    }
    assert usage_of(pods(pod(taken)).containers) == {
        "pods": 1,
        "count/pods": 1,
        "cpu": Decimal("0.5"),
        "requests.cpu": Decimal("0.5"),
        "memory": 1 << 30,
        "requests.memory": 1 << 30,
        "limits.memory": 2 << 30,
        "hugepages-2Mi": 4 << 20,
        "requests.hugepages-2Mi": 4 << 20,
        "requests.vendor.example/gpu": 2,
    }


PLAIN, SIZED = pod({}), pod({"requests": {"cpu": 1}})
CROSSING = [{"podAffinityTerm": {"namespaces": ["other"]}}]
AFFINITY = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": CROSSING}}


@table(
    ("scope", "made", "counts"),
    [
        ("BestEffort", PLAIN, True),
        ("BestEffort", SIZED, False),
        ("NotBestEffort", SIZED, True),
        ("NotBestEffort", PLAIN, False),
        ("Terminating", pod({}, activeDeadlineSeconds=0), True),
        ("Terminating", PLAIN, False),
        ("NotTerminating", PLAIN, True),
        ("CrossNamespacePodAffinity", pod({}, affinity=AFFINITY), True),
        ("CrossNamespacePodAffinity", PLAIN, False),
        ("VolumeAttributesClass", PLAIN, None),
        ("PriorityClass", PLAIN, None),
        ("PriorityClass", pod({}, priorityClassName="high"), True),
    ],
)
def test_scopes(scope: str, made: Json, counts: bool | None) -> None:
    assert covers(read(quota(scope), ResourceQuota), pods(made)) is counts


def test_every_scope_has_to_match() -> None:
    assert covers(read(quota("NotBestEffort", "Terminating"), ResourceQuota), pods(SIZED)) is False
    assert covers(read(quota("PriorityClass", "Terminating"), ResourceQuota), pods(SIZED)) is False, (
        "one that does not match decides"
    )
    assert covers(read(quota("PriorityClass", "NotTerminating"), ResourceQuota), pods(SIZED)) is None


def test_a_pod_without_requests_may_get_some_from_a_limit_range_that_is_not_known() -> None:
    assert covers(read(quota("BestEffort"), ResourceQuota), pods(PLAIN, facts())) is None
    assert covers(read(quota("BestEffort"), ResourceQuota), pods(SIZED, facts())) is False


def deployment(replicas: int = 2, resources: Json | None = None, **metadata: Any) -> Target:
    obj = manifest("Deployment", "d", {"replicas": replicas, "template": pod(resources or {})}, **metadata)
    return Target(obj, kind_of(obj), pod_templates(obj, WORKLOADS))


RULES = (rollout_quota_deadlock, quota_exceeded, limit_range_conflict)
TIGHT = {"type": "Container", "max": {"memory": "1Mi"}}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.RULE.id)
def test_unknown_facts_make_a_rule_silent(rule: Any) -> None:
    assert not list(rule.check(deployment(), facts()))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.RULE.id)
def test_what_a_controller_made_is_not_judged(rule: Any) -> None:
    owner = [{"kind": "Operator", "name": "o", "controller": True}]
    ranges = [{"metadata": {"name": "r"}, "spec": {"limits": [TIGHT]}}]
    known = facts(QUOTAS=[quota(hard={"pods": "1" if rule is quota_exceeded else "2"})], LIMIT_RANGES=ranges)
    size = {"limits": {"memory": "1Gi"}}
    assert list(rule.check(deployment(2, size), known))
    made = deployment(2, size, ownerReferences=owner)
    assert made.has_controller
    assert rule.RULE.unowned, "the engine does not call it"


@pytest.mark.parametrize("value", ["much", "1e999999999999"])
def test_malformed_quantities_are_left_to_the_api_server(value: Any) -> None:
    known = facts(
        QUOTAS=[quota(hard={"pods": value}), quota(status={"used": {"pods": value}})],
        LIMIT_RANGES=[{"metadata": {"name": "r"}, "spec": {"limits": [{**TIGHT, "min": {"cpu": value}}]}}],
        WORKLOADS=[],
    )
    for rule in RULES:
        assert not list(rule.check(deployment(), known))
        assert not list(rule.check(deployment(2, {"limits": {"cpu": value}}), facts(QUOTAS=[quota()])))


def test_a_quota_is_judged_for_each_template_of_a_workload_without_replicas() -> None:
    job = {"template": {"spec": {"template": pod({"limits": {"cpu": 4}})}}}
    first = {"name": "a", "dependsOn": [{"name": "b", "status": "Complete"}], **job}
    obj = manifest("JobSet", "s", {"replicatedJobs": [first, {"name": "b", **job}]})
    target = Target(obj, kind_of(obj), pod_templates(obj, WORKLOADS))
    known = facts(QUOTAS=[quota(hard={"limits.cpu": "5"})], LIMIT_RANGES=[])
    assert [each.usage["limits.cpu"] for each in quota_matches(target, known)] == [4, 4]
    assert not list(quota_exceeded.check(target, known))
    less = facts(QUOTAS=[quota(hard={"limits.cpu": "3"})], LIMIT_RANGES=[])
    (found,) = quota_exceeded.check(replace(target), less)
    assert "No replica ever runs" in found.message


def test_a_quota_is_judged_for_all_pods_that_run_at_the_same_time() -> None:
    job = {"template": {"spec": {"template": pod({"limits": {"cpu": 4}})}}}
    obj = manifest("JobSet", "s", {"replicatedJobs": [{"name": "a", **job}, {"name": "b", **job}]})
    target = Target(obj, kind_of(obj), pod_templates(obj, WORKLOADS))
    known = facts(QUOTAS=[quota(hard={"limits.cpu": "5"})], LIMIT_RANGES=[])
    (found,) = quota_exceeded.check(target, known)
    assert "the 2 pods of this JobSet take 8" in found.message


@pytest.mark.parametrize(
    ("resource", "quantity", "words"),
    [
        ("cpu", "1500m", "1500m"),
        ("cpu", "2", "2"),
        ("cpu", "1u", "0.001m"),
        ("limits.memory", "3Gi", "3Gi"),
        ("limits.memory", "1536Mi", "1536Mi"),
        ("memory", "1000", "1000"),
        ("pods", "1k", "1000"),
        ("requests.memory", "0", "0"),
        ("memory", "1e60", f"{10**60 >> 40}Ti"),
    ],
)
def test_amounts_are_shown_as_people_write_them(resource: str, quantity: str, words: str) -> None:
    assert formatted(resource, amounts({resource: quantity})[resource]) == words


def test_a_limit_is_the_request_before_a_limit_range_gives_one() -> None:
    ranges = [
        {"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": 1}}]}}
    ]
    known = facts(LIMIT_RANGES=ranges)
    assert pods(pod({"limits": {"cpu": 4}}), known).usage["cpu"] == 4
    assert pods(pod({}), known).usage["cpu"] == 1


def test_a_maximum_gives_limit_and_request_and_a_minimum_a_request() -> None:
    item = {"type": "Container", "max": {"cpu": 4}, "min": {"memory": "1Gi"}, "defaultRequest": {"cpu": 2}}
    known = facts(LIMIT_RANGES=[{"metadata": {"name": "r"}, "spec": {"limits": [item]}}])
    (one,) = pods(pod({}), known).containers
    assert one.limits == {"cpu": 4}
    assert one.requests == {"cpu": 2, "memory": 1 << 30}


def test_its_own_pods_are_not_other_pods() -> None:
    """In use are the pods of the workload itself, which a manifest without a status does not show."""
    spec = {
        "replicas": 2,
        "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "selector": {"matchLabels": {"app": "llm"}},
        "template": {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [{"name": "s"}]}},
    }
    written = manifest("Deployment", "llm", spec, namespace="default")
    used = quota(hard={"pods": "3"}, status={"used": {"pods": "2"}})
    used = {"apiVersion": "v1", "kind": "ResourceQuota", **used}
    used["metadata"]["namespace"] = "default"
    ranges = manifest("LimitRange", "none", {}, namespace="default")

    def found(cluster: Cluster) -> list[str]:
        target = Target(written, kind_of(written), pod_templates(written, WORKLOADS))
        return [each.path for each in quota_exceeded.RULE.check(target, Facts("default", cluster))]

    assert found(ManifestCluster([written, used, ranges])) == []
    only = ManifestCluster([written])
    assert found(OverlaidCluster(only, filled(written, used, ranges))) == []
    assert found(OverlaidCluster(only, filled(used, ranges))) == ["spec.replicas"], "it is new there"


def test_other_manifests_are_read_once_for_all_reviews(monkeypatch: pytest.MonkeyPatch) -> None:
    def workload(name: str) -> Json:
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
        template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
        spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
        metadata = {"name": name, "namespace": "ml"}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}

    def quota(name: str, cpu: str) -> Json:
        metadata = {"name": name, "namespace": "ml"}
        spec = {"hard": {"requests.cpu": cpu}}
        return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec}

    workloads = [workload(f"w{number}") for number in range(9)]
    cluster = ManifestCluster([*workloads, quota("small", "8"), quota("large", "9")])
    read: list[int] = []

    def counted(view: PodView, count: int, facts: Facts, kind: Workload | None) -> Pods | None:
        read.append(count)
        return pods_of(view, count, facts, kind)

    monkeypatch.setattr(quotas, "pods_of", counted)
    found = []
    for obj in workloads:
        kind = kind_of(obj)
        target = Target(obj, kind, pod_templates(obj, WORKLOADS))
        found += [*quota_exceeded.RULE.check(target, Facts("ml", cluster))]
    assert [each.path for each in found] == ["spec.replicas"], "the last one does not fit in the small quota"
    assert len(read) <= 2 * len(workloads), "each one for its own review, and once for the others"
