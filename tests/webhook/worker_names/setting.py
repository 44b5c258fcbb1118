"""The namer of /name in a test: the API server it asks over real HTTP, and the policy in force."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import jsonpatch
from prometheus_client import CollectorRegistry

from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, text
from tests.webhook.kube.apiserver import FakeApiServer
from webhook.admission.answer import Response, Status
from webhook.admission.configuration import Config
from webhook.admission.envelope import Request
from webhook.config.load import load
from webhook.kube.api import ApiServer
from webhook.worker_names.cluster import LiveWorkers
from webhook.worker_names.endpoint import NameMetrics, Namer

PODS = "/api/v1/namespaces/ml/pods"
OWN = "mlchassis-system"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{OWN}/leases"
EARLIER_LEASES = "/apis/coordination.k8s.io/v1/namespaces/ml/leases"
EVENTS = "/api/v1/namespaces/ml/events"
CLUSTERS = "/apis/ray.io/v1/namespaces/ml/rayclusters"
PATIENCE = 60.0


class Setting:
    """A namer, the API server it asks, and the policy in force."""

    def __init__(self, fake: FakeApiServer, api: ApiServer, kind: type[LiveWorkers] = LiveWorkers) -> None:
        self.fake, self.api = fake, api
        self.workers = kind(api, OWN)
        self.registry = CollectorRegistry()
        self.policy = Config()
        self.namer = Namer(
            self.workers, lambda: self.policy, NameMetrics(self.registry), identity="webhook-0"
        )

    def configure(self, **files: str) -> None:
        self.policy = load({f"{key.replace('_', '-')}.yaml": value for key, value in files.items()})

    async def cluster(self, replicas: int, uid: str = "uid-1", **spec: Any) -> None:
        group = {"groupName": "small", "replicas": replicas, **spec}
        await self.fake.put(
            CLUSTERS, {"metadata": {"name": "demo", "uid": uid}, "spec": {"workerGroupSpecs": [group]}}
        )

    async def ask(self, pod: Json | None = None, patience: float = PATIENCE, **fields: Any) -> Response:
        request = Request(
            "uid",
            GroupKind("", "Pod"),
            "CREATE",
            "ml",
            object=pod or worker(),
            **{"dry_run": False, **fields},
        )
        return await self.namer.review(request, asyncio.get_running_loop().time() + patience)

    async def refused(self, pod: Json | None = None, **fields: Any) -> Status:
        """Ask for a pod that is refused."""
        response = await self.ask(pod, **fields)
        assert response.status is not None
        assert response.patch == ()
        return response.status

    async def create(self, pod: Json | None = None) -> str:
        """Ask, and create the pod as the API server would."""
        pod = pod or worker()
        response = await self.ask(pod)
        assert response.allowed, response.status
        named: Json = jsonpatch.apply_patch(pod, response.patch)
        await self.fake.put(PODS, named)
        return text(named, "metadata", "name")

    def serve(self, api_version: str, plural: str, kind: str, *, namespaced: bool = True, **spec: int) -> str:
        """Let the API server serve a kind with its scale, and with `spec` the scale of `crunch`: its path."""
        served = [
            {"name": name, "kind": each, "namespaced": namespaced}
            for name, each in ((plural, kind), (f"{plural}/scale", "Scale"))
        ]
        self.fake.objects[f"/apis/{api_version}"] = {"metadata": {"name": ""}, "resources": served}
        place = "namespaces/ml/" if namespaced else ""
        path = f"/apis/{api_version}/{place}{plural}/crunch/scale"
        if spec:
            self.fake.objects[path] = {"metadata": {"name": "crunch", "uid": "uid-9"}, "spec": spec}
        return path

    def leases(self) -> list[Json]:
        return [item for path, item in self.fake.objects.items() if path.startswith(LEASES)]

    async def events(self) -> list[Json]:
        await self.namer.close()
        return [item for path, item in self.fake.objects.items() if path.startswith(EVENTS)]

    def count(self, metric: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"chassis_worker_names_{metric}", labels) or 0


def worker(labels: Mapping[str, str] | None = None, **metadata: Any) -> Json:
    ray = {"is-ray-node": "yes", "cluster": "demo", "group": "small", "node-type": "worker"}
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "demo", "uid": "uid-1"}
    made = {
        "generateName": "demo-small-worker-",
        "labels": {f"ray.io/{key}": value for key, value in ray.items()} | {**(labels or {})},
        "ownerReferences": [{**owner, "controller": True}],
    }
    spec = {"containers": [{"name": "ray-worker", "image": "ray"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made | metadata, "spec": spec}


def labelled(api_version: str, kind: str) -> Json:
    """A pod of another controller."""
    owner = {"apiVersion": api_version, "kind": kind, "name": "crunch", "uid": "uid-9", "controller": True}
    pod = worker(ownerReferences=[owner])
    pod["metadata"]["labels"] = {"mlchassis.dev/worker-group": "w"}
    return pod
