"""The control plane of all other end-to-end tests works as they assume."""

from __future__ import annotations

from typing import Any

import pytest

from policies.core.annotations import ADMISSION
from tests.e2e.api import ApiError
from tests.e2e.binaries import TABLE, api_server
from tests.e2e.controlplane import ControlPlane, KubectlError
from tests.e2e.status import unschedulable
from tests.manifests import manifest

pytestmark = pytest.mark.e2e


def deployment(name: str) -> dict[str, Any]:
    labels = {"app": name}
    return manifest(
        "Deployment",
        name,
        {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "registry.example/server:1"}]},
            },
        },
    )


def test_serves_the_version_that_go_mod_pins(control_plane: ControlPlane) -> None:
    version = control_plane.api.request("GET", "/version").body
    assert version["gitVersion"] == TABLE[api_server()].version
    assert f"v{version['major']}.{version['minor']}" == version["gitVersion"].rpartition(".")[0]


def test_a_deployment_gets_running_pods_through_the_replica_set_controller(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.apply(deployment("server"), "-n", namespace)
    control_plane.api.wait(
        "deployments", "server", lambda it: it["status"].get("readyReplicas") == 2, namespace=namespace
    )
    nodes = {node["metadata"]["name"] for node in control_plane.api.items("nodes")}  # of other tests, too
    for pod in control_plane.api.items("pods", namespace, "app=server"):
        assert pod["spec"]["nodeName"] in nodes
        assert pod["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"


def test_a_job_completes(control_plane: ControlPlane, namespace: str) -> None:
    template = {
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "registry.example/job:1"}],
        }
    }
    control_plane.apply(
        manifest("Job", "once", {"template": template}),
        "-n",
        namespace,
    )
    control_plane.api.wait("jobs", "once", lambda it: it["status"].get("succeeded") == 1, namespace=namespace)


def test_rbac_is_on(control_plane: ControlPlane, namespace: str) -> None:
    nobody = control_plane.user("nobody")
    with pytest.raises(KubectlError, match="forbidden"):
        control_plane.kubectl("get", "pods", "-n", namespace, kubeconfig=nobody)
    account = control_plane.api_as_service_account(namespace, "default")
    with pytest.raises(ApiError) as refused:
        account.items("pods", namespace)
    assert refused.value.status == 403


def test_the_scheduler_respects_capacity_and_taints(control_plane: ControlPlane) -> None:
    # Where the webhook has been installed by another test, it would add the toleration.
    namespace = "left-alone"
    control_plane.create_namespace(namespace, {ADMISSION: "disabled"})
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    control_plane.add_node("gpu-0", taints=[taint], capacity={"nvidia.com/gpu": "8"})
    try:
        pod: dict[str, Any] = manifest(
            "Pod",
            "training",
            {
                "containers": [
                    {
                        "name": "main",
                        "image": "registry.example/train:1",
                        "resources": {"limits": {"nvidia.com/gpu": "8"}},
                    }
                ]
            },
        )
        control_plane.api.create(pod, namespace)
        control_plane.api.wait("pods", "training", unschedulable, namespace=namespace)
        pod["metadata"]["name"] = "tolerant"
        pod["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
        control_plane.api.create(pod, namespace)
        running = control_plane.api.wait(
            "pods", "tolerant", lambda it: it["status"]["phase"] == "Running", namespace=namespace
        )
        assert running["spec"]["nodeName"] == "gpu-0"
    finally:
        control_plane.api.delete("nodes", "gpu-0")
        control_plane.kubectl("delete", "namespace", namespace, "--wait=false")
