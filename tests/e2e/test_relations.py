"""Hazards between objects, with the real controllers and scheduler: without the correction they are real."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.binaries import HELM
from tests.e2e.controlplane import ControlPlane
from tests.e2e.crds import KARPENTER, remove
from tests.e2e.helm import Helm, HelmError
from tests.e2e.install import Chassis
from tests.e2e.status import established, has_condition, rolled_out, unschedulable
from tests.e2e.workloads import container, workload
from tests.manifests import manifest
from webhook.cli import main as cli

pytestmark = pytest.mark.e2e

POOL = {"pool": "apart"}


@pytest.fixture
def two_nodes(control_plane: ControlPlane) -> Iterator[None]:
    """All nodes that the Deployments of `apart` may run on."""
    for name in ("apart-a", "apart-b"):
        control_plane.add_node(name, POOL)
    yield
    for name in ("apart-a", "apart-b"):
        control_plane.api.delete("nodes", name)


def deployment(
    replicas: int = 1, *, spec: JSON | None = None, pod: JSON | None = None, **fields: Any
) -> JSON:
    main = container(**{"image": "registry.example/api:1", "port": None, **fields})
    return workload("Deployment", "api", main, replicas=replicas, pod=pod, **(spec or {}))


def apart(replicas: int, **spec: JSON) -> JSON:
    """Pods on different nodes of the pool."""
    term = {"labelSelector": {"matchLabels": {"app": "api"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return deployment(replicas, spec=spec, pod={"nodeSelector": POOL, "affinity": affinity})


def one_is_left(pods: list[JSON]) -> bool:
    """Whether the scheduler found no node for one of the pods."""
    return any(map(unschedulable, pods))


def runs(api: Api, replicas: int, name: str = "api") -> None:
    """Wait until so many pods of a Deployment are available, and all of them are of its last revision."""

    api.wait("deployments", name, lambda it: rolled_out(it) and it["spec"]["replicas"] == replicas)


def test_a_rollout_of_as_many_pods_as_nodes_is_warned_about_and_never_completes(
    api: Api, chassis: Chassis, two_nodes: None
) -> None:
    one_by_one = {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}

    chassis.process.wait_until(lambda: "rollout-node-deadlock" in api.warnings(apart(2)))
    assert "rollout-node-deadlock" in api.warnings(apart(3, **one_by_one)), "the third pod has no node"
    assert "rollout-node-deadlock" not in api.warnings(apart(2, **one_by_one))
    assert "rollout-node-deadlock" not in api.warnings(apart(1))

    api.create(apart(2))
    runs(api, 2)
    change = {"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}}
    api.patch("deployments", "api", change)

    api.wait_for("pods", one_is_left)
    api.patch("deployments", "api", {"spec": one_by_one})
    runs(api, 2)


@pytest.fixture
def tainted_node(control_plane: ControlPlane, two_nodes: None) -> Iterator[None]:
    """A third node of the pool, which no pod tolerates."""
    taint = {"key": "reserved", "effect": "NoSchedule"}
    control_plane.add_node("apart-tainted", POOL, [taint])
    yield
    control_plane.api.delete("nodes", "apart-tainted")


def limited(how: str, replicas: int, **spec: JSON) -> JSON:
    """Pods that a port of the node, or a spread over the nodes, keeps from sharing one."""
    if how == "port":
        made = deployment(replicas, spec=spec, pod={"nodeSelector": POOL})
        made["spec"]["template"]["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
        return made
    spread: JSON = {
        "labelSelector": {"matchLabels": {"app": "api"}},
        "topologyKey": "kubernetes.io/hostname",
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
    }
    if how == "minDomains":
        spread |= {"minDomains": 4, "nodeTaintsPolicy": "Honor"}
    return deployment(replicas, spec=spec, pod={"nodeSelector": POOL, "topologySpreadConstraints": [spread]})


@pytest.mark.parametrize("how", ["port", "spread", "minDomains"])
def test_ports_and_spreads_limit_the_pods_as_the_rule_counts_them(
    api: Api, chassis: Chassis, tainted_node: None, how: str
) -> None:
    rule = "rollout-node-deadlock"
    one_by_one = {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}

    chassis.process.wait_until(lambda: rule in api.warnings(limited(how, 2)))
    assert rule in api.warnings(limited(how, 3, **one_by_one)), "the third pod has no node"
    assert rule not in api.warnings(limited(how, 2, **one_by_one))
    assert rule not in api.warnings(limited(how, 1))

    api.create(limited(how, 2))
    runs(api, 2)
    change = {"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}}
    api.patch("deployments", "api", change)
    api.wait_for("pods", one_is_left)
    api.patch("deployments", "api", {"spec": one_by_one})
    runs(api, 2)


ZONE = "topology.kubernetes.io/zone"


@pytest.fixture
def zones(control_plane: ControlPlane) -> Iterator[None]:
    """Two zones with GPUs, and one without."""
    for zone, capacity in (("a", {"nvidia.com/gpu": "4"}), ("b", {"nvidia.com/gpu": "4"}), ("c", {})):
        control_plane.add_node(f"zone-{zone}", POOL | {ZONE: zone}, capacity=capacity)
    yield
    for zone in "abc":
        control_plane.api.delete("nodes", f"zone-{zone}")


def test_a_spread_counts_zones_without_gpus(api: Api, chassis: Chassis, zones: None) -> None:
    rule = "rollout-node-deadlock"

    def spread(replicas: int) -> JSON:
        labels: JSON = {"labelSelector": {"matchLabels": {"app": "api"}}}
        one: JSON = labels | {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        gpus = {"limits": {"nvidia.com/gpu": "1"}}
        return deployment(
            replicas, pod={"nodeSelector": POOL, "topologySpreadConstraints": [one]}, resources=gpus
        )

    chassis.process.wait_until(lambda: rule in api.warnings(spread(3)))
    assert rule not in api.warnings(spread(1))
    api.create(spread(3))
    api.wait_for("pods", one_is_left)
    api.patch("deployments", "api", {"spec": {"replicas": 2}})
    runs(api, 2)


def test_a_service_that_sends_to_an_unknown_port_name_has_no_endpoints(api: Api, chassis: Chassis) -> None:
    ports = [{"name": "http", "port": 80, "targetPort": "web"}]
    service = manifest("Service", "api", {"selector": {"app": "api"}, "ports": ports})
    api.create(service)

    def named(port: str) -> JSON:
        return deployment(ports=[{"name": port, "containerPort": 8000}])

    chassis.process.wait_until(lambda: "service-port-unknown" in api.warnings(named("http")))
    assert "service-port-unknown" not in api.warnings(named("web"))

    def has_endpoints(*, port: bool) -> None:
        api.wait_for(
            "endpointslices.discovery.k8s.io",
            lambda slices: any(it.get("endpoints") and bool(it.get("ports")) is port for it in slices),
        )

    api.create(named("http"))
    has_endpoints(port=False)
    change = {
        "spec": {"template": {"spec": {"containers": named("web")["spec"]["template"]["spec"]["containers"]}}}
    }
    api.patch("deployments", "api", change)
    has_endpoints(port=True)


def waiting(name: str, host: str) -> JSON:
    """A Deployment whose init container waits for a host."""
    command = ["sh", "-c", f"until nc -z {host} 80; do sleep 2; done"]
    wait = {"name": "wait", "image": "registry.example/tools:1", "command": command}
    # Fake nodes run pods whose init containers never end.
    pod = {"initContainers": [wait], "nodeSelector": {"pool": "nowhere"}}
    return workload("Deployment", name, container("registry.example/api:1", None), pod=pod)


def service(name: str) -> JSON:
    spec = {"selector": {"app": name}, "ports": [{"port": 80}]}
    return manifest("Service", name, spec)


def test_a_set_is_judged_as_it_will_be_in_the_cluster(
    api: Api, control_plane: ControlPlane, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cluster has one half of a cycle, and a manifest the other: applied, none of the two starts."""
    for item in (service("a"), service("b"), waiting("a", "b")):
        api.create(item)
    file = tmp_path / "b.json"
    file.write_text(json.dumps(waiting("b", f"a.{namespace}.svc.cluster.local")))
    into = ["--against", "-", "--kubeconfig", str(control_plane.kubeconfig), "-n", namespace]

    def judged(*argv: str) -> tuple[int, str]:
        status = cli.main([argv[0], str(file), *argv[1:], *into])
        return status, capsys.readouterr().out

    status, output = judged("review", "--profile", "standard")
    assert status == 1, output
    assert "startup-wait-cycle" in output
    status, drawn = judged("graph", "-o", "json")
    assert status == 1
    assert len(json.loads(drawn)["cycles"]) == 1
    assert cli.main(["review", str(file)]) == 0, "the manifest by itself is sound"
    capsys.readouterr()

    # A name that nothing in the cluster has.
    file.write_text(json.dumps(deployment(envFrom=[{"secretRef": {"name": "token"}}])))
    assert "Secret token, which doesn't exist" in " ".join(judged("review")[1].split())
    api.create(manifest("Secret", "token"))
    assert "dependency-missing" not in judged("review")[1]

    # A set that gives up the other half is sound.
    both = [waiting("b", "a"), waiting("a", "elsewhere.example.com")]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": both}))
    assert judged("review", "--profile", "standard")[0] == 0
    assert judged("graph")[0] == 0


