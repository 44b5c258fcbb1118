"""The puller on a node: a real MLServer in a pod, the sidecar that the webhook injects, models in S3."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import tarfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.error import URLError

import pytest

from tests.e2e.api import JSON
from tests.e2e.node.cluster import RealNode
from tests.e2e.node.images import MLSERVER
from tests.e2e.node.init import ADDRESS
from tests.e2e.node.webhook import Webhook
from tests.puller.fakes import FaultStore
from tests.realnode import evidence
from tests.realnode.arms import Arm
from tests.realnode.experiments.disruption import evict

pytestmark = pytest.mark.realnode
RUNTIME = """\
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Times(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload):
        x = NumpyCodec.decode_input(payload.inputs[0])
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", x * FACTOR)])
"""


def archive(name: str, factor: int) -> bytes:
    """A model that multiplies, as a tar archive."""
    module = f"{name}_{factor}"
    files = {
        "model-settings.json": json.dumps({"name": name, "implementation": f"{module}.Times"}),
        f"{module}.py": RUNTIME.replace("FACTOR", str(factor)),
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


@pytest.fixture
def store() -> Iterator[FaultStore]:
    """S3 on the node, with models in it."""
    objects = {
        f"{name}-{factor}.tar.gz": archive(name, factor)
        for name, factor in (("double", 2), ("double", 20), ("triple", 3))
    }
    made = FaultStore(objects=objects)
    made.host = ADDRESS
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="s3", daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(made.start(), loop).result(30)
    yield made
    asyncio.run_coroutine_threadsafe(made.stop(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def entry(name: str, factor: int) -> JSON:
    """An element of models.json."""
    uri = f"s3://bucket/{name}-{factor}.tar.gz"
    return {"modelName": name, "modelSpec": {"storageUri": uri, "framework": "custom", "memory": "16Mi"}}


@dataclass
class Shop:
    """MLServer behind its Service, and its models."""

    arm: Arm
    address: str
    times: dict[str, float] = field(default_factory=dict)

    def predict(self, model: str, address: str = "") -> float | None:
        """What a model makes of 7, through the Service unless an address is given; None without an answer."""
        tensor = {"name": "x", "shape": [1, 1], "datatype": "FP64", "data": [7.0]}
        request = urllib.request.Request(
            f"http://{address or self.address}/v2/models/{model}/infer",
            json.dumps({"inputs": [tensor]}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return float(json.load(response)["outputs"][0]["data"][0])
        except (URLError, ConnectionError, TimeoutError, json.JSONDecodeError):
            return None

    def configure(self, *models: JSON) -> None:
        """Edit the ConfigMap, as a person does."""
        data = {"data": {"models.json": json.dumps(models)}}
        self.arm.kubectl("patch", "configmap", "models", "--type=merge", "-p", json.dumps(data))

    def until(self, what: str, model: str, value: float | None) -> None:
        """Wait until a model answers this, and note how long it took."""
        self.times[what] = self.arm.wait(what, lambda: self.predict(model) == value)

    @property
    def pod(self) -> JSON:
        (found,) = (it for it in self.arm.pods("shop") if "deletionTimestamp" not in it["metadata"])
        return found

    def restarts(self) -> dict[str, int]:
        """How often each container was started anew."""
        status = self.pod["status"]
        found = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
        return {it["name"]: it["restartCount"] for it in found}


def deployment() -> JSON:
    """MLServer as the strictest namespaces ask for it; nothing of the puller."""
    container = {
        "name": "mlserver",
        "image": MLSERVER,
        "args": ["start", "/mnt/models"],
        "env": [{"name": "MLSERVER_PARALLEL_WORKERS", "value": "0"}],
        "ports": [{"name": "http", "containerPort": 8080}, {"name": "grpc", "containerPort": 8081}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "fsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    annotations = {"mlchassis.dev/model-config": "models", "mlchassis.dev/model-credentials": "s3"}
    template = {
        "metadata": {"labels": {"app": "shop"}, "annotations": annotations},
        "spec": {"securityContext": security, "containers": [container]},
    }
    spec = {"selector": {"matchLabels": {"app": "shop"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shop"}, "spec": spec}


@pytest.fixture
def shop(node: RealNode, webhook: Webhook, namespace: str, store: FaultStore) -> Shop:
    """Everything there, nothing waited for."""
    restricted = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    node.api.patch("namespaces", namespace, restricted)
    arm = Arm(node, namespace, webhook=True)
    service: dict[str, Any] = {"selector": {"app": "shop"}, "ports": [{"port": 80, "targetPort": "http"}]}
    labels = {"mlchassis.dev/model-config": "true"}
    models = {"models.json": json.dumps([entry("double", 2)])}
    arm.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}, "stringData": store.env},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "models", "labels": labels}}
        | {"data": models},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "shop"}, "spec": service},
        deployment(),
    )
    address = node.api.get("services", "shop", namespace)["spec"]["clusterIP"]
    return Shop(arm, address)


def test_models_follow_their_config_map_through_every_failure(shop: Shop) -> None:
    shop.until("the first model, from nothing", "double", 14)
    first = shop.pod

    shop.configure(entry("double", 20))
    shop.until("another version of a model", "double", 140)
    shop.configure(entry("double", 20), entry("triple", 3))
    shop.until("one more model", "triple", 21)
    shop.configure(entry("triple", 3))
    shop.until("a model removed", "double", None)
    assert shop.predict("triple") == 21, "the others are let alone"

    before = shop.restarts()
    sidecar = next(name for name in before if "puller" in name)
    assert shop.arm.node.signal(signal.SIGKILL, first, "chassis-puller")
    direct = f"{first['status']['podIP']}:8080"  # a pod of which one container is not running is not ready
    lost = 0
    began = time.monotonic()
    while shop.restarts()[sidecar] == before[sidecar]:
        lost += shop.predict("triple", direct) != 21
        assert time.monotonic() - began < 120
    assert lost == 0, "the server serves on while its sidecar is started anew"
    shop.configure(entry("triple", 3), entry("double", 2))
    shop.until("an edit, the sidecar having been killed", "double", 14)

    assert shop.arm.node.signal(signal.SIGKILL, first, "mlserver")
    shop.arm.wait("the server down", lambda: shop.predict("double") is None)
    shop.until("all models, the server having been killed", "double", 14)
    shop.arm.wait("both", lambda: shop.predict("triple") == 21)
    assert shop.pod["metadata"]["uid"] == first["metadata"]["uid"]

    began = time.monotonic()
    assert evict(shop.arm, first["metadata"]["name"]) < 300
    gone = first["metadata"]["uid"]
    shop.arm.wait(
        "another pod", lambda: [it["metadata"]["uid"] != gone for it in shop.arm.pods("shop")] == [True]
    )
    shop.arm.wait("both", lambda: shop.predict("double") == 14 and shop.predict("triple") == 21)
    shop.times["all models from another pod, the first having been evicted"] = time.monotonic() - began
    evidence.keep("puller", dict(shop.times))
