"""Groups of pods: no probe of ours keeps one from forming."""

from __future__ import annotations

from typing import Any

import pytest

from policies.core.facts import Facts
from policies.kube.json import Json
from policies.probes.advice import advise
from policies.probes.settings import StandardProbes
from policies.probes.standard_probes import mutate
from tests.manifests import manifest
from webhook.admission.engine import decide
from webhook.config.load import load
from webhook.kube.offline import Document, ManifestCluster

LEADER: Json = {
    "name": "vllm",
    "image": "vllm/vllm-openai:v0.11.0",
    "args": ["--model", "m", "--tensor-parallel-size", "8"],
    "ports": [{"containerPort": 8000}],
}
SPANS: Json = {
    "name": "sglang",
    "image": "lmsysorg/sglang:v0.5.3",
    "command": ["python3", "-m", "sglang.launch_server", "--model-path", "m"],
    "args": ["--nnodes", "2", "--node-rank", "0", "--host", "0.0.0.0", "--port", "30000"],
    "ports": [{"containerPort": 30000}],
}
SETTINGS = StandardProbes()


def lws(policy: str | None, size: int = 2, **container: Any) -> Json:
    spec: Json = {
        "replicas": 1,
        "leaderWorkerTemplate": {
            "size": size,
            "leaderTemplate": {"metadata": {}, "spec": {"containers": [{**LEADER, **container}]}},
            "workerTemplate": {
                "metadata": {},
                "spec": {"containers": [{"name": "worker", "image": "example.org/worker:1"}]},
            },
        },
    }
    if policy:
        spec["startupPolicy"] = policy
    return manifest("LeaderWorkerSet", "group", spec, namespace="default")


def leader_pod(**labels: str) -> Json:
    """What the operator makes of the leader's template."""
    return manifest(
        "Pod",
        "group-0",
        {"containers": [LEADER]},
        labels={
            "leaderworkerset.sigs.k8s.io/name": "group",
            "leaderworkerset.sigs.k8s.io/worker-index": "0",
            **labels,
        },
        annotations={"leaderworkerset.sigs.k8s.io/size": "2"},
        ownerReferences=[
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "group", "controller": True}
        ],
    )


def stateful(container: Json) -> Json:
    return manifest(
        "Pod",
        "group-0",
        {"containers": [container]},
        ownerReferences=[
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "group", "controller": True}
        ],
    )


def stateful_set(policy: str | None) -> Json:
    spec: Json = {"serviceName": "peers", "selector": {"matchLabels": {"a": "b"}}, "template": {}}
    if policy:
        spec["podManagementPolicy"] = policy
    return manifest("StatefulSet", "group", spec, namespace="default")


def service(*, publishes: bool) -> Json:
    return manifest(
        "Service",
        "peers",
        {"clusterIP": "None", "selector": {"a": "b"}, "publishNotReadyAddresses": publishes},
        namespace="default",
    )


def probes(pod: Json, *known: Json) -> set[str]:
    """The probes of the pod's first container after the policy."""
    after = mutate(pod, SETTINGS, Facts("default", ManifestCluster(known)))
    return {name for name in after["spec"]["containers"][0] if name.endswith("Probe")}


ALL = {"livenessProbe", "readinessProbe", "startupProbe"}


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([lws("LeaderReady")], {"livenessProbe"}),
        ([lws("LeaderCreated")], ALL),
        ([lws(None)], ALL),
        ([], {"livenessProbe"}),
    ],
    ids=["LeaderReady", "LeaderCreated", "default", "unknown"],
)
def test_a_leader_gets_what_cannot_keep_its_group_from_forming(known: list[Json], expected: set[str]) -> None:
    pod = leader_pod()
    assert probes(pod, *known) == expected
    after = mutate(pod, SETTINGS, Facts("default", ManifestCluster(known)))
    assert mutate(after, SETTINGS, Facts("default", ManifestCluster(known))) is after


def test_a_group_of_one_does_not_wait() -> None:
    pod = leader_pod()
    pod["metadata"]["annotations"]["leaderworkerset.sigs.k8s.io/size"] = "1"
    assert probes(pod, lws("LeaderReady", size=1)) == ALL


