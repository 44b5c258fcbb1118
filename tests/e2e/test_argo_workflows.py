"""Pods of the real Argo Workflows controller: how they arrive, that it leaves what the webhook adds, and how
it judges their ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.operators import (
    ARGO,
    TRAINING,
    Operator,
    added,
    bound_pods,
    end,
    first_of_two,
    own_node,
    place,
    plain_and_changed,
    run,
)
from tests.e2e.test_model_puller import MODELS, models, mounts, puller_of
from tests.e2e.workloads import VLLM, probes
from tests.manifests import manifest

pytestmark = [pytest.mark.e2e, pytest.mark.operators]

WORKFLOWS = "workflows.argoproj.io"
"""The resource; its labels and annotations have the same prefix."""
WRITTEN = ("pods", WORKFLOWS, "workflowtaskresults.argoproj.io")
EMISSARY = ["/var/run/argo/argoexec", "emissary"]


@pytest.fixture(scope="module")
def operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    control_plane.create_namespace("argo")
    metadata = {"name": "workflow-controller-configmap", "namespace": "argo"}
    control_plane.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    directory = tmp_path_factory.mktemp("argo")
    with own_node(control_plane, "workflows"), Operator(ARGO, control_plane, directory) as running:
        yield running
    control_plane.api.delete("namespaces", "argo")


def container(image: str = "registry.example/train:1", **fields: object) -> JSON:
    return {
        "image": image,
        "command": ["python", "step.py"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        **fields,
    }


def workflow(name: str, namespace: str, *templates: JSON, **spec: object) -> JSON:
    """A workflow that begins with its first template."""
    return manifest(
        "Workflow",
        name,
        {"entrypoint": templates[0]["name"], **place("workflows"), "templates": list(templates), **spec},
        namespace=namespace,
    )


def step(name: str = "step", **fields: object) -> JSON:
    return {"name": name, "container": container(), **fields}


def pods_of(api: Api, namespace: str, name: str, count: int = 1) -> list[JSON]:
    """The bound pods of a workflow, oldest first, once there are so many."""
    pods = bound_pods(api, namespace, f"{WORKFLOWS}/workflow={name}", count)
    return sorted(pods, key=lambda pod: int(pod["metadata"]["resourceVersion"]))


def report(api: Api, pod: JSON) -> None:
    """Be the executor: the wait container has reported all outputs."""
    metadata = pod["metadata"]
    labels = {
        f"{WORKFLOWS}/workflow": metadata["labels"][f"{WORKFLOWS}/workflow"],
        f"{WORKFLOWS}/report-outputs-completed": "true",
    }
    name, namespace = metadata["annotations"][f"{WORKFLOWS}/node-id"], metadata["namespace"]
    api.create(manifest("WorkflowTaskResult", name, namespace=namespace, labels=labels))


def runs_a_step(item: JSON) -> bool:
    """Whether the controller has seen that the pod of a step runs."""
    nodes = item.get("status", {}).get("nodes", {}).values()
    return any((each["type"], each["phase"]) == ("Pod", "Running") for each in nodes)


def phase(api: Api, namespace: str, name: str, wanted: str) -> JSON:
    """The workflow once the controller has given it that phase."""
    return api.wait(
        WORKFLOWS,
        name,
        lambda it: it.get("status", {}).get("phase") == wanted,
        namespace=namespace,
        timeout=60,
    )


def test_pods_arrive_as_children_of_the_workflow_and_get_no_probes(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    server = container(VLLM, name="vllm", command=["vllm", "serve", "m"], ports=[{"containerPort": 8000}])

    def made(namespace: str) -> list[JSON]:
        control_plane.api.create(workflow("train", namespace, step(sidecars=[server])))
        return pods_of(control_plane.api, namespace, "train")

    (plain,), (changed,) = plain_and_changed(control_plane, namespace, made)
    (owner,) = changed["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Workflow", "train", True)
    spec = changed["spec"]
    assert spec["restartPolicy"] == "Never"
    assert [each["name"] for each in spec["initContainers"]] == ["init"]
    assert [each["name"] for each in spec["containers"]] == ["wait", "main", "vllm"]
    for each in spec["containers"][1:]:
        assert each["command"][:2] == EMISSARY
    assert probes(changed) == probes(changed, 1) == probes(changed, 2) == set()
    assert added(plain, changed) == TRAINING
    for each in spec["containers"]:
        assert each["terminationMessagePolicy"] == "File", "the controller reads the message"


ENDS = {
    "a step that succeeds": ({}, False, "Succeeded", ""),
    "a step that fails": ({"main": 3}, False, "Failed", "main: Error (exit code 3)"),
    "a sidecar that is stopped": ({"helper": 143}, False, "Succeeded", ""),
    "a step that succeeds next to the puller": ({}, True, "Succeeded", ""),
    "a step that fails next to the puller": ({"main": 3}, True, "Failed", "main: Error (exit code 3)"),
}


@pytest.mark.parametrize(("codes", "pulls", "wanted", "message"), ENDS.values(), ids=ENDS)
def test_a_step_ends_in_the_workflow_as_it_does_in_its_pod(
    codes: dict[str, int],
    pulls: bool,
    wanted: str,
    message: str,
    control_plane: ControlPlane,
    chassis: Chassis,
    operator: Operator,
    namespace: str,
) -> None:
    api = control_plane.api
    made = step(sidecars=[container("registry.example/helper:1", name="helper")])
    if pulls:
        api.create(models(MODELS), namespace)
        made["metadata"] = {"annotations": {"mlchassis.dev/model-config": "models"}}
    api.create(workflow("ends", namespace, made))
    (pod,) = pods_of(api, namespace, "ends")
    wait, main, helper = pod["spec"]["containers"]
    if pulls:
        assert puller_of(pod)["restartPolicy"] == "Always"
        assert "/mnt/models" in mounts(main)
        assert "/mnt/models" not in mounts(wait), "the executor reads no models"
    assert helper["name"] == "helper"
    run(api, pod)
    report(api, pod)
    end(api, pod, codes)
    done = phase(api, namespace, "ends", wanted)
    (node,) = done["status"]["nodes"].values()
    assert node.get("message", "") == message
    assert node["outputs"]["exitCode"] == str(codes.get("main", 0))


def test_a_retried_step_gets_the_same_fields(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api
    api.create(workflow("retries", namespace, step(retryStrategy={"limit": "1"})))
    (first,) = pods_of(api, namespace, "retries")
    run(api, first)
    report(api, first)
    end(api, first, {"main": 1})
    again = pods_of(api, namespace, "retries", 2)
    (second,) = [pod for pod in again if pod["metadata"]["uid"] != first["metadata"]["uid"]]
    assert added(first, second) == added(second, first) == set()
    run(api, second)
    report(api, second)
    end(api, second)
    phase(api, namespace, "retries", "Succeeded")


def test_the_controller_writes_no_more_once_the_step_runs(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api

    def runs(name: str) -> None:
        api.create(workflow(name, namespace, step()))
        (pod,) = pods_of(api, namespace, name)
        run(api, pod)
        api.wait(WORKFLOWS, name, runs_a_step, namespace=namespace, timeout=60)

    first_of_two(api, namespace, WRITTEN, runs)


def test_a_step_that_waits_for_a_server_is_made(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    """The controller makes the pod of the next step once every container of the daemon is Ready."""
    api = control_plane.api
    served = container(VLLM, command=["vllm", "serve", "m"], ports=[{"containerPort": 8000}])
    steps = [[{"name": "serve", "template": "server"}], [{"name": "ask", "template": "client"}]]
    api.create(
        workflow(
            "asks",
            namespace,
            {"name": "both", "steps": steps},
            {"name": "server", "daemon": True, "container": served},
            step("client"),
        )
    )
    (server,) = pods_of(api, namespace, "asks")
    assert probes(server, 1) == set()
    run(api, server)
    assert len(pods_of(api, namespace, "asks", 2)) == 2


def test_findings_name_the_place_in_the_workflow(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api
    liveness = {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 5, "failureThreshold": 2}
    served = container(VLLM, command=["vllm", "serve", "m"], livenessProbe=liveness)
    item = workflow("warned", namespace, step(), {"name": "server", "daemon": True, "container": served})
    warnings = api.create(item, dry_run=True).warnings
    assert any("spec.templates[1].container.livenessProbe" in each for each in warnings), warnings


def test_a_lost_pod_of_a_step_is_retried_only_as_an_error(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, bare: str, namespace: str
) -> None:
    """As job-lost-on-eviction says: a deleted pod is an error, and OnFailure, the default, retries none."""
    api, rule = control_plane.api, "job-lost-on-eviction"
    lost, kept = {"limit": "2"}, {"limit": "2", "retryPolicy": "Always"}
    assert rule in api.warnings(workflow("lost", namespace, step(retryStrategy=lost)))
    assert rule not in api.warnings(workflow("kept", namespace, step(retryStrategy=kept)))
    for name, strategy in {"lost": lost, "kept": kept}.items():
        api.create(workflow(name, bare, step(retryStrategy=strategy)))
        (pod,) = pods_of(api, bare, name)
        run(api, pod)
        api.wait(WORKFLOWS, name, runs_a_step, namespace=bare, timeout=60)
        api.delete("pods", pod["metadata"]["name"], bare, grace=0)  # a node that goes away
    phase(api, bare, "lost", "Error")
    (again,) = pods_of(api, bare, "kept")
    run(api, again)
    report(api, again)
    end(api, again)
    phase(api, bare, "kept", "Succeeded")
    assert not api.items("pods", bare, f"{WORKFLOWS}/workflow=lost")


def test_a_retry_strategy_without_a_limit_retries_for_ever(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, bare: str, namespace: str
) -> None:
    """As retries-without-limit says: after 4 failures, the next pod comes."""
    api, rule = control_plane.api, "retries-without-limit"
    assert rule in api.warnings(workflow("endless", namespace, step(retryStrategy={})))
    assert rule not in api.warnings(workflow("limited", namespace, step(retryStrategy={"limit": "3"})))
    api.create(workflow("endless", bare, step(retryStrategy={})))
    for number in range(1, 5):
        pod = pods_of(api, bare, "endless", number)[-1]
        run(api, pod)
        report(api, pod)
        end(api, pod, {"main": 1})
    assert len(pods_of(api, bare, "endless", 5)) == 5
    assert api.get(WORKFLOWS, "endless", bare)["status"]["phase"] == "Running"
