"""What the pods of a Ray cluster get, as a review shows it before KubeRay makes them."""

from __future__ import annotations

import pytest

from policies.core.pod_templates import pod_templates
from policies.core.ray_pods import pod_of_kuberay
from policies.core.workloads import workloads_by_kind
from policies.kube.json import Json, dig, mapping, text
from webhook.admission.engine import decide
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document

WORKLOADS = workloads_by_kind()
GUARD = "karpenter.sh/do-not-disrupt"


def cluster(kind: str = "RayCluster", **spec: object) -> Json:
    def group(name: str) -> Json:
        return {"template": {"spec": {"containers": [{"name": name, "image": "rayproject/ray:2.51.0"}]}}}

    workers = {**group("worker"), "groupName": "gpus", "replicas": 1}
    whole = {"headGroupSpec": group("head"), "workerGroupSpecs": [workers], **spec}
    inside = {"RayJob": "rayClusterSpec", "RayService": "rayClusterConfig"}.get(kind)
    return {
        "apiVersion": "ray.io/v1",
        "kind": kind,
        "metadata": {"name": "train"},
        "spec": {inside: whole} if inside else whole,
    }


def guarded(obj: Json) -> list[str]:
    """The pod templates whose pods will get the annotation of disruption-guard."""
    decision = decide(
        Review(Document("case", 0, obj).request(), load({}), ManifestCluster([obj], whole=True))
    )
    assert decision.crashes == ()
    return [change.template for change in decision.changes if GUARD in str(change.patch).replace("~1", "/")]


@pytest.mark.parametrize(("kind", "at"), [("RayCluster", "spec."), ("RayJob", "spec.rayClusterSpec.")])
def test_the_head_will_be_guarded(kind: str, at: str) -> None:
    assert guarded(cluster(kind)) == [f"{at}headGroupSpec.template"]


def test_heads_of_services_and_of_fault_tolerant_clusters_will_not() -> None:
    assert guarded(cluster("RayService")) == []
    assert guarded(cluster(gcsFaultToleranceOptions={"redisAddress": "redis:6379"})) == []


def test_a_head_with_its_own_redis_will_be_guarded() -> None:
    """KubeRay does not take it for fault tolerant, so nothing in its pod tells that it is."""
    obj = cluster()
    container = obj["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "RAY_REDIS_ADDRESS", "value": "redis:6379"}]
    head, _ = pod_templates(obj, WORKLOADS)
    pod = pod_of_kuberay(obj, head) or {}
    assert mapping(pod, "metadata", "annotations")["ray.io/ft-enabled"] == "false"
    assert guarded(obj) == ["spec.headGroupSpec.template"]


def test_the_pods_have_the_labels_and_probes_of_kuberay() -> None:
    obj = cluster(gcsFaultToleranceOptions={"redisAddress": "redis:6379"})
    head, worker = (pod_of_kuberay(obj, each) or {} for each in pod_templates(obj, WORKLOADS))
    assert mapping(head, "metadata", "labels")["ray.io/node-type"] == "head"
    assert mapping(worker, "metadata", "labels")["ray.io/group"] == "gpus"
    assert mapping(head, "metadata", "annotations")["ray.io/ft-enabled"] == "true"
    assert dig(worker, "spec", "containers", 0, "livenessProbe", "failureThreshold") == 120


@pytest.mark.parametrize(
    ("version", "handler"),
    [("2.52.9", "exec"), ("2.53.0", "httpGet"), ("v3.0", "httpGet"), ("2", "exec"), ("nightly", "exec")],
)
def test_since_ray_2_53_the_probes_ask_one_endpoint(version: str, handler: str) -> None:
    obj = cluster(rayVersion=version)
    for template in pod_templates(obj, WORKLOADS):
        pod = pod_of_kuberay(obj, template) or {}
        for field in ("livenessProbe", "readinessProbe"):
            assert handler in mapping(pod, "spec", "containers", 0, field)


def test_workers_of_a_service_are_ready_when_their_proxy_is() -> None:
    obj = cluster("RayService", rayVersion="2.53.0")
    head, worker = (pod_of_kuberay(obj, each) or {} for each in pod_templates(obj, WORKLOADS))
    asked = text(worker, "spec", "containers", 0, "readinessProbe", "exec", "command", 2)
    assert asked.endswith("http://localhost:8000/-/healthz | grep success")
    assert dig(worker, "spec", "containers", 0, "readinessProbe", "failureThreshold") == 1
    assert "httpGet" in mapping(worker, "spec", "containers", 0, "livenessProbe")
    assert "httpGet" in mapping(head, "spec", "containers", 0, "readinessProbe")


def test_ports_of_the_start_parameters_are_asked() -> None:
    obj = cluster()
    obj["spec"]["headGroupSpec"]["rayStartParams"] = {"dashboard-port": "8299", "dashboard-host": "0.0.0.0"}
    head = pod_of_kuberay(obj, pod_templates(obj, WORKLOADS)[0]) or {}
    asked = text(head, "spec", "containers", 0, "livenessProbe", "exec", "command", 2)
    assert "localhost:52365/api/local_raylet_healthz" in asked
    assert "localhost:8299/api/gcs_healthz" in asked


def test_a_written_probe_stays() -> None:
    obj = cluster()
    own = {"tcpSocket": {"port": 1}}
    obj["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["livenessProbe"] = own
    head = pod_of_kuberay(obj, pod_templates(obj, WORKLOADS)[0]) or {}
    assert dig(head, "spec", "containers", 0, "livenessProbe") == own


def test_other_kinds_have_none() -> None:
    spec: Json = {"template": {"spec": {"containers": []}}}
    obj: Json = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": spec}
    assert [pod_of_kuberay(obj, each) for each in pod_templates(obj, WORKLOADS)] == [None]
