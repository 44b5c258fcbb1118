"""Warnings about changes: each with its reason, and for an update only the new ones."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from policies.kube.json import Json, replaced
from tests.manifests import manifest
from webhook.admission.decision import Decision
from webhook.admission.engine import decide, mutate
from webhook.admission.envelope import Request
from webhook.admission.messages import warnings_of
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document

CLUSTER = ManifestCluster(
    [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "gpu"},
            "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": {"nvidia.com/gpu": "8"},
                "nodeInfo": {"kubeletVersion": "v1.36.1"},
            },
        }
    ]
)
ARGS = ("spec", "template", "spec", "containers", 0, "args")


def deployment(model: str = "Qwen/Qwen3-32B", api: str = "apps/v1", kind: str = "Deployment") -> Json:
    server = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.10.2",
        "args": ["--model", model],
        "ports": [{"containerPort": 8000}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    return manifest(
        kind,
        "llm",
        {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "llm"}},
            "template": {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [server]}},
        },
        version=api,
        namespace="ml",
    )


def request(obj: Json, old: Json | None = None, username: str = "jane") -> Request:
    made = Document("x", 0, obj).request("CREATE" if old is None else "UPDATE", old)
    return replace(made, username=username)


def judged(obj: Json, old: Json | None = None, policy: dict[str, str] | None = None) -> Decision:
    return decide(Review(request(obj, old), load(policy or {}), CLUSTER))


def said(decision: Decision) -> list[str]:
    return [line for line in warnings_of(decision) if " will add " in line]


def test_a_workload_gets_the_changes_of_its_pods_with_reasons() -> None:
    assert said(judged(deployment())) == [
        "disruption-guard will add lifecycle: sleeps 5 s, because requests still arrive until "
        "Services remove the pod",
        "gpu-affinity will add tolerations: requests nvidia.com/gpu, whose nodes have the taint "
        "nvidia.com/gpu:NoSchedule",
        "standard-probes will add startupProbe, livenessProbe, readinessProbe; startupProbe: 101 min: "
        "six times the 17 min that 64 GB take at 64 MiB/s, since no volume keeps the download (vllm, from "
        "Qwen/Qwen3-32B)",
    ]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("metadata", "annotations"), {"note": "x"}),
        (("metadata", "labels"), {"team": "x"}),
        (("spec", "replicas"), 3),
        (("status",), {"replicas": 1}),
    ],
)
def test_an_update_that_changes_no_pod_has_no_warning(path: tuple[str, ...], value: Any) -> None:
    old = deployment()
    decision = judged(replaced(old, path, value), old)
    assert said(decision) == []
    assert len(decision.changes) == 3, "the outputs still have them"


def test_an_update_has_only_the_new_changes() -> None:
    old = deployment()
    larger = judged(replaced(old, ARGS, ["--model", "meta-llama/Llama-3.1-70B"]), old)
    (line,) = said(larger)
    assert line.startswith("standard-probes will add livenessProbe: its health and its finished work")
    added = deepcopy(old)
    added["spec"]["template"]["spec"]["containers"].append(
        {"name": "api", "image": "vllm/vllm-openai:v0.10.2", "args": ["--model", "x/y-7B", "--port", "9000"]}
    )
    lines = said(judged(added, old))
    assert [line.split()[0] for line in lines] == ["disruption-guard", "standard-probes"]


def test_a_policy_that_comes_in_force_for_an_object_is_news() -> None:
    old = deployment()
    exempted = replaced(
        old, ("spec", "template", "metadata", "annotations"), {"mlchassis.dev/exempt": "standard-probes=mine"}
    )
    assert [line.split()[0] for line in said(judged(old, exempted))] == ["standard-probes"]


def test_metadata_of_a_kind_whose_pods_inherit_it_counts() -> None:
    node = deployment()["spec"]["template"]["spec"]
    old = manifest(
        "LeaderWorkerSet", "x", {"leaderWorkerTemplate": {"workerTemplate": {"spec": node}}}, namespace="ml"
    )
    assert said(judged(old)) != []
    assert said(judged(replaced(old, ("metadata", "labels"), {"a": "b"}), old)) == []


def test_it_can_be_switched_off() -> None:
    quiet = {"webhook.yaml": "changes: {warnings: false}"}
    assert said(judged(deployment(), policy=quiet)) == []
    pod = {**deployment()["spec"]["template"], "apiVersion": "v1", "kind": "Pod"}
    pod["metadata"] = {"name": "p", "namespace": "ml"}
    loud = list(warnings_of(mutate(Review(request(pod), load({}), CLUSTER))))
    assert [line.split()[1] for line in loud] == ["added", "added", "added"]
    assert list(warnings_of(mutate(Review(request(pod), load(quiet), CLUSTER)))) == []


def test_an_old_object_beyond_all_bounds_makes_all_of_it_news() -> None:
    new = deployment()
    old = replaced(new, ARGS, ["x"] * 50_000)
    assert len(said(judged(new, old))) == 3
