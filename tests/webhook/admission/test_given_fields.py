"""What the pods get if their operator gives fields to the containers."""

from __future__ import annotations

import pytest

from policies.kube.json import Json, mapping, maps
from tests.policies.core.reviews import decided

CONTAINER = {"image": "vllm/vllm-openai:v0.11.0", "ports": [{"containerPort": 8000}]}
SERVING = "serving.knative.dev/v1"


def workload(kind: str, *containers: Json) -> Json:
    """A workload of Knative, or a Deployment, with one or more containers."""
    spec = {"containers": list(containers or (CONTAINER,))}
    version = "apps/v1" if kind == "Deployment" else SERVING
    template = {"metadata": {"labels": {"app": "llm"}}, "spec": spec}
    selector = {"selector": {"matchLabels": {"app": "llm"}}} if kind == "Deployment" else {}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "llm"},
        "spec": spec if kind == "Revision" else {**selector, "template": template},
    }


def added(obj: Json) -> set[str]:
    """Which of two fields the pods of a workload will get."""
    decision = decided(obj)
    assert decision.crashes == ()
    patches = str([change.patch for change in decision.changes])
    return {field for field in ("livenessProbe", "preStop") if field in patches}


@pytest.mark.parametrize("kind", ["Service", "Configuration", "Revision"])
def test_no_pre_stop_is_promised_where_knative_adds_its_own(kind: str) -> None:
    assert added(workload(kind)) == {"livenessProbe"}


def test_a_deployment_gets_one() -> None:
    assert added(workload("Deployment", {**CONTAINER, "name": "llm"})) == {"livenessProbe", "preStop"}


def test_the_preview_leaves_out_what_knative_gives() -> None:
    obj = workload("Service", {**CONTAINER, "name": "llm"}, {"image": "nginx:1.29", "name": "proxy"})
    decision = decided(obj)
    assert decision.crashes == ()
    previewed = maps(decision.projected, "spec", "template", "spec", "containers")
    assert [sorted(set(container) & {"livenessProbe", "lifecycle"}) for container in previewed] == [
        ["livenessProbe"],
        [],
    ]


SERVICE = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "llm"}}
RUNTIME = {"apiVersion": "serving.kserve.io/v1alpha1", "kind": "ServingRuntime", "metadata": {"name": "llm"}}


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (None, {"livenessProbe"}),
        ("Serverless", {"livenessProbe"}),
        ("Knative", {"livenessProbe"}),
        ("Standard", {"livenessProbe", "preStop"}),
        ("RawDeployment", {"livenessProbe", "preStop"}),
    ],
)
def test_pods_of_kserve_get_knatives_hook_unless_it_works_without_knative(
    mode: str | None, expected: set[str]
) -> None:
    spec = {"containers": [{**CONTAINER, "name": "kserve-container"}]}
    annotations = {} if mode is None else {"serving.kserve.io/deploymentMode": mode}
    metadata = {**mapping(SERVICE, "metadata"), "annotations": annotations}
    assert added({**SERVICE, "metadata": metadata, "spec": {"predictor": spec}}) == expected


def test_nothing_is_promised_for_what_an_operator_merges() -> None:
    spec = {"containers": [{**CONTAINER, "name": "kserve-container"}]}
    assert added({**RUNTIME, "spec": spec}) == set()