@pytest.mark.parametrize("version", HELM)
def test_a_hook_of_helm_that_waits_for_its_own_release_fails(
    api: Api,
    control_plane: ControlPlane,
    namespace: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    version: str,
) -> None:
    """The test plays the wait: the hook's pod finds a node once the Service exists."""
    helm = Helm(version, tmp_path / "helm", control_plane.kubeconfig)

    def chart(hook: str) -> Path:
        """A release of a database and a hook that waits for it."""
        made = waiting("web", "db")
        pod = made["spec"]["template"]["spec"]
        labels = {"app.kubernetes.io/instance": "shop"}
        job: JSON = manifest(
            "Job",
            "web",
            {
                "template": {
                    "spec": {**pod, "restartPolicy": "Never", "nodeSelector": {"service": namespace}},
                }
            },
            labels=labels,
            annotations={"helm.sh/hook": hook},
        )
        database = {**deployment(), "metadata": {"name": "db", "labels": labels}}
        database["spec"] = json.loads(json.dumps(database["spec"]).replace('"app": "api"', '"app": "db"'))
        listening = service("db")
        listening["metadata"]["labels"] = labels
        directory = tmp_path / hook
        (directory / "templates").mkdir(parents=True)
        (directory / "Chart.yaml").write_text("{apiVersion: v2, name: shop, version: 1.0.0}")
        for item in (job, database, listening):
            (directory / "templates" / f"{item['kind']}.yaml").write_text(json.dumps(item))
        return directory

    def judged(directory: Path) -> str:
        file = tmp_path / "rendered.yaml"
        file.write_text(helm.run("template", "shop", str(directory)))
        cli.main(["review", str(file)])
        return capsys.readouterr().out

    def install(directory: Path, timeout: str) -> str:
        return helm.run("install", "shop", str(directory), "-n", namespace, "--timeout", timeout)

    bad, good = chart("pre-install"), chart("post-install")
    assert "deploy-order-deadlock" in judged(bad)
    assert "deploy-order-deadlock" not in judged(good)
    with pytest.raises(HelmError, match="pre-install"):
        install(bad, "15s")
    assert not api.exists("services", "db"), "Helm waits for the hook first"
    api.delete("jobs", "web")
    helm.run("uninstall", "shop", "-n", namespace, "--no-hooks")
    with ThreadPoolExecutor(1) as pool:
        installed = pool.submit(install, good, "120s")
        api.wait("services", "db")
        control_plane.add_node("hook", {"service": namespace})
        try:
            assert "STATUS: deployed" in installed.result()
        finally:
            api.delete("nodes", "hook")


