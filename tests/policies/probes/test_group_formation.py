"""Groups of pods form in spite of the injected probes."""

from __future__ import annotations

from typing import Any

import pytest

from policies.core.facts import Facts
from policies.kube.json import Json
from policies.probes.advice import advise
from policies.probes.standard_probes import mutate
from policies.probes.standard_probes_settings import StandardProbes
from tests.manifests import manifest
from tests.tables import table
from webhook.admission.engine import decide
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document

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
RAY: Json = {
    **LEADER,
    "command": ["bash", "-c", "ray start --head && vllm serve m --pipeline-parallel-size 2"],
    "args": [],
}
SCRIPT: Json = {
    **RAY,
    "command": ["bash", "-c", "multi-node-serving.sh leader --ray_cluster_size=2; vllm serve m"],
}
PARALLEL: Json = {
    **LEADER,
    "args": [*LEADER["args"], "--data-parallel-size=4", "--data-parallel-size-local=2", "-dpa=head.ml.svc"],
}
WEAVIATE: Json = {
    "name": "weaviate",
    "image": "semitechnologies/weaviate:1.27.0",
    "env": [{"name": "RAFT_BOOTSTRAP_EXPECT", "value": "3"}],
    "ports": [{"containerPort": 8080}],
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


def stateful(container: Json, **metadata: Any) -> Json:
    """A pod of a StatefulSet."""
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "group", "controller": True}
    return manifest("Pod", "group-0", {"containers": [container]}, ownerReferences=[owner], **metadata)


def leader_pod(size: int = 2, **container: Any) -> Json:
    """The pod that the operator makes of the leader's template."""
    name = "leaderworkerset.sigs.k8s.io"
    labels = {f"{name}/name": "group", f"{name}/worker-index": "0"}
    return stateful({**LEADER, **container}, labels=labels, annotations={f"{name}/size": str(size)})


def found(container: Json) -> Json:
    """A pod that a Service may select."""
    return manifest("Pod", "head", {"containers": [container]}, labels={"a": "b"})


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


def facts(*known: Json) -> Facts:
    return Facts("default", ManifestCluster(known))


def names_of(container: Json) -> set[str]:
    return {name.removesuffix("Probe") for name in container if name.endswith("Probe")}


def probes(pod: Json, *known: Json) -> set[str]:
    """The probes of the pod's first container after the policy."""
    after = mutate(pod, SETTINGS, facts(*known))
    assert mutate(after, SETTINGS, facts(*known)) is after
    return names_of(after["spec"]["containers"][0])


ALL = {"liveness", "readiness", "startup"}
ONE: Json = {**SPANS, "args": ["--nnodes", "1", *SPANS["args"][4:]]}
LIVE: Json = {"livenessProbe": {"httpGet": {"path": "/health", "port": 8000}}}
ORPHAN = stateful(SPANS)
del ORPHAN["metadata"]["ownerReferences"]


