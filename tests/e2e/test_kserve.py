"""Pods of the real KServe in mode Standard: what they look like on arrival, and that neither its controller
nor its webhook reverts what our webhook adds."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.binaries import module_directory
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.operators import (
    KSERVE,
    Operator,
    added,
    bound_pods,
    first_of_two,
    own_node,
    place,
    plain_and_changed,
    run,
)
from tests.e2e.status import has_condition
from tests.e2e.test_model_puller import MODELS, models, mounts, puller_of
from tests.e2e.workloads import VLLM, probes
from tests.manifests import manifest

pytestmark = [pytest.mark.e2e, pytest.mark.operators]

SERVICES = "inferenceservices.serving.kserve.io"
WRITTEN = ("pods", "deployments", "services", "horizontalpodautoscalers", SERVICES)
GPUS = {"nvidia.com/gpu": "1"}


@pytest.fixture(scope="module")
def operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    api = control_plane.api
    control_plane.create_namespace("kserve")
    api.create(configuration())
    directory = tmp_path_factory.mktemp("kserve")
    with own_node(control_plane, "kserve"), Operator(KSERVE, control_plane, directory) as running:
        # Its webhooks answer some time after its controller has started.
        running.process.wait_until(lambda: _answers(api), interval=0.5)
        yield running
    api.delete("namespaces", "kserve")


def configuration() -> JSON:
    """KServe's own, for Deployments without an ingress."""
    file = module_directory(KSERVE.name) / "config" / "configmap" / "inferenceservice.yaml"
    found: JSON = yaml.safe_load(file.read_text())
    ingress = {**json.loads(found["data"]["ingress"]), "disableIngressCreation": True}
    found["data"] |= {"deploy": '{"defaultDeploymentMode": "Standard"}', "ingress": json.dumps(ingress)}
    return found


def _answers(api: Api) -> bool:
    created = api.create(service("asks", "default", custom()), dry_run=True).body
    return "serving.kserve.io/deploymentMode" in created["metadata"].get("annotations", {})


def service(name: str, namespace: str, predictor: JSON) -> JSON:
    return manifest(
        "InferenceService",
        name,
        {"predictor": {**place("kserve"), "minReplicas": 1, **predictor}},
        namespace=namespace,
    )


def custom(**fields: object) -> JSON:
    """A predictor whose container is written in the service."""
    container = {
        "name": "kserve-container",
        "image": VLLM,
        "args": ["--model", "Qwen/Qwen2.5-7B-Instruct"],
        "ports": [{"containerPort": 8000}],
        "resources": {"requests": GPUS, "limits": GPUS},
        **fields,
    }
    return {"containers": [container]}


def pods_of(api: Api, namespace: str, name: str, count: int = 1) -> list[JSON]:
    return bound_pods(api, namespace, f"serving.kserve.io/inferenceservice={name}", count)


def runs(api: Api, namespace: str, name: str) -> JSON:
    """Let the pod of a service run, and wait until the controller has seen that it is ready."""
    (pod,) = pods_of(api, namespace, name)
    run(api, pod)
    api.wait(
        SERVICES,
        name,
        has_condition("PredictorReady"),
        namespace=namespace,
        timeout=120,
    )
    return pod