def test_a_claim_that_does_not_exist_keeps_the_pod_pending(
    api: Api, control_plane: ControlPlane, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finding comes first, then the scheduler's own reason; the claim frees the pod."""
    rule = "dependency-missing"
    volume = {"name": "models", "persistentVolumeClaim": {"claimName": "models"}}
    mount = {"name": "models", "mountPath": "/models"}
    made = deployment(pod={"nodeSelector": {"claims": namespace}}, volumeMounts=[mount])
    made["spec"]["template"]["spec"]["volumes"] = [volume]
    file = tmp_path / "api.json"
    file.write_text(json.dumps(made))
    into = ["--against", "-", "--kubeconfig", str(control_plane.kubeconfig), "-n", namespace]

    def judged() -> str:
        cli.main(["review", str(file), *into])
        return " ".join(capsys.readouterr().out.split())

    assert "PersistentVolumeClaim models, which doesn't exist" in judged()
    control_plane.add_node("claims", {"claims": namespace})
    try:
        api.create(made)
        [pod] = api.wait_for("pods", one_is_left)
        [condition] = [it for it in pod["status"]["conditions"] if it["type"] == "PodScheduled"]
        assert 'persistentvolumeclaim "models" not found' in condition["message"]
        amount = {"storage": "1Gi"}
        claim = {"storageClassName": "", "accessModes": ["ReadWriteOnce"], "resources": {"requests": amount}}
        api.create(manifest("PersistentVolumeClaim", "models", {**claim, "volumeName": namespace}))
        api.create(
            manifest(
                "PersistentVolume",
                namespace,
                {
                    "capacity": amount,
                    "accessModes": ["ReadWriteOnce"],
                    "hostPath": {"path": "/models"},
                    "claimRef": {"namespace": namespace, "name": "models"},
                },
            )
        )
        runs(api, 1)
        assert rule not in judged()
    finally:
        api.delete("nodes", "claims")
        api.delete("persistentvolumes", namespace)


@pytest.fixture
def priority_class(api: Api, namespace: str) -> Iterator[str]:
    api.create(manifest("PriorityClass", namespace) | {"value": 1000})
    yield namespace
    api.delete("priorityclasses", namespace)


def test_without_its_priority_class_a_workload_has_no_pods(
    api: Api, chassis: Chassis, priority_class: str
) -> None:
    rule = "priority-class-missing"
    missing = deployment(pod={"priorityClassName": "nobody-made-this"})
    chassis.process.wait_until(lambda: rule in api.warnings(missing))
    sound = deployment(pod={"priorityClassName": priority_class})
    chassis.process.wait_until(lambda: rule not in api.warnings(sound))

    api.create(missing)
    api.wait("deployments", "api", has_condition("ReplicaFailure", says="no PriorityClass with name"))
    sound["metadata"]["name"] = "sound"
    api.create(sound)
    api.wait_for("pods", lambda pods: len(pods) == 1)


@pytest.fixture
def devices(control_plane: ControlPlane, two_nodes: None) -> Iterator[str]:
    """The DeviceClass of devices of which each of two nodes has two."""
    driver = "two.mlchassis.example"
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    made: list[tuple[str, str, JSON]] = [("DeviceClass", driver, {"selectors": [selector]})]
    for node in ("apart-a", "apart-b"):
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        each = [{"name": "gpu-0"}, {"name": "gpu-1"}]
        offer = {"driver": driver, "nodeName": node, "pool": pool, "devices": each}
        made.append(("ResourceSlice", f"{node}-two", offer))
    for kind, name, spec in made:
        control_plane.api.create(manifest(kind, name, spec))
    yield driver
    for kind, name, _ in made:
        control_plane.api.delete({"DeviceClass": "deviceclasses"}.get(kind, "resourceslices"), name)


def add_claim(api: Api, kind: str, name: str, device_class: str, count: int) -> None:
    """A ResourceClaim, or a ResourceClaimTemplate."""
    request = {"name": "gpus", "exactly": {"deviceClassName": device_class, "count": count}}
    spec: JSON = {"devices": {"requests": [request]}}
    if kind == "ResourceClaimTemplate":
        spec = {"spec": spec}
    api.create(manifest(kind, name, spec))


def claiming(item: JSON, **claim: str) -> JSON:
    """The Deployment, with a claim of devices in its pods."""
    pod = item["spec"]["template"]["spec"]
    pod["resourceClaims"] = [{"name": "gpus", **claim}]
    pod["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    return item


def test_a_claim_of_more_devices_than_a_node_has_is_never_allocated(
    api: Api, chassis: Chassis, devices: str
) -> None:
    rule = "device-claim-unmet"

    def of(name: str, count: int) -> JSON:
        add_claim(api, "ResourceClaimTemplate", name, devices, count)
        made = claiming(deployment(), resourceClaimTemplateName=name)
        made["metadata"]["name"] = name
        return made

    three, two = of("three", 3), of("two", 2)
    chassis.process.wait_until(lambda: rule in api.warnings(three))
    assert rule not in api.warnings(two)
    api.create(three)
    api.wait_for("pods", one_is_left)
    api.create(two)
    runs(api, 1, "two")


def test_no_pod_runs_where_its_node_selector_matches_no_node(
    api: Api, chassis: Chassis, namespace: str, two_nodes: None
) -> None:
    rule = "node-selector-unmatched"
    made = deployment(pod={"nodeSelector": {"disk": namespace}})
    chassis.process.wait_until(lambda: rule in api.warnings(made))
    api.create(made)
    api.wait_for("pods", one_is_left)
    api.patch("nodes", "apart-a", {"metadata": {"labels": {"disk": namespace}}})
    runs(api, 1)
    twin = {**made, "metadata": {"name": "twin"}}
    chassis.process.wait_until(lambda: rule not in api.warnings(twin))


def test_an_autoscaler_asks_for_replicas_that_the_quota_refuses(api: Api, chassis: Chassis) -> None:
    rule = "autoscaler-exceeds-room"
    quota = {"hard": {"requests.cpu": "2"}}
    api.create(manifest("ResourceQuota", "team", quota))
    autoscaler = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "api"},
        "minReplicas": 1,
        "maxReplicas": 4,
    }
    api.create(manifest("HorizontalPodAutoscaler", "api", autoscaler))
    made = deployment(resources={"requests": {"cpu": "1"}})
    chassis.process.wait_until(lambda: rule in api.warnings(made))
    api.create(made)
    runs(api, 1)

    def scaled_to(least: int, most: int) -> None:
        """Without metrics, an autoscaler keeps the replicas above its minimum."""
        change = {"spec": {"minReplicas": least, "maxReplicas": most}}
        api.patch("horizontalpodautoscalers", "api", change)

    scaled_to(4, 4)
    exceeded = has_condition("ReplicaFailure", says="exceeded quota")
    api.wait("deployments", "api", lambda it: exceeded(it) and it["status"].get("availableReplicas") == 2)
    scaled_to(1, 2)
    runs(api, 2)
    twin = {**made, "metadata": {"name": "api"}}
    api.delete("deployments", "api")
    chassis.process.wait_until(lambda: rule not in api.warnings(twin))