@table(
    ("pod", "known", "expected"),
    [
        pytest.param(leader_pod(), [lws("LeaderReady")], {"liveness"}, id="LeaderReady"),
        pytest.param(leader_pod(), [lws("LeaderCreated")], ALL, id="LeaderCreated"),
        pytest.param(leader_pod(), [lws(None)], ALL, id="default"),
        pytest.param(leader_pod(), [], {"liveness"}, id="unknown"),
        pytest.param(leader_pod(size=1), [lws("LeaderReady", size=1)], ALL, id="group of one"),
        pytest.param(leader_pod(**LIVE), [lws("LeaderReady")], {"liveness"}, id="liveness of the user"),
        pytest.param(
            leader_pod(**LIVE), [lws("LeaderCreated")], {"liveness", "readiness", "startup"}, id="guarded"
        ),
        pytest.param(
            stateful(SPANS), [stateful_set("Parallel"), service(publishes=True)], ALL, id="parallel"
        ),
        pytest.param(
            stateful(SPANS),
            [stateful_set("Parallel"), service(publishes=False)],
            {"liveness"},
            id="unpublished",
        ),
        pytest.param(
            stateful(SPANS), [stateful_set(None), service(publishes=True)], {"liveness"}, id="ordered"
        ),
        pytest.param(stateful(SPANS), [stateful_set("Parallel")], {"liveness"}, id="no service"),
        pytest.param(stateful(SPANS), [], {"liveness"}, id="nothing known"),
        pytest.param(ORPHAN, [], ALL, id="no StatefulSet"),
        pytest.param(found(SPANS), [], {"liveness"}, id="no Service yet"),
        pytest.param(found(SPANS), [service(publishes=False)], {"liveness"}, id="hidden by its Service"),
        pytest.param(found(SPANS), [service(publishes=True)], ALL, id="published by its Service"),
        pytest.param(found(RAY), [service(publishes=False)], {"liveness"}, id="Ray head next to the server"),
        pytest.param(found(RAY), [service(publishes=True)], ALL, id="published Ray head"),
        pytest.param(found(PARALLEL), [service(publishes=False)], {"liveness"}, id="engines elsewhere"),
        pytest.param(found(SCRIPT), [service(publishes=False)], {"liveness"}, id="Ray head by a script"),
        pytest.param(found(LEADER), [service(publishes=False)], ALL, id="no group"),
        pytest.param(
            stateful(WEAVIATE), [stateful_set(None), service(publishes=True)], {"liveness"}, id="members"
        ),
        pytest.param(
            stateful(ONE), [stateful_set(None), service(publishes=False)], ALL, id="server in one pod"
        ),
    ],
)
def test_no_probe_prevents_the_group_from_forming(pod: Json, known: list[Json], expected: set[str]) -> None:
    assert probes(pod, *known) == expected


def test_liveness_of_a_member_waits_for_its_group() -> None:
    alone = mutate(leader_pod(), SETTINGS, facts(lws("LeaderCreated")))
    waiting = mutate(leader_pod(), SETTINGS, facts(lws("LeaderReady")))
    (one,), (other,) = alone["spec"]["containers"], waiting["spec"]["containers"]
    budget = one["startupProbe"]["failureThreshold"] * one["startupProbe"]["periodSeconds"]
    assert other["livenessProbe"]["initialDelaySeconds"] >= 2 * budget
    assert other["livenessProbe"]["failureThreshold"] >= SETTINGS.liveness_failures * 2


@pytest.mark.parametrize(
    ("policy", "waits"), [("LeaderReady", True), ("LeaderCreated", False), (None, False)]
)
def test_a_review_of_the_set(policy: str | None, waits: bool) -> None:
    """It shows the probes of the leaders, and warns about the user's own."""
    decision = decide(Review(Document("test", 0, lws(policy)).request(), load({}), ManifestCluster([])))
    assert decision.projected is not None
    template = decision.projected["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    assert names_of(template["spec"]["containers"][0]) == ({"liveness"} if waits else ALL)
    assert "ownerReferences" not in template["metadata"]
    obj = lws(policy, readinessProbe={"httpGet": {"path": "/health", "port": 8000}})
    decision = decide(Review(Document("test", 0, obj).request(), load({}), ManifestCluster([])))
    found = [each.finding.path for each in decision.results if "LeaderReady" in each.finding.message]
    place = "spec.leaderWorkerTemplate.leaderTemplate.spec.containers[0].readinessProbe"
    assert (decision.allowed, found) == (True, [place] if waits else [])


@pytest.mark.parametrize(("policy", "reported"), [("LeaderReady", True), (None, False)])
def test_omitted_probes_are_reported(policy: str | None, reported: bool) -> None:
    found = [each.message for each in advise(leader_pod(), SETTINGS, facts(lws(policy)))]
    assert any("gets no readinessProbe" in each for each in found) is reported
