"""RayClusters and RayJobs under KubeRay 1.6: their retries and ends are as `lifecycles.yaml` has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.kuberay import NAMESPACE, SERVICE_ACCOUNT, Operator, install, ray_cluster
from tests.e2e.operators import drain, end, new_pods, own_node, place, run, uid
from tests.manifests import manifest

pytestmark = pytest.mark.e2e

RELEASE = "kuberay-1.6"
CLUSTERS, JOBS = "rayclusters.ray.io", "rayjobs.ray.io"
RAY = "ray.io/is-ray-node=yes"


@pytest.fixture(scope="module")
def ray_node(control_plane: ControlPlane) -> Iterator[None]:
    install(control_plane, RELEASE)
    with own_node(control_plane, "ray-lives"):
        yield


@pytest.fixture
def ray(control_plane: ControlPlane, ray_node: None, bare: str) -> Iterator[Api]:
    """The test's namespace, which KubeRay watches and the webhook does not see."""
    account = control_plane.service_account(NAMESPACE, SERVICE_ACCOUNT)
    with Operator(control_plane, RELEASE, account, bare):
        yield control_plane.api.within(bare)


def cluster(name: str) -> JSON:
    made = ray_cluster(name, 1)
    for group in (made["spec"]["headGroupSpec"], *made["spec"]["workerGroupSpecs"]):
        group["template"]["spec"] |= place("ray-lives")
    return made


def ray_job(name: str, **spec: object) -> JSON:
    """A RayJob whose submitter fails at its first error."""
    container = {"name": "submitter", "image": "rayproject/ray:2.52.0"}
    submitter = {"restartPolicy": "Never", "containers": [container], **place("ray-lives")}
    made = {
        "entrypoint": "python train.py",
        "rayClusterSpec": cluster(name)["spec"],
        "submitterPodTemplate": {"spec": submitter},
        "submitterConfig": {"backoffLimit": 0},
    }
    return manifest("RayJob", name, made | spec, version="ray.io/v1")


def pods(api: Api, labels: str, count: int, *, besides: frozenset[str] = frozenset()) -> list[JSON]:
    """The bound pods with these labels, others than those with these uids, once there are so many; the head
    first."""
    found = new_pods(api, labels, count, besides=besides)
    return sorted(found, key=lambda pod: str(pod["metadata"]["labels"].get("ray.io/node-type")))


def test_a_lost_pod_is_replaced_and_no_other(ray: Api) -> None:
    """Also a lost head: its workers stay, although all that it knew is lost."""
    ray.create(cluster("train"))
    members = pods(ray, RAY, 2)
    for place_of_lost in (1, 0):
        for pod in members:
            run(ray, pod)
        lost, other = members[place_of_lost], members[1 - place_of_lost]
        with drain(ray, lost):
            pass
        pods(ray, RAY, 1, besides=frozenset(map(uid, members)))
        members = pods(ray, RAY, 2)
        assert uid(members[1 - place_of_lost]) == uid(other)


def test_suspended_and_delegated_clusters_have_no_pods(ray: Api) -> None:
    for name, field in {
        "delegated": {"managedBy": "kueue.x-k8s.io/multikueue"},
        "suspended": {"suspend": True},
    }.items():
        made = cluster(name)
        made["spec"] |= field
        ray.create(made)
    ray.create(cluster("own"))
    pods(ray, RAY, 2)
    ray.wait(CLUSTERS, "suspended", lambda it: it.get("status", {}).get("state") == "suspended")
    assert {pod["metadata"]["labels"]["ray.io/cluster"] for pod in ray.items("pods")} == {"own"}


@pytest.mark.parametrize("shuts_down", [None, True], ids=["default", "shutdownAfterJobFinishes"])
def test_a_failed_run_is_retried_in_another_cluster_and_the_last_one_stays_unless_it_is_shut_down(
    shuts_down: bool | None, ray: Api
) -> None:
    """With backoffLimit 1: two clusters, one after the other."""
    ray.create(ray_job("train", backoffLimit=1, **{"shutdownAfterJobFinishes": True} if shuts_down else {}))
    seen: frozenset[str] = frozenset()
    for number in range(2):
        members = pods(ray, RAY, 2, besides=seen)
        for pod in members:
            run(ray, pod)
        (submitter,) = pods(ray, "batch.kubernetes.io/job-name=train", 1, besides=seen)
        end(ray, submitter, {"submitter": 1})
        seen |= {uid(pod) for pod in (*members, submitter)}
        if not number:
            leave(ray, members)
    done = ray.wait(JOBS, "train", lambda it: it["status"].get("jobDeploymentStatus") == "Failed", timeout=60)
    assert done["status"]["failed"] == 2
    if shuts_down:
        leave(ray, members)
        ray.wait_for(CLUSTERS, lambda found: not found, timeout=60)
    else:
        (left,) = ray.items(CLUSTERS)
        assert "deletionTimestamp" not in left["metadata"]
        assert [uid(pod) for pod in pods(ray, RAY, 2)] == [uid(pod) for pod in members]


def leave(api: Api, members: list[JSON]) -> None:
    """Wait until pods are deleted, and end them."""
    for pod in members:
        name = pod["metadata"]["name"]
        api.wait("pods", name, lambda it: "deletionTimestamp" in it["metadata"], timeout=60)
        api.delete("pods", name, grace=0)


def test_a_deadline_ends_a_run_without_a_retry_and_the_submitter_has_its_own_retries(ray: Api) -> None:
    made = ray_job("late", backoffLimit=3, activeDeadlineSeconds=8)
    del made["spec"]["submitterConfig"]
    ray.create(made)
    for pod in pods(ray, RAY, 2):
        run(ray, pod)
    assert ray.wait("jobs", "late", timeout=60)["spec"]["backoffLimit"] == 2
    done = ray.wait(JOBS, "late", lambda it: it["status"].get("jobDeploymentStatus") == "Failed", timeout=60)
    assert (done["status"]["reason"], done["status"]["failed"]) == ("DeadlineExceeded", 1)


def test_what_was_shown_above_is_warned_about(ray: Api, chassis: Chassis, namespace: str) -> None:
    rule, ours = "pods-outlive-run", ray.within(namespace)
    assert rule in ours.warnings(ray_job("stays", backoffLimit=1))
    assert rule not in ours.warnings(ray_job("ends", backoffLimit=1, shutdownAfterJobFinishes=True))
