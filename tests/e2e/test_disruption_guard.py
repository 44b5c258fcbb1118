"""disruption-guard as the API server stores it, compared with objects stored without the webhook."""

from __future__ import annotations

import pytest

from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.status import is_ready
from tests.e2e.workloads import container, job, named, workload
from tests.manifests import manifest

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


def evict(api: Api, name: str) -> None:
    api.request(
        "POST", f"/api/v1/namespaces/{api.namespace}/pods/{name}/eviction", manifest("Eviction", name)
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


def test_evictions_at_once_leave_no_majority_unless_a_budget_keeps_it(
    api: Api, chassis: Chassis, namespace: str
) -> None:
    """`quorum-without-budget`."""
    rule = "quorum-without-budget"
    etcd = workload("StatefulSet", "etcd", container("quay.io/coreos/etcd:v3.5.9", 2379), replicas=3)
    etcd["spec"] |= {"podManagementPolicy": "Parallel", "updateStrategy": {"type": "OnDelete"}}
    assert rule not in api.warnings(etcd), "the next object may be the budget"
    api.create(etcd)
    selector = {"matchLabels": {"app": "etcd"}}

    def allows_one(budget: JSON) -> bool:
        status = budget.get("status", {})
        current = status.get("observedGeneration") == budget["metadata"]["generation"]
        return bool(current and status["disruptionsAllowed"] == 1)

    def evictions() -> int:
        """How many of the three running members the API server evicts at once."""
        pods = api.wait_for("pods", lambda found: sum(map(stays, found)) == 3)
        return sum(evicted(pod["metadata"]["name"]) for pod in pods if stays(pod))

    def stays(pod: JSON) -> bool:
        return is_ready(pod) and "deletionTimestamp" not in pod["metadata"]

    def evicted(name: str) -> bool:
        try:
            evict(api, name)
        except ApiError as error:
            return "disruption budget" not in str(error)
        return True

    assert evictions() == 3
    api.create(manifest("PodDisruptionBudget", "etcd", {"minAvailable": 1, "selector": selector}))
    chassis.process.wait_until(lambda: rule in api.warnings(named(etcd, "twin")))
    api.patch("poddisruptionbudgets", "etcd", {"spec": {"minAvailable": None, "maxUnavailable": 1}})
    api.wait("poddisruptionbudgets", "etcd", allows_one)
    # A member that was replaced in the meantime could be ready, and another one might go.
    nowhere = {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}}}}
    api.patch("statefulsets", "etcd", {"spec": nowhere})
    assert evictions() == 1
    chassis.process.wait_until(lambda: rule not in api.warnings(named(etcd, "twin")))


def test_a_pod_that_two_budgets_select_is_not_evicted(api: Api, chassis: Chassis, namespace: str) -> None:
    """`drain-blocked-by-pdb`."""
    rule = "drain-blocked-by-pdb"
    api.create(workload("Deployment", "server", container("registry.example/server:1", 8080), replicas=3))
    selector = {"matchLabels": {"app": "server"}}
    one, two = (
        manifest("PodDisruptionBudget", name, {"maxUnavailable": 1, "selector": selector})
        for name in ("one", "two")
    )
    assert rule not in api.warnings(one)
    api.create(one)
    chassis.process.wait_until(lambda: rule in api.warnings(two))
    api.create(two)
    pod = api.wait_for("pods", lambda found: any(map(is_ready, found)))[0]["metadata"]["name"]
    with pytest.raises(ApiError, match="more than one PodDisruptionBudget"):
        evict(api, pod)