def test_a_pod_arrives_with_the_operators_probe_and_gets_the_others(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    def made(namespace: str) -> list[JSON]:
        control_plane.api.create(service("llm", namespace, custom()))
        return pods_of(control_plane.api, namespace, "llm")

    (plain,), (changed,) = plain_and_changed(control_plane, namespace, made)
    (owner,) = changed["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("ReplicaSet", True)
    assert probes(plain) == {"readinessProbe"}
    written = plain["spec"]["containers"][0]["readinessProbe"]
    assert written["tcpSocket"] == {"port": 8000}, "written by the controller"
    assert changed["spec"]["containers"][0]["readinessProbe"] == written
    assert added(plain, changed) == {
        "annotations.mlchassis.dev/changed",
        "containers.lifecycle",
        "containers.livenessProbe",
        "containers.startupProbe",
        "tolerations",
    }


def test_the_operator_writes_no_more_once_the_service_is_ready(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    def begins(name: str) -> None:
        control_plane.api.create(service(name, namespace, custom()))
        runs(control_plane.api, namespace, name)

    first_of_two(control_plane.api, namespace, WRITTEN, begins)


def test_a_model_gets_its_container_from_a_runtime_and_its_files_from_the_initializer(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api
    runtime = shipped("kserve-sklearnserver", "ServingRuntime", namespace)
    api.create(runtime)
    model = {
        "modelFormat": {"name": "sklearn"},
        "runtime": "kserve-sklearnserver",
        "storageUri": "gs://m/iris",
    }
    api.create(service("iris", namespace, {"model": model}))
    pod = runs(api, namespace, "iris")
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["storage-initializer"]
    assert [each["name"] for each in pod["spec"]["containers"]] == ["kserve-container"]


def shipped(name: str, kind: str, namespace: str) -> JSON:
    """A runtime of KServe's release, in a namespace."""
    file = module_directory(KSERVE.name) / "config" / "runtimes" / f"{name}.yaml"
    found: JSON = yaml.safe_load(file.read_text())
    return {**found, "kind": kind, "metadata": {"name": name, "namespace": namespace}}


def test_members_of_a_service_on_several_nodes_keep_the_probes_of_the_runtime(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    def made(namespace: str) -> dict[str, JSON]:
        api.create(shipped("kserve-huggingfaceserver-multinode", "ServingRuntime", namespace))
        model = {
            "modelFormat": {"name": "huggingface"},
            "runtime": "kserve-huggingfaceserver-multinode",
            "storageUri": "pvc://models/llama",
        }
        item = service("large", namespace, {"model": model, "workerSpec": {"pipelineParallelSize": 2}})
        item["metadata"]["annotations"] = {"serving.kserve.io/autoscalerClass": "none"}
        api.create(item)
        labels = "serving.kserve.io/inferenceservice=large"
        pods = api.wait_for(
            "pods", lambda pods: len(pods) == 2, namespace=namespace, labels=labels, timeout=120
        )
        return {pod["spec"]["containers"][0]["name"]: pod for pod in pods}

    api = control_plane.api
    plain, changed = plain_and_changed(control_plane, namespace, made)
    for name, adds in (("kserve-container", {"containers.lifecycle"}), ("worker-container", set())):
        assert added(plain[name], changed[name]) == {
            "annotations.mlchassis.dev/changed",
            "tolerations",
            *adds,
        }


def test_the_puller_stays_a_native_sidecar_when_the_operators_webhook_runs_again(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    """That webhook decodes the pod and encodes it again, so it would drop fields that it does not know."""
    api = control_plane.api
    api.create(models(MODELS), namespace)
    item = service("pulls", namespace, custom())
    item["metadata"]["annotations"] = {"mlchassis.dev/model-config": "models"}
    api.create(item)
    (pod,) = pods_of(api, namespace, "pulls")
    puller = puller_of(pod)
    assert puller["restartPolicy"] == "Always"
    assert "livenessProbe" in puller
    assert "/mnt/models" in mounts(pod["spec"]["containers"][0])


def test_findings_name_the_place_in_the_service(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api
    liveness = {"exec": {"command": ["curl", "-f", "http://features.store:8080/health"]}}
    with pytest.raises(ApiError) as refused:
        api.create(service("refused", namespace, custom(livenessProbe=liveness)), dry_run=True)
    assert "spec.predictor.containers[0].livenessProbe" in refused.value.message


def test_a_container_without_ports_is_asked_where_the_finding_says(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api
    warnings = api.create(service("silent", namespace, custom(ports=[]))).warnings
    (finding,) = [each for each in warnings if "probe-wrong-port" in each]
    assert "on port 8080" in finding
    assert not any("readinessProbe" in each for each in warnings if "standard-probes" in each)
    (pod,) = pods_of(api, namespace, "silent")
    assert pod["spec"]["containers"][0]["readinessProbe"]["tcpSocket"] == {"port": 8080}
