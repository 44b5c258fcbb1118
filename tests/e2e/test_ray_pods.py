"""The probes and marks of Ray pods that a review shows are those that KubeRay 1.6 adds."""

from __future__ import annotations

import pytest

from policies.core.pod_templates import pod_templates
from policies.core.ray_pods import pod_of_kuberay
from policies.core.workloads import workloads_by_kind
from policies.kube.metadata import annotations_of, labels_of
from policies.kube.objects.ray import FT_ENABLED
from tests.e2e.api import JSON
from tests.e2e.controlplane import ControlPlane
from tests.e2e.kuberay import NAMESPACE, SERVICE_ACCOUNT, Operator, prepare, ray_cluster
from tests.manifests import manifest

pytestmark = pytest.mark.e2e

RELEASE = "kuberay-1.6"
WORKLOADS = workloads_by_kind()
PROBES = ("livenessProbe", "readinessProbe")
DEFAULTS = {"successThreshold": 1}
PORTS = {"dashboard-agent-listen-port": "8266", "dashboard-port": "8299"}


def cluster(
    name: str, version: str, *, parameters: JSON | None = None, ports: list[JSON] | None = None
) -> JSON:
    made = ray_cluster(name, 1)
    spec = made["spec"]
    spec["rayVersion"] = version
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        group["rayStartParams"] = parameters or {}
        group["template"]["spec"]["containers"][0]["ports"] = ports or []
    return made


def durable(name: str) -> JSON:
    made = cluster(name, "2.53.0")
    made["spec"]["gcsFaultToleranceOptions"] = {"redisAddress": "redis:6379"}
    return made


def service(name: str, version: str) -> JSON:
    config = cluster(name, version, ports=[{"name": "serve", "containerPort": 8123}])["spec"]
    spec = {"serveConfigV2": "applications: []", "rayClusterConfig": config}
    return manifest("RayService", name, spec, version="ray.io/v1")


MADE = {
    made["metadata"]["name"]: made
    for made in (
        cluster("commands", "2.52.0"),
        cluster("one-endpoint", "2.53.0"),
        cluster("own-ports", "2.53.0-py312", parameters=PORTS),
        cluster("unknown-version", "", parameters=PORTS),
        durable("durable"),
        service("service", "2.52.0"),
        service("newer-service", "2.53.0"),
    )
}


def test_the_pods_are_as_shown(control_plane: ControlPlane, bare: str) -> None:
    prepare(control_plane, RELEASE)
    api = control_plane.api.within(bare)
    for made in MADE.values():
        api.create(made)
    account = control_plane.service_account(NAMESPACE, SERVICE_ACCOUNT)
    with Operator(control_plane, RELEASE, account, bare):
        pods = api.wait_for(
            "pods", lambda found: len(found) == 2 * len(MADE), labels="ray.io/is-ray-node=yes"
        )
    real = {key_of(pod): pod for pod in pods}
    shown = {
        (made["metadata"]["name"], labels_of(pod)["ray.io/node-type"]): pod
        for made in MADE.values()
        for template in pod_templates(made, WORKLOADS)
        if (pod := pod_of_kuberay(made, template)) is not None
    }
    assert {key: probes_of(pod) for key, pod in shown.items()} == {
        key: probes_of(pod) for key, pod in real.items()
    }
    for key, pod in shown.items():
        assert labels_of(pod).items() <= labels_of(real[key]).items()
        assert annotations_of(pod).get(FT_ENABLED) == annotations_of(real[key]).get(FT_ENABLED)


def key_of(pod: JSON) -> tuple[str, str]:
    """The name of the object that the pod is of, to which a RayService adds a random suffix, and its role."""
    labels = labels_of(pod)
    whole = labels["ray.io/cluster"]
    name = whole if whole in MADE else whole.rpartition("-")[0]
    return name, labels["ray.io/node-type"]


def probes_of(pod: JSON) -> JSON:
    container = pod["spec"]["containers"][0]
    return {key: with_defaults(container[key]) for key in PROBES}


def with_defaults(probe: JSON) -> JSON:
    """The probe as the API server stores it."""
    if "httpGet" in probe:
        probe = {**probe, "httpGet": {"scheme": "HTTP", **probe["httpGet"]}}
    return {**DEFAULTS, **probe}
