"""disruption-guard as the API server stores it, compared with objects stored without the webhook."""

from __future__ import annotations

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.workloads import container, job, workload

pytestmark = pytest.mark.e2e

GUARDS = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}


def pods_of(api: Api) -> list[JSON]:
    return api.wait_for("pods", bool)


def training(**spec: object) -> JSON:
    gpu = {"limits": {"nvidia.com/gpu": "1"}}
    made = job("train", container("registry.example/train:1", None, resources=gpu))
    made["spec"]["template"]["spec"] |= spec
    return made


def server() -> JSON:
    readiness = {"httpGet": {"path": "/ready", "port": 8080}}
    return workload(
        "Deployment", "server", container("registry.example/server:1", 8080, readinessProbe=readiness)
    )


def test_a_training_pod_is_kept_from_bin_packing(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str, bare: str
) -> None:
    for where, expected in ((namespace, GUARDS), (bare, {})):
        api.create(training(activeDeadlineSeconds=3600), where)
        [pod] = pods_of(control_plane.api.within(where))
        annotations = pod["metadata"].get("annotations", {})
        assert {key: annotations[key] for key in GUARDS if key in annotations} == expected


def test_a_job_beyond_the_bound_is_warned_about(api: Api, chassis: Chassis) -> None:
    for days, expected in ((30, True), (1, False)):
        made = training()
        made["spec"]["activeDeadlineSeconds"] = days * 86400
        warnings = api.create(made, dry_run=True).warnings
        assert any(it.startswith("disruption-guard:") for it in warnings) is expected, warnings


def test_a_server_sleeps_before_it_is_stopped(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str, bare: str
) -> None:
    for where, expected in ((namespace, {"preStop": {"sleep": {"seconds": 5}}}), (bare, None)):
        api.create(server(), where)
        [pod] = pods_of(control_plane.api.within(where))
        assert pod["spec"]["containers"][0].get("lifecycle") == expected
        assert pod["spec"]["terminationGracePeriodSeconds"] == 30, "5 s leave 25 s for the last requests"
