"""disruption-guard as the API server stores it, compared with objects stored without the webhook."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.manifests import manifest

pytestmark = pytest.mark.e2e

GUARDS = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}


@pytest.fixture
def bare_namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace outside of the webhook's scope."""
    name = f"bare-{uuid.uuid4().hex[:8]}"
    control_plane.create_namespace(name, {"mlchassis.dev/admission": "disabled"})
    yield name
    control_plane.api.delete("namespaces", name)


def pods_of(control_plane: ControlPlane, namespace: str) -> list[JSON]:
    return control_plane.api.wait_for("pods", bool, namespace=namespace)


def training(**spec: object) -> JSON:
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    pod = {"restartPolicy": "Never", "containers": [container], **spec}
    return manifest("Job", "train", {"template": {"spec": pod}})


def server() -> JSON:
    labels = {"app": "server"}
    container = {
        "name": "main",
        "image": "registry.example/server:1",
        "ports": [{"containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
    }
    return manifest(
        "Deployment",
        "server",
        {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    )


def test_a_training_pod_is_kept_from_bin_packing(
    control_plane: ControlPlane, chassis: Chassis, namespace: str, bare_namespace: str
) -> None:
    for where, expected in ((namespace, GUARDS), (bare_namespace, {})):
        control_plane.api.create(training(activeDeadlineSeconds=3600), where)
        [pod] = pods_of(control_plane, where)
        annotations = pod["metadata"].get("annotations", {})
        assert {key: annotations[key] for key in GUARDS if key in annotations} == expected


def test_a_job_beyond_the_bound_is_warned_about(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    for days, expected in ((30, True), (1, False)):
        job = training()
        job["spec"]["activeDeadlineSeconds"] = days * 86400
        warnings = control_plane.api.create(job, namespace, dry_run=True).warnings
        assert any(it.startswith("disruption-guard:") for it in warnings) is expected, warnings


def test_a_server_sleeps_before_it_is_stopped(
    control_plane: ControlPlane, chassis: Chassis, namespace: str, bare_namespace: str
) -> None:
    for where, expected in ((namespace, {"preStop": {"sleep": {"seconds": 5}}}), (bare_namespace, None)):
        control_plane.api.create(server(), where)
        [pod] = pods_of(control_plane, where)
        assert pod["spec"]["containers"][0].get("lifecycle") == expected
        assert pod["spec"]["terminationGracePeriodSeconds"] == 30, "5 s leave 25 s for the last requests"
