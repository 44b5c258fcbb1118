"""Models from S3 in a real MLServer, by the sidecar that the webhook injects."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.error import URLError

from tests.e2e.api import JSON, ApiError
from tests.e2e.node.images import MLSERVER
from tests.e2e.node.init import ADDRESS
from tests.manifests import manifest
from tests.puller.fakes import FaultStore
from tests.realnode.arms import Arm
from tests.realnode.experiments.model_api import WATCHED, Figures

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


@contextmanager
def s3() -> Iterator[FaultStore]:
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
    try:
        yield made
    finally:
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

    def refusal(self, *models: JSON) -> str:
        """Edit the ConfigMap; the message if it is refused, else the empty string."""
        data = {"data": {"models.json": json.dumps(models)}}
        try:
            self.arm.node.api.patch("configmaps", "models", data, self.arm.namespace)
        except ApiError as error:
            return error.message
        return ""

    def until(self, what: str, model: str, value: float | None) -> None:
        """Wait until a model answers this, and note how long it took."""
        self.times[what] = self.arm.wait(what, lambda: self.predict(model) == value)

    @property
    def pod(self) -> JSON:
        (found,) = (it for it in self.arm.pods("shop") if "deletionTimestamp" not in it["metadata"])
        return found

    def restarts(self) -> dict[str, int]:
        """How often each container was started again."""
        status = self.pod["status"]
        found = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
        return {it["name"]: it["restartCount"] for it in found}


def deployment() -> JSON:
    """MLServer as the strictest namespaces ask for it, without the puller."""
    container = {
        "name": "mlserver",
        "image": MLSERVER,
        "command": ["mlserver", "start", "/mnt/models"],
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
    return manifest("Deployment", "shop", spec)


def open_shop(arm: Arm, store: FaultStore, workload: JSON) -> Shop:
    """Create everything without waiting."""
    service: dict[str, Any] = {"selector": {"app": "shop"}, "ports": [{"port": 80, "targetPort": "http"}]}
    labels = {"mlchassis.dev/model-config": "true"}
    models = {"models.json": json.dumps([entry("double", 2)])}
    arm.create(
        manifest("Secret", "s3") | {"stringData": store.env},
        manifest("ConfigMap", "models", labels=labels) | {"data": models},
        manifest("Service", "shop", service),
        workload,
    )
    address = arm.node.api.get("services", "shop", arm.namespace)["spec"]["clusterIP"]
    return Shop(arm, address)


def _with_sidecar(arm: Arm) -> JSON:
    """The Deployment, its pods written as the webhook makes them in the other arm."""
    item, other = deployment(), arm.namespace.removesuffix("-without") + "-with"
    arm.wait("the models of the other arm", lambda: arm.node.api.exists("configmaps", "models", other))
    template = item["spec"]["template"]
    template["spec"]["automountServiceAccountToken"] = False
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = {"name": "shop", **template["metadata"]}
    template["spec"] = arm.node.api.create(pod, other, dry_run=True).body["spec"]
    return item


def bad_entry(arm: Arm) -> Figures:
    """A model is added by an entry that the puller can't use."""
    bad = entry("triple", 3)
    bad["modelSpec"]["storageUri"] = "ftp://bucket/triple-3.tar.gz"
    with s3() as store:
        shop = open_shop(arm, store, deployment() if arm.webhook else _with_sidecar(arm))
        shop.until("the first model", "double", 14)
        reaction = shop.refusal(entry("double", 2), bad)
        if not reaction:
            time.sleep(WATCHED)
        found = shop.predict("triple")
        others = shop.predict("double") == 14
        shop.configure(entry("double", 2), entry("triple", 3))
        shop.until("corrected", "triple", 21)
    reaction = "refuses" if "model-config-invalid" in reaction else ""
    return {"reaction": reaction, "loaded": found is not None, "others": others, **shop.times}
