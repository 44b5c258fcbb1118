"""Objects, policies and clusters of any size, to see how the cost of a review grows with one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from policies.core.facts import Cluster, NoCluster
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json
from tests.manifests import manifest
from webhook.admission.envelope import Request
from webhook.kube.caches import ClusterCache


@dataclass(frozen=True)
class Grown:
    """A review in which there are many of one thing."""

    request: Request
    policy: dict[str, str]
    cluster: Cluster

    @classmethod
    def of(cls, obj: Json, policy: dict[str, str] | None = None, cluster: Cluster | None = None) -> Grown:
        request = Request("1", kind_of(obj), "CREATE", "ml", object=obj, username="ada")
        return cls(request, policy or {}, cluster or NoCluster())


def container(number: int, variables: int = 2) -> Json:
    return {
        "name": f"c{number}",
        "image": f"registry.example/team/server-{number}:1",
        "args": ["--port", "8080", f"--seed={number}"],
        "ports": [{"name": f"p{number}", "containerPort": 8000 + number}],
        "env": [{"name": f"V{n}", "value": f"{number}-{n}"} for n in range(variables)],
        "resources": {"limits": {"memory": "1Gi"}},
        "readinessProbe": {"httpGet": {"path": "/livez", "port": 8000 + number}},
    }


def pod(containers: int = 1, variables: int = 2, annotations: Json | None = None) -> Json:
    return manifest(
        "Pod",
        "p",
        {"containers": [container(number, variables) for number in range(containers)]},
        namespace="ml",
        labels={"app": "a"},
        annotations=annotations or {},
    )


def _deployment(spec: Json) -> Json:
    return manifest(
        "Deployment",
        "d",
        {"replicas": 3, "template": {"metadata": {"labels": {"app": "a"}}, "spec": spec}},
        namespace="ml",
        labels={"app": "a"},
    )


def _job_set(templates: int) -> Json:
    job = {"template": {"spec": {"template": {"spec": {**pod()["spec"], "restartPolicy": "Never"}}}}}
    return manifest(
        "JobSet",
        "s",
        {"replicatedJobs": [{"name": f"j{n}", **job} for n in range(templates)]},
        namespace="ml",
    )


def _overrides(count: int) -> dict[str, str]:
    each = "- {{objectSelector: {{matchLabels: {{app: a{}}}}}, profile: strict}}"
    return {"webhook.yaml": "\n".join(["overrides:", *(each.format(n) for n in range(count))])}


def filled(objects: Iterable[tuple[str, Json]]) -> ClusterCache:
    """A cluster with these objects, each with its kind, as the watches of a running webhook show it."""
    cluster = ClusterCache()
    stores = {store.kind: store for _, _, store in cluster.sources}
    for _, _, store in cluster.sources:
        store.begin()
    for kind, obj in objects:
        stores[kind].put(obj)
    stores["Namespace"].put({"metadata": {"name": "ml", "labels": {}}})
    for _, _, store in cluster.sources:
        store.commit()
    return cluster


def world(nodes: int, services: int) -> ClusterCache:
    """A cluster with so many nodes and Services."""

    def objects() -> Iterator[tuple[str, Json]]:
        for n in range(nodes):
            yield "Node", node(n)
        for n in range(services):
            metadata = {"name": f"s{n}", "namespace": "ml"}
            spec = {"selector": {"app": f"a{n}"}, "clusterIP": f"10.0.{n // 256}.{n % 256}"}
            yield "Service", {"metadata": metadata, "spec": spec}

    return filled(objects())


RELATED: Final = 10_000
"""Workloads, each with two Services."""
ROW: Final = 5
"""Workloads of which each waits for the one before it."""


def related(workloads: int) -> Grown:
    """The last Deployment of a row, in a cluster with so many workloads and a tenth as many nodes."""

    def objects() -> Iterator[tuple[str, Json]]:
        for number in range(workloads):
            yield "Deployment", waiting(number)
            for name in (f"a{number}", f"a{number}-metrics"):
                yield "Service", service(name, f"a{number}")
        for number in range(workloads // 10):
            yield "Node", node(number)
        if workloads:
            yield "ResourceQuota", _bounded("quota", {"hard": {"pods": 10**6, "requests.cpu": 10**6}})
            default = {"type": "Container", "default": {"cpu": "1"}, "max": {"memory": "64Gi"}}
            yield "LimitRange", _bounded("sizes", {"limits": [default]})

    return Grown.of(waiting(max(workloads, ROW) - 1), cluster=filled(objects()))


DEVICES: Final = 10_000
_OF_A_NODE: Final = 8


def claiming(devices: int) -> Grown:
    """A Deployment with a claim of DRA and a node selector that no node matches, in a cluster with so many
    devices on the nodes, a queue, a NodePool and PriorityClasses."""

    def objects() -> Iterator[tuple[str, Json]]:
        for number in range(devices // _OF_A_NODE):
            yield "ResourceSlice", resource_slice(number)
            yield "Node", node(number)
        if devices:
            selector = {"cel": {"expression": 'device.driver == "gpu.example"'}}
            yield "DeviceClass", {"metadata": {"name": "gpu.example"}, "spec": {"selectors": [selector]}}
            request = {"name": "gpus", "exactly": {"deviceClassName": "gpu.example", "count": _OF_A_NODE}}
            yield "ResourceClaimTemplate", _bounded("gpus", {"spec": {"devices": {"requests": [request]}}})
            labels = {"metadata": {"labels": {"team": "ml"}}}
            yield "NodePool", {"metadata": {"name": "general"}, "spec": {"template": labels}}
            yield "PriorityClass", {"metadata": {"name": "ml-serving"}}
            target = {"kind": "Deployment", "name": "d0"}
            scaled = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 50}
            yield "HorizontalPodAutoscaler", _bounded("d0", scaled)

    deployment = waiting(0)
    deployment["spec"]["template"]["spec"] |= {
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "gpus"}],
        "nodeSelector": {"team": "ml"},
        "priorityClassName": "ml-serving",
    }
    return Grown.of(deployment, cluster=filled(objects()))


def resource_slice(number: int, generation: int = 1) -> Json:
    """The devices of a node, with attributes as a GPU driver publishes them."""
    attributes = {f"attribute-{n}": {"string": f"value-{number}-{n}"} for n in range(10)}
    capacity = {"memory": {"value": "80Gi"}}
    devices = [
        {"name": f"gpu-{n}", "attributes": attributes, "capacity": capacity} for n in range(_OF_A_NODE)
    ]
    pool = {"name": f"n{number}", "generation": generation, "resourceSliceCount": 1}
    return {
        "metadata": {"name": f"n{number}-gpu.example"},
        "spec": {"driver": "gpu.example", "nodeName": f"n{number}", "pool": pool, "devices": devices},
    }


def _bounded(name: str, spec: Json) -> Json:
    return {"metadata": {"name": name, "namespace": "ml"}, "spec": spec}


def service(name: str, app: str) -> Json:
    """A Service that sends to a port by its name."""
    spec = {"selector": {"app": app}, "ports": [{"port": 80, "targetPort": "http"}]}
    return {"metadata": {"name": name, "namespace": "ml"}, "spec": spec}


def waiting(number: int) -> Json:
    """A Deployment of a row, its pods on different nodes."""
    labels = {"app": f"a{number}"}
    wait = {"name": "wait", "command": ["sh", "-c", f"until nc -z a{number - 1} 80; do sleep 2; done"]}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    spec = {
        "initContainers": [wait] if number % ROW else [],
        "containers": [{"name": "api", "image": "a", "ports": [{"name": "http", "containerPort": 80}]}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    return manifest(
        "Deployment",
        f"d{number}",
        {"replicas": 3, "selector": {"matchLabels": labels}, "template": template},
        namespace="ml",
    )


def node(number: int, **spec: object) -> Json:
    gpus = {"nvidia.com/gpu": "8"} if number % 50 == 0 else {}
    return {
        "metadata": {"name": f"n{number}", "labels": {"kubernetes.io/os": "linux"}},
        "spec": spec,
        "status": {"allocatable": {"cpu": "8", **gpus}, "nodeInfo": {"kubeletVersion": "v1.34.0"}},
    }


def _node_pool(number: int) -> Json:
    requirements = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"]},
        {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
        {
            "key": "node.kubernetes.io/instance-type",
            "operator": "In",
            "values": ["p5.48xlarge", "g6.12xlarge"],
        },
    ]
    taints = [{"key": "nvidia.com/gpu", "effect": "NoSchedule", "value": "true"}]
    spec = {"requirements": requirements, "taints": taints}
    template = {"metadata": {"labels": {"team": f"t{number}"}}, "spec": spec}
    return {"metadata": {"name": f"p{number}"}, "spec": {"template": template}}


def _cohort(number: int) -> Json:
    quota = {"name": "nvidia.com/gpu", "nominalQuota": "8"}
    flavors = [{"name": name, "resources": [quota]} for name in ("h100", "a100", "l4")]
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]
    spec = {"parentName": f"c{number // 10}", "resourceGroups": groups}
    return {"metadata": {"name": f"c{number}"}, "spec": spec}


def _claim_template(number: int) -> Json:
    selector = {"cel": {"expression": "device.attributes['gpu.example'].productName == 'H100'"}}
    exactly = {"deviceClassName": "gpu.example", "count": _OF_A_NODE, "selectors": [selector]}
    return _bounded(f"t{number}", {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}})


KEPT: dict[str, Callable[[int], Json]] = {
    "Deployment": waiting,
    "Service": lambda n: service(f"s{n}", f"a{n}"),
    "NodePool": _node_pool,
    "Cohort": _cohort,
    "ResourceClaimTemplate": _claim_template,
    "ResourceSlice": resource_slice,
    "PriorityClass": lambda n: {"metadata": {"name": f"c{n}"}, "value": n},
}
"""Objects as watch caches get them, by kind."""


DIMENSIONS: dict[str, Callable[[int], Grown]] = {
    "containers of a pod": lambda n: Grown.of(pod(n)),
    "containers of a Deployment": lambda n: Grown.of(_deployment(pod(n)["spec"])),
    "variables of a container": lambda n: Grown.of(pod(1, n)),
    "pod templates of a JobSet": lambda n: Grown.of(_job_set(n)),
    "annotations of 1 KB": lambda n: Grown.of(
        pod(annotations={f"notes.example/{k}": "x" * 1000 for k in range(n)})
    ),
    "overrides by label": lambda n: Grown.of(pod(), _overrides(n)),
    "nodes and Services": lambda n: Grown.of(_deployment(pod()["spec"]), None, world(n, n)),
}
"""What there may be many of, and the review with so many."""

MIN, MAX = 100, 1000
