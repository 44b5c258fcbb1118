"""The puller as users meet it: injected through the API server, admitted by Pod Security `restricted`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.status import has_condition
from tests.e2e.workloads import job, pod, workload
from tests.manifests import manifest

pytestmark = pytest.mark.e2e

RESTRICTED: JSON = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
MLSERVER: JSON = {
    "name": "mlserver",
    "image": "seldonio/mlserver:1.7.1",
    "command": ["mlserver", "start", "/mnt/models"],
    "ports": [{"name": "http", "containerPort": 8080}],
    "securityContext": RESTRICTED,
}
SCORER: JSON = {"name": "score", "image": "registry.example/scorer:1", "securityContext": RESTRICTED}
MODELS: JSON = {"modelName": "ranker", "modelSpec": {"storageUri": "s3://models/ranker", "memory": "32Gi"}}


@pytest.fixture
def restricted(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace in which the API server enforces the Pod Security level `restricted`."""
    with control_plane.temporary_namespace({"pod-security.kubernetes.io/enforce": "restricted"}) as name:
        yield name


def models(*entries: JSON, name: str = "models", label: str = "true") -> JSON:
    """A model config."""
    return manifest(
        "ConfigMap",
        name,
        data={"models.json": json.dumps(entries)},
        labels={"mlchassis.dev/model-config": label},
    )


def asking(item: JSON, **annotations: str) -> JSON:
    """A pod, or a workload by its template, that asks for the puller."""
    holder = item if item["kind"] == "Pod" else item["spec"]["template"]
    asked = {"model-config": "models"} | {key.replace("_", "-"): value for key, value in annotations.items()}
    holder["metadata"]["annotations"] = {f"mlchassis.dev/{key}": value for key, value in asked.items()}
    return item


def made_by(api: Api, name: str) -> JSON:
    """The first pod that a controller makes for a workload."""
    return api.wait_for("pods", bool, labels=f"app={name}")[0]


def puller_of(made: JSON) -> JSON:
    [puller] = [item for item in made["spec"]["initContainers"] if item["name"] == "model-puller"]
    return dict(puller)


def mounts(container: JSON) -> dict[str, JSON]:
    return {mount["mountPath"]: mount for mount in container.get("volumeMounts", [])}


def test_a_deployment_gets_the_sidecar_in_a_restricted_namespace(
    control_plane: ControlPlane, chassis: Chassis, restricted: str
) -> None:
    control_plane.api.create(models(MODELS), restricted)
    control_plane.apply(asking(workload("Deployment", "ranker", MLSERVER)), "-n", restricted)

    made = made_by(control_plane.api.within(restricted), "ranker")
    assert made["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"
    puller = puller_of(made)
    assert puller["restartPolicy"] == "Always", "a native sidecar"
    assert "--server=v2" in puller["args"]
    assert "--component-port=8080" in puller["args"]
    volumes = {volume["name"]: volume for volume in made["spec"]["volumes"]}
    models_mount, config_mount = mounts(puller)["/mnt/models"], mounts(puller)["/mnt/configs"]
    assert "sizeLimit" in volumes[models_mount["name"]]["emptyDir"]
    assert volumes[config_mount["name"]]["configMap"]["name"] == "models"
    assert config_mount["readOnly"] is True
    server = mounts(made["spec"]["containers"][0])
    assert server["/mnt/models"] == {**models_mount, "readOnly": True}
    assert "/mnt/configs" not in server, "the ConfigMap is for the puller alone"
    stored = control_plane.api.get("deployments", "ranker", restricted)["spec"]["template"]["spec"]
    assert "initContainers" not in stored, "the Deployment itself is left as it was written"


def test_the_namespace_really_is_restricted(
    control_plane: ControlPlane, chassis: Chassis, restricted: str
) -> None:
    lax = {key: value for key, value in MLSERVER.items() if key != "securityContext"}
    with pytest.raises(ApiError) as refused:
        control_plane.api.create(asking(pod("lax", lax)), restricted)
    assert "violates PodSecurity" in refused.value.message
    assert "model-puller" not in refused.value.message, "the sidecar is no part of the violation"


def test_a_job_gets_the_sidecar_and_finishes(
    control_plane: ControlPlane, chassis: Chassis, restricted: str
) -> None:
    control_plane.api.create(models(MODELS), restricted)
    control_plane.apply(asking(job("score", SCORER)), "-n", restricted)

    made = made_by(control_plane.api.within(restricted), "score")
    puller = puller_of(made)
    assert puller["restartPolicy"] == "Always"
    assert puller["startupProbe"]["httpGet"]["path"] == "/readyz", "the models come first"
    assert [item["name"] for item in made["spec"]["containers"]] == ["score"]
    assert "/mnt/models" in mounts(made["spec"]["containers"][0])
    done = control_plane.api.wait("jobs", "score", has_condition("Complete"), namespace=restricted)
    assert done["status"]["succeeded"] == 1


def test_the_models_sizes_give_the_startup_budget(api: Api, chassis: Chassis) -> None:
    api.create(models(MODELS))
    seconds = 3 * (60 + 32 * 1024 // 64)

    # The webhook hears of the ConfigMap through a watch: shortly after, not before, its creation returns.
    deadline = time.monotonic() + 60
    while True:
        dry = api.create(asking(pod("p", MLSERVER)), dry_run=True)
        startup = dry.body["spec"]["containers"][0]["startupProbe"]
        budget = startup["periodSeconds"] * startup["failureThreshold"]
        fits = seconds <= budget < seconds + startup["periodSeconds"]
        if fits or time.monotonic() > deadline:
            break
    assert fits, budget  # an hour while the sizes are unknown


def test_a_claim_and_credentials_by_name(api: Api, chassis: Chassis) -> None:
    item = asking(pod("p", MLSERVER), model_claim="nvme", model_credentials="store", model_dir="/models")
    made = api.create(item).body
    puller = puller_of(made)
    volumes = {volume["name"]: volume for volume in made["spec"]["volumes"]}
    assert volumes[mounts(puller)["/models"]["name"]]["persistentVolumeClaim"]["claimName"] == "nvme"
    assert puller["envFrom"] == [{"secretRef": {"name": "store"}}]


def test_an_unreadable_config_is_reported_and_changes_nothing(api: Api, chassis: Chassis) -> None:
    answer = api.create(asking(pod("p", MLSERVER), model_server="v3"))
    assert "initContainers" not in answer.body["spec"]
    assert any("mlchassis.dev/model-server" in warning for warning in answer.warnings)


def test_a_model_config_that_the_puller_would_refuse_is_refused(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    bad = models({"modelName": "a", "modelSpec": {"storageUri": "ftp://models/a"}})
    result = control_plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(bad), check=False)
    assert result.returncode == 1
    assert "model-config-invalid" in result.stderr
    assert "models.json" in result.stderr
    assert "ftp" in result.stderr
    api.create(models(MODELS))
    with pytest.raises(ApiError) as refused:
        api.patch("configmaps", "models", {"data": bad["data"]})
    assert "model-config-invalid" in refused.value.message
    api.create(models(name="other", label="false") | {"data": bad["data"]})