@pytest.fixture
def rollouts(control_plane: ControlPlane) -> Iterator[None]:
    """Argo's Rollouts, without their controller."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    spec = {
        "group": "argoproj.io",
        "scope": "Namespaced",
        "names": {"kind": "Rollout", "plural": "rollouts"},
        "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": schema}],
    }
    control_plane.api.create(manifest("CustomResourceDefinition", "rollouts.argoproj.io", spec))
    control_plane.api.wait("customresourcedefinitions", "rollouts.argoproj.io", established)
    yield
    remove(control_plane, ["customresourcedefinition/rollouts.argoproj.io"])


def test_the_workload_behind_a_budget_may_be_a_rollout(api: Api, chassis: Chassis, rollouts: None) -> None:
    rule, labels = "drain-blocked-by-pdb", {"matchLabels": {"app": "api"}}
    template = deployment()["spec"]["template"]
    spec = {"replicas": 1, "selector": labels, "template": template, "strategy": {"canary": {}}}
    budget = manifest("PodDisruptionBudget", "api", {"minAvailable": 1, "selector": labels})
    api.create(manifest("Rollout", "api", spec))
    chassis.process.wait_until(lambda: rule in api.warnings(budget))
    api.patch("rollouts", "api", {"spec": {"replicas": 2}})
    chassis.process.wait_until(lambda: rule not in api.warnings(budget))


@pytest.fixture
def pod_metrics(control_plane: ControlPlane) -> Iterator[Callable[[str, str], None]]:
    """The API of metrics-server as a custom resource; a call sets what CPU each pod of a namespace uses."""
    path = "/apis/metrics.k8s.io/v1beta1"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = manifest(
        "CustomResourceDefinition",
        "pods.metrics.k8s.io",
        {
            "group": "metrics.k8s.io",
            "scope": "Namespaced",
            "names": {"kind": "PodMetrics", "plural": "pods"},
            "versions": [
                {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
            ],
        },
        annotations={"api-approved.kubernetes.io": "unapproved, in place of metrics-server"},
    )

    def use(namespace: str, cpu: str) -> None:
        for pod in control_plane.api.items("pods", namespace):
            metrics = {
                "apiVersion": "metrics.k8s.io/v1beta1",
                "kind": "PodMetrics",
                "metadata": {key: pod["metadata"][key] for key in ("name", "labels")},
                # Those of a pod's first minute do not count.
                "timestamp": (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "window": "30s",
                "containers": [
                    {"name": each["name"], "usage": {"cpu": cpu, "memory": "1Gi"}}
                    for each in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
                ],
            }
            control_plane.api.request("POST", f"{path}/namespaces/{namespace}/pods", metrics)

    control_plane.api.create(definition)
    control_plane.api.wait("customresourcedefinitions", "pods.metrics.k8s.io", established)
    yield use
    remove(control_plane, ["customresourcedefinition/pods.metrics.k8s.io"])


def by_use(percent: int) -> JSON:
    """An autoscaler of 1 or 2 replicas by the CPU."""
    source = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}
    return manifest(
        "HorizontalPodAutoscaler",
        "api",
        {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "api"},
            "minReplicas": 1,
            "maxReplicas": 2,
            "metrics": [{"type": "Resource", "resource": source}],
        },
    )


@pytest.mark.parametrize(
    ("resources", "fixed", "says"),
    [
        ({}, {"requests": {"cpu": "500m"}}, "missing request for cpu in container main"),
        ({"limits": {"cpu": "1"}}, {"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}}, ""),
    ],
    ids=["no request", "limit"],
)
def test_an_autoscaler_adds_no_pod(
    api: Api,
    chassis: Chassis,
    namespace: str,
    pod_metrics: Callable[[str, str], None],
    resources: JSON,
    fixed: JSON,
    says: str,
) -> None:
    """Under a load of the whole limit, the controller of Kubernetes adds pods only to the corrected twin."""
    rule = "autoscaler-never-scales"
    api.create(by_use(95))
    made = deployment(resources=resources)
    twin = {**deployment(resources=fixed), "metadata": {"name": "api"}}
    chassis.process.wait_until(lambda: rule in api.warnings(made))
    assert rule not in api.warnings(twin)

    def judged(it: JSON) -> bool:
        """Whether the controller decided, knowing the metrics."""
        status = it.get("status", {})
        if says:
            return any(says in each["message"] for each in status.get("conditions", ()))
        return bool(status.get("currentMetrics")) and status["desiredReplicas"] == 1

    api.create(made)
    runs(api, 1)
    pod_metrics(namespace, "1")
    found = api.wait("horizontalpodautoscalers", "api", judged)
    active = next(it for it in found["status"]["conditions"] if it["type"] == "ScalingActive")
    expected = ("False", "FailedGetResourceMetric") if says else ("True", "ValidMetricFound")
    assert (active["status"], active["reason"]) == expected
    runs(api, 1)

    api.replace({**twin, "metadata": {"name": "api", "namespace": namespace}})
    runs(api, 1)
    pod_metrics(namespace, "1")
    runs(api, 2)


def test_an_autoscaler_counts_the_puller(
    api: Api, chassis: Chassis, namespace: str, pod_metrics: Callable[[str, str], None]
) -> None:
    """The controller needs a request of the injected sidecar too."""
    labels = {"mlchassis.dev/model-config": "true"}
    config = {"metadata": {"name": "models", "labels": labels}, "data": {"models.json": "[]"}}
    api.create({"apiVersion": "v1", "kind": "ConfigMap", **config})
    made = deployment(image="seldonio/mlserver:1.7.1", resources={"requests": {"cpu": "500m"}})
    made["spec"]["template"]["metadata"]["annotations"] = {"mlchassis.dev/model-config": "models"}
    api.create(by_use(95))
    api.create(made)
    runs(api, 1)
    [pod] = api.items("pods")
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["model-puller"]
    pod_metrics(namespace, "1")
    runs(api, 2)


@pytest.fixture
def gpu_node(control_plane: ControlPlane) -> Iterator[str]:
    """The zone of the only node with an accelerator of its kind."""
    labels = {"topology.kubernetes.io/zone": "east", "nvidia.com/gpu.present": "true"}
    control_plane.add_node("gpu-east", labels, capacity={"nvidia.com/gpu": "1"})
    control_plane.add_node("cpu-west", {"topology.kubernetes.io/zone": "west"})
    yield "east"
    for name in ("gpu-east", "cpu-west"):
        control_plane.api.delete("nodes", name)


def test_a_volume_in_another_zone_than_the_accelerators_keeps_the_pod_pending(
    api: Api, chassis: Chassis, namespace: str, gpu_node: str
) -> None:
    rule = "volume-out-of-reach"

    def with_volume(zone: str) -> JSON:
        """A Deployment with a claim that is bound to a volume of a zone."""
        name = f"{namespace}-{zone}"
        zones = [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}]
        size = {"storage": "1Gi"}
        common = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
        required = {"nodeSelectorTerms": [{"matchExpressions": zones}]}
        volume = {"csi": {"driver": "disk.example", "volumeHandle": name}, "capacity": size}
        affinity = {"nodeAffinity": {"required": required}}
        claim = {"resources": {"requests": size}, "volumeName": name}
        for kind, spec in (
            ("PersistentVolume", {**common, **volume, **affinity}),
            ("PersistentVolumeClaim", {**common, **claim}),
        ):
            api.create(manifest(kind, name, spec))
        api.wait("persistentvolumeclaims", name, lambda it: it["status"]["phase"] == "Bound")
        volumes = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]}
        made = deployment(pod=volumes, resources={"limits": {"nvidia.com/gpu": "1"}})
        made["metadata"]["name"] = zone
        made["spec"]["strategy"] = {"type": "Recreate"}
        return made

    west, east = with_volume("west"), with_volume("east")
    chassis.process.wait_until(lambda: rule in api.warnings(west))
    assert rule not in api.warnings(east)
    api.create(west)
    api.wait_for("pods", one_is_left)
    api.create(east)
    runs(api, 1, "east")


@pytest.fixture
def priorities(api: Api, namespace: str) -> Iterator[dict[str, str]]:
    """Names of PriorityClasses, each above the one before it."""
    made = {each: f"{namespace}-{each}" for each in ("low", "polite", "high")}
    for value, (each, name) in enumerate(made.items(), 1000):
        policy = "Never" if each == "polite" else "PreemptLowerPriority"
        api.create(manifest("PriorityClass", name) | {"value": value, "preemptionPolicy": policy})
    yield made
    for name in made.values():
        api.delete("priorityclasses", name)


def test_a_rollout_without_room_and_with_a_higher_priority_evicts_its_own_pods(
    api: Api, chassis: Chassis, two_nodes: None, priorities: dict[str, str]
) -> None:
    """`rollout-node-deadlock` warns of the missing room already; docs/graph.md says why no rule is about
    the priority."""

    def of(priority: str, **spec: JSON) -> JSON:
        made = apart(2, **spec)
        made["spec"]["template"]["spec"]["priorityClassName"] = priorities[priority]
        return made

    def evicted() -> int:
        events = api.items("events")
        return sum(event["reason"] == "Preempted" for event in events)

    chassis.process.wait_until(lambda: "rollout-node-deadlock" in api.warnings(of("low")))
    api.create(of("low"))
    runs(api, 2)

    def change(item: JSON) -> None:
        api.patch("deployments", "api", {"spec": item["spec"]})

    change(of("polite"))
    api.wait_for("pods", one_is_left)
    assert not evicted(), "with preemptionPolicy Never the rollout only waits"
    change(of("high"))
    runs(api, 2)
    assert evicted(), "the rollout ended because the scheduler took ready pods, in spite of maxUnavailable"
    before = evicted()
    one_by_one = {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}
    change(of("low", **one_by_one))
    runs(api, 2)
    change(of("high", **one_by_one))
    runs(api, 2)
    assert evicted() == before, "with room for the new pod, it takes nobody's"


def test_karpenters_node_pools_are_read(
    control_plane: ControlPlane,
    namespace: str,
    two_nodes: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With Karpenter's own definitions, so that the fields are those of its API."""
    file = tmp_path / "api.json"
    file.write_text(json.dumps(deployment(pod={"nodeSelector": {"disk": "nvme"}})))

    def judged() -> str:
        cli.main(["review", str(file), "--against", "-", "--kubeconfig", str(control_plane.kubeconfig)])
        return " ".join(capsys.readouterr().out.split())

    with KARPENTER.installed(control_plane):
        pool: JSON = manifest(
            "NodePool",
            "general",
            {
                "template": {
                    "spec": {
                        "nodeClassRef": {"group": "example.com", "kind": "NodeClass", "name": "default"},
                        "requirements": [{"key": "disk", "operator": "In", "values": ["ssd"]}],
                    }
                }
            },
        )
        control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(pool))
        assert "general excludes these values of disk" in judged()
        pool["spec"]["template"]["spec"]["requirements"][0]["values"].append("nvme")
        control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(pool))
        assert "node-selector-unmatched" not in judged()
