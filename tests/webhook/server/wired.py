"""The endpoints of a process over the real engine, in a server over a real socket."""

from __future__ import annotations

import aiohttp
import orjson

from policies.core.facts import NoCluster
from policies.kube.json import Json
from tests.manifests import manifest
from webhook.config.source import LivePolicy
from webhook.server import endpoints
from webhook.server.admission_server import AdmissionServer, Readiness, listen
from webhook.server.connections import FastPath
from webhook.server.metrics import Metrics
from webhook.server.shared_memory import SharedRecords

POD: Json = manifest(
    "Pod",
    "vllm",
    {
        "restartPolicy": "Always",
        "containers": [
            {"name": "vllm", "image": "vllm/vllm-openai:v0.8.0", "ports": [{"containerPort": 8000}]}
        ],
    },
    namespace="ml",
)
REVIEW: Json = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": "ml",
        "userInfo": {"username": "ada"},
        "object": POD,
    },
}


class Wired:
    """The endpoints of a process in a separate server."""

    def __init__(self, policy: dict[str, str]) -> None:
        self.metrics = Metrics(["Pod"])
        self.policy = LivePolicy(self.metrics)
        self.policy.offer(policy, "test")
        self.endpoints = endpoints.endpoints(self.policy, NoCluster())
        self.fast_path: FastPath | None = None
        self.on_error = endpoints.on_error(self.policy)
        self.shared: SharedRecords | None = None
        self.chunked = False
        """Whether aiohttp reads the posted body."""

    async def post(self, endpoint: str, review: Json | bytes = REVIEW) -> Json:
        wired = AdmissionServer(
            self.endpoints,
            self.on_error,
            self.metrics,
            Readiness(str),
            shared=self.shared,
            fast_path=self.fast_path,
            fast_path_on=lambda: self.policy.config.webhook.fast_path,
        )
        listener = listen("127.0.0.1", 0)
        port = listener.getsockname()[1]
        await wired.start(listener, None)
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(
                    f"http://127.0.0.1:{port}/{endpoint}",
                    data=review if isinstance(review, bytes) else orjson.dumps(review),
                    headers={"Content-Type": "application/json"},
                    chunked=self.chunked or None,
                ) as answer,
            ):
                response: Json = (await answer.json())["response"]
                return response
        finally:
            await wired.drain(0)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)
