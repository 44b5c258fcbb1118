"""A small cluster to scan: what it serves, and objects to put into it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from policies.kube.json import Json
from tests.webhook.kube.apiserver import FakeApiServer, running

RULE = "liveness-external-dependency"
DEPLOYMENTS = "/apis/apps/v1/namespaces/ml/deployments"
PODS = "/api/v1/namespaces/ml/pods"
MUTATOR = "/api/v1/namespaces/mlchassis-system/configmaps"
REPORTS = "/apis/wgpolicyk8s.io/v1alpha2/namespaces/ml/policyreports"
SERVED = {
    "/api/v1": {"Pod": "pods", "ConfigMap": "configmaps"},
    "/apis/apps/v1": {"Deployment": "deployments", "ReplicaSet": "replicasets"},
    "/apis/batch/v1": {"Job": "jobs", "CronJob": "cronjobs"},
    "/apis/serving.kserve.io/v1beta1": {"InferenceService": "inferenceservices"},
    "/apis/serving.kserve.io/v1alpha1": {"ServingRuntime": "servingruntimes"},
    "/apis/wgpolicyk8s.io/v1alpha2": {
        "PolicyReport": "policyreports",
        "ClusterPolicyReport": "clusterpolicyreports",
    },
}
HAZARD: Json = {
    "name": "main",
    "image": "registry.example/recommender:7",
    "livenessProbe": {"exec": {"command": ["curl", "http://payments/health"]}, "timeoutSeconds": 5},
}
SERVER: Json = {
    "name": "main",
    "image": "vllm/vllm-openai-cpu:v0.11.0",  # needs no GPU
    "ports": [{"containerPort": 8000}],
}
"""A server that gets probes."""


class Answer(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def found(self) -> list[str]:
        """Kind and name of each reviewed object, in order."""
        return [f"{each['kind']} {each['name']}" for each in self.json]


Chassis = Callable[..., Answer]
InCluster = Callable[..., Awaitable[Answer]]


@asynccontextmanager
async def cluster() -> AsyncIterator[FakeApiServer]:
    """An API server that serves a few kinds and has the namespace `ml`."""
    async with running() as server:
        serve(server, SERVED)
        await server.put("/api/v1/namespaces", {"metadata": {"name": "ml"}})
        yield server


def serve(fake: FakeApiServer, served: dict[str, dict[str, str]]) -> None:
    """Discovery, as the API server answers it."""
    groups: dict[str, list[Json]] = {}
    for path, kinds in served.items():
        resources = [
            {"kind": kind, "name": name, "namespaced": not kind.startswith("Cluster"), "verbs": ["list"]}
            for kind, name in kinds.items()
        ]
        status = {"kind": "Pod", "name": "pods/status", "namespaced": True, "verbs": ["get"]}
        fake.objects[path] = {"metadata": {}, "resources": [status, *resources]}
        group, _, version = path.removeprefix("/apis/").partition("/")
        groups.setdefault(group, []).append({"groupVersion": f"{group}/{version}"})
    for group, versions in groups.items():
        fake.objects[f"/apis/{group}"] = {
            "metadata": {},
            "preferredVersion": versions[0],
            "versions": versions,
        }


def named(name: str, spec: Json | None = None, **metadata: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", **metadata},
        "spec": spec or {},
    }


def deployment(name: str, container: Json = HAZARD, **metadata: Any) -> Json:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return named(name, {"selector": {"matchLabels": labels}, "template": template}, **metadata)


def pod(name: str, container: Json = HAZARD, **metadata: Any) -> Json:
    return named(name, {"containers": [container]}, **metadata)


def owned_by(api_version: str, kind: str, name: str = "o", uid: str = "u") -> list[Json]:
    return [{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}]


def serialized(*objects: Json) -> str:
    """A List of objects, as the text of a file."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
