"""Pods as operators make them, read in their sources: injected fields do not break the operator's
assumptions.

Each operator finds its pods by labels and owner, and some by the order of containers. None of them compares a
running pod with its template, so a field that is added does not make it recreate the pod.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.kube.json import Json
from policies.kube.pods import Role, containers
from policies.probes.liveness_program import is_program, watched_start
from tests.manifests import manifest
from webhook.admission.engine import mutate
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document

MODELS: Json = manifest(
    "ConfigMap",
    "models",
    data={"models.json": '[{"modelName": "a", "modelSpec": {"storageUri": "s3://m/a"}}]'},
    namespace="ml",
    labels={"mlchassis.dev/model-config": "true"},
)


def made(entry: Json) -> Json:
    owner = {**entry["owner"], "name": "own", "uid": "u", "controller": True}
    metadata = {
        "name": "x",
        "namespace": "ml",
        "labels": entry["labels"],
        "annotations": {"mlchassis.dev/model-config": "models", **entry.get("annotations", {})},
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": entry["spec"]}


PODS = {
    name: made(entry)
    for name, entry in yaml.safe_load(Path(__file__).with_name("operator_pods.yaml").read_text()).items()
}


def injected(pod: Json) -> Json:
    request = Document("test", 0, pod).request()
    return mutate(Review(request, load({}), ManifestCluster([pod, MODELS]))).object


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS.keys())
def test_what_the_operator_relies_on_stays(pod: Json) -> None:
    after = injected(pod)
    assert after is not pod, "something is injected"
    metadata = after["metadata"]
    for name in ("labels", "ownerReferences", "name"):
        assert metadata[name] == pod["metadata"][name]
    assert pod["metadata"]["annotations"].items() <= metadata["annotations"].items()
    for name in ("hostname", "subdomain", "restartPolicy", "dnsConfig", "nodeName"):
        assert after["spec"].get(name) == pod["spec"].get(name)
    assert [each["name"] for each in after["spec"]["containers"]] == [
        each["name"] for each in pod["spec"]["containers"]
    ], "no container is added between those of the operator: the puller is a native sidecar"


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS.keys())
def test_each_container_keeps_what_it_has(pod: Json) -> None:
    own = {each.name: each.spec for each in containers(pod)}
    for container in containers(injected(pod)):
        for key, value in own.get(container.name, {}).items():
            if isinstance(value, list):
                assert [each for each in container.spec[key] if each in value] == value
            else:
                assert container.spec[key] == value


@pytest.mark.parametrize("name", sorted(PODS.keys() - {"kserve"}))
def test_nothing_that_completes_gets_a_probe(name: str) -> None:
    for container in containers(injected(PODS[name]), Role.MAIN):
        assert not any(key.endswith("Probe") for key in container.spec)


def test_the_probe_that_kserve_writes_stays_and_the_others_are_added() -> None:
    (container,) = containers(injected(PODS["kserve"]), Role.MAIN)
    probes: dict[str, Any] = {key: value for key, value in container.spec.items() if key.endswith("Probe")}
    assert probes["readinessProbe"] == PODS["kserve"]["spec"]["containers"][0]["readinessProbe"]
    assert is_program(probes["livenessProbe"])
    assert watched_start(probes["livenessProbe"]) > 0
    assert "startupProbe" not in probes
