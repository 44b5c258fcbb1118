"""What a replica keeps of clusters of three sizes: what it lists at its start, what of that stays, and what a
review costs then.

The lists are answers as an API server gives them, with images, conditions and managedFields. Every size has
its own process. CPU is what the process used, which a busy machine bends least.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import run

import orjson

from benchmarks._reviews import Workloads
from policies.core.resources import Resource
from policies.kube.json import Json
from webhook.admission.engine import decide
from webhook.admission.envelope import parse
from webhook.admission.messages import respond
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.kube.api import LIST_PAGE
from webhook.kube.caches import ClusterCache

SIZES = (1, 10, 100)
COUNTS = {
    Resource.NODES: 100,
    Resource.SERVICES: 200,
    Resource.WORKLOADS: 300,
    Resource.CLAIMS: 200,
    Resource.AUTOSCALERS: 50,
    Resource.BUDGETS: 50,
    Resource.QUOTAS: 20,
    Resource.LIMIT_RANGES: 20,
    Resource.NAMESPACES: 20,
    Resource.MODEL_CONFIGS: 10,
}
"""In the smallest cluster; the others have 10 and 100 times as many."""
REVIEWS = 200
FIELDS: Json = {f"f:field-{number}": {".": {}, "f:value": {}} for number in range(20)}


def _metadata(name: str, namespace: str = "") -> Json:
    managed = {
        "manager": "kubectl",
        "operation": "Update",
        "time": "2026-01-05T09:30:00Z",
        "fieldsV1": FIELDS,
    }
    metadata = {
        "name": name,
        "uid": f"{abs(hash(name)):032x}",
        "resourceVersion": "123456",
        "creationTimestamp": "2026-01-05T09:30:00Z",
        "labels": {"app": name, "team": f"team-{len(name)}", "app.kubernetes.io/managed-by": "Helm"},
        "managedFields": [managed],
    }
    return metadata | ({"namespace": namespace} if namespace else {})


def _node(number: int) -> Json:
    images = [
        {"names": [f"registry.example/team/image-{each}@sha256:{each:064x}"], "sizeBytes": 10**9}
        for each in range(50)
    ]
    gpus = {"nvidia.com/gpu": "8"} if number % 5 == 0 else {}
    metadata = _metadata(f"node-{number}")
    metadata["labels"] |= {
        "kubernetes.io/hostname": f"node-{number}",
        "topology.kubernetes.io/zone": f"zone-{number % 3}",
        **({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"} if gpus else {}),
    }
    return {
        "metadata": metadata,
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}] if gpus else []},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", **gpus},
            "nodeInfo": {"kubeletVersion": "v1.36.1", "osImage": "Debian"},
            "conditions": [{"type": f"Condition{each}", "status": "False"} for each in range(5)],
            "images": images,
        },
    }


def made(resource: Resource, number: int) -> Json:
    """An object of a resource, about as large as they are in clusters."""
    namespace, app = f"team-{number % 100}", f"app-{number}"
    if resource is Resource.NODES:
        return _node(number)
    if resource is Resource.NAMESPACES:
        return {"metadata": _metadata(namespace)}
    specs: dict[Resource, Json] = {
        Resource.SERVICES: {
            "selector": {"app": app},
            "clusterIP": f"10.{number >> 8 & 255}.{number & 255}.1",
        },
        Resource.WORKLOADS: {
            "replicas": 3,
            "selector": {"matchLabels": {"app": app}},
            "template": {
                "metadata": {"labels": {"app": app}},
                "spec": {"containers": [{"name": "a", "env": [{"name": "A", "value": "x" * 2000}]}]},
            },
        },
        Resource.CLAIMS: {"accessModes": ["ReadWriteOnce"], "volumeName": f"pvc-{number}"},
        Resource.AUTOSCALERS: {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": app},
            "minReplicas": 1,
            "maxReplicas": 5,
        },
        Resource.BUDGETS: {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": 1},
        Resource.QUOTAS: {"hard": {"pods": "50", "requests.cpu": "400", "requests.nvidia.com/gpu": "16"}},
        Resource.LIMIT_RANGES: {"limits": [{"type": "Container", "default": {"memory": "4Gi", "cpu": "2"}}]},
        Resource.MODEL_CONFIGS: {},
    }
    found: Json = {"metadata": _metadata(app, namespace), "spec": specs[resource]}
    if resource is Resource.MODEL_CONFIGS:
        found["metadata"]["labels"]["mlchassis.dev/model-config"] = "true"
        found["data"] = {"models.json": "[]" + " " * 2000}
    return found


def _pages(resource: Resource, count: int) -> Iterator[bytes]:
    for first in range(0, count, LIST_PAGE):
        items = [made(resource, number) for number in range(first, min(first + LIST_PAGE, count))]
        yield orjson.dumps({"metadata": {"resourceVersion": "1"}, "items": items})


def _resident() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _one(size: int) -> None:
    cache = ClusterCache()
    config = load({})
    listed, cpu, before = 0, 0.0, _resident()
    done: set[Resource] = set()
    for _, _, store in cache.sources:
        store.begin()
        if (
            store.resource in COUNTS and store.resource not in done
        ):  # Deployments represent all kinds of workloads
            for page in _pages(store.resource, COUNTS[store.resource] * size):
                listed += len(page)
                began = time.process_time()
                for item in orjson.loads(page)["items"]:
                    store.put(item)
                cpu += time.process_time() - began
        done.add(store.resource)
        store.commit()
    kept = _resident() - before
    costs = []
    for name, reviews in (
        ("pod", Workloads(1).pods(REVIEWS, 0).measured),
        ("Deployment", Workloads(1).deployments(REVIEWS // 2, 0).measured),
    ):
        requests = [parse(review) for review in reviews]
        decide(Review(requests[0], config, cache))  # builds the indices
        began = time.process_time()
        for request in requests:
            respond(decide(Review(request, config, cache)))
        costs.append(f"{name} {(time.process_time() - began) / len(requests) * 1e6:.0f}")
    services = next(store for _, _, store in cache.sources if store.resource is Resource.SERVICES)
    request = parse(Workloads(2).deployments(1, 0).measured[0])
    spent = 0.0
    for number in range(REVIEWS):
        changed = made(Resource.SERVICES, number)
        changed["spec"]["clusterIP"] = f"10.255.0.{number}"
        began = time.process_time()
        services.put(changed)
        decide(Review(request, config, cache))
        spent += time.process_time() - began
    nodes, found = COUNTS[Resource.NODES] * size, COUNTS[Resource.SERVICES] * size
    print(
        f"| {nodes:,} | {found:,} | {listed / 1e6:,.0f} | {cpu:.1f} | {kept:.0f} | "
        f"{' | '.join(each.split()[1] for each in costs)} | {spent / REVIEWS * 1e6:.0f} |",
        flush=True,
    )


def main() -> None:
    if len(sys.argv) > 1:
        _one(int(sys.argv[1]))
        return
    print(
        "| nodes | Services | listed, MB | CPU s | kept, MB | pod, µs | Deployment, µs | after a change, µs |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for size in SIZES:
        run([sys.executable, "-m", "benchmarks.scale", str(size)], check=True)


if __name__ == "__main__":
    main()