def test_liveness_of_a_member_is_as_patient_as_its_group() -> None:
    alone = mutate(leader_pod(), SETTINGS, Facts("default", ManifestCluster([lws("LeaderCreated")])))
    held = mutate(leader_pod(), SETTINGS, Facts("default", ManifestCluster([lws("LeaderReady")])))
    (one,), (other,) = alone["spec"]["containers"], held["spec"]["containers"]
    budget = one["startupProbe"]["failureThreshold"] * one["startupProbe"]["periodSeconds"]
    assert other["livenessProbe"]["initialDelaySeconds"] >= 2 * budget
    assert other["livenessProbe"]["failureThreshold"] >= SETTINGS.liveness_failures * 2


@pytest.mark.parametrize(("policy", "held"), [("LeaderReady", True), ("LeaderCreated", False), (None, False)])
def test_a_review_of_the_set_shows_what_its_leaders_get(policy: str | None, held: bool) -> None:
    obj = lws(policy)
    decision = decide(Document("test", 0, obj).request(), load({}), ManifestCluster([]))
    assert decision.projected is not None
    template = decision.projected["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    found = {name for name in template["spec"]["containers"][0] if name.endswith("Probe")}
    assert found == ({"livenessProbe"} if held else ALL)
    assert "ownerReferences" not in template["metadata"]


def test_a_probe_of_the_user_s_on_a_leader_is_warned_about() -> None:
    ready = {"httpGet": {"path": "/health", "port": 8000}}
    obj = lws("LeaderReady", readinessProbe=ready)
    decision = decide(Document("test", 0, obj).request(), load({}), ManifestCluster([]))
    place = "spec.leaderWorkerTemplate.leaderTemplate.spec.containers[0].readinessProbe"
    assert place in [each.finding.path for each in decision.results if "LeaderReady" in each.finding.message]
    assert decision.allowed
    other = decide(
        Document("test", 0, lws(None, readinessProbe=ready)).request(), load({}), ManifestCluster([])
    )
    assert not [each for each in other.results if "LeaderReady" in each.finding.message]


def test_a_liveness_probe_of_the_user_s_brings_no_startup_probe_to_a_leader() -> None:
    pod = leader_pod()
    live = {"httpGet": {"path": "/health", "port": 8000}}
    pod["spec"] = {"containers": [{**LEADER, "livenessProbe": live}]}
    assert probes(pod, lws("LeaderReady")) == {"livenessProbe"}
    assert "startupProbe" in probes(pod, lws("LeaderCreated"))


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([stateful_set("Parallel"), service(publishes=True)], ALL),
        ([stateful_set("Parallel"), service(publishes=False)], {"livenessProbe"}),
        ([stateful_set(None), service(publishes=True)], {"livenessProbe"}),
        ([stateful_set("Parallel")], {"livenessProbe"}),
        ([], {"livenessProbe"}),
    ],
    ids=["parallel", "unpublished", "ordered", "no service", "nothing known"],
)
def test_a_server_that_spans_pods_is_found_before_it_is_ready(known: list[Json], expected: set[str]) -> None:
    assert probes(stateful(SPANS), *known) == expected


def test_a_pod_without_a_stateful_set_is_found_by_unknown_means_and_gets_all_probes() -> None:
    pod = stateful(SPANS)
    del pod["metadata"]["ownerReferences"]
    assert probes(pod) == ALL


def test_a_server_in_one_pod_does_not_wait() -> None:
    one = {**SPANS, "args": ["--nnodes", "1", *SPANS["args"][4:]]}
    assert probes(stateful(one), stateful_set(None), service(publishes=False)) == ALL


def test_omitted_probes_are_reported() -> None:
    facts = Facts("default", ManifestCluster([lws("LeaderReady")]))
    found = [each.message for each in advise(leader_pod(), SETTINGS, facts)]
    assert any("gets no readinessProbe" in each for each in found)
    known = Facts("default", ManifestCluster([lws(None)]))
    assert not [each for each in advise(leader_pod(), SETTINGS, known) if "no readinessProbe" in each.message]
