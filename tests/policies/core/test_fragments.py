"""Which objects are only parts of the applied ones."""

from typing import Any

import pytest

from policies.core.workloads import workloads_by_kind
from tests.manifests import manifest
from webhook.admission.coverage import is_fragment

KINDS = workloads_by_kind()
WHOLE = [{"name": "server", "image": "registry.example/server:1"}]
PATCH = [{"name": "server", "args": ["--verbose"]}]


def deployment(containers: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    return manifest(
        "Deployment",
        "server",
        {"selector": {"matchLabels": {"app": "a"}}, "template": {"spec": {"containers": containers}}} | spec,
    )


@pytest.mark.parametrize(
    "obj",
    [
        deployment(PATCH),
        deployment([*WHOLE, *PATCH]),
        deployment(WHOLE, selector=None),
        deployment(WHOLE, template={"metadata": {"annotations": {"a": "b"}}}),
        manifest("Deployment", "server", {"replicas": 3}),
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": PATCH}},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}},
    ],
)
def test_what_the_api_server_would_refuse_is_a_fragment(obj: dict[str, Any]) -> None:
    assert is_fragment(obj, KINDS)


@pytest.mark.parametrize(
    "obj",
    [
        deployment(WHOLE),
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": WHOLE}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {}},
        # KServe takes the image from the ServingRuntime.
        manifest("InferenceService", "a", {"predictor": {"containers": PATCH}}),
    ],
)
def test_a_whole_object_is_none(obj: dict[str, Any]) -> None:
    assert not is_fragment(obj, KINDS)
