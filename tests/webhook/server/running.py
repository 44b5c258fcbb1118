"""A server over real sockets, whose one endpoint answers as a test sets."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import aiohttp

from policies.kube.json import Json
from webhook.admission.answer import Answer, Response, allowed
from webhook.admission.envelope import Request
from webhook.server.admission_server import AdmissionServer, Readiness, listen
from webhook.server.connections import FastPath
from webhook.server.metrics import Metrics
from webhook.server.reviews import Endpoint

JSON_TYPE = {"Content-Type": "application/json"}
HEAD = b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


FAST_PATH = find_spec("webhook.fast_path") is not None
"""Whether it is there: these tests also run without it."""


def review(**changes: Any) -> Json:
    request = {
        "uid": "0f1e",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": "ml",
        "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {}},
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {**request, **changes},
    }


class Running:
    """A server whose one endpoint answers as the test sets.

    aiohttp reads all requests for one that may wait; plain requests for one that answers at once never reach
    it, if there is a fast path.
    """

    def __init__(self, waits: bool) -> None:
        self.answer: Callable[[Request, float], Answer | Awaitable[Answer]] = self._allow
        self.metrics = Metrics(["Pod"])
        self.problem = ""
        """Of the serving certificate."""
        self.readiness = Readiness(lambda: self.problem, policy=True)
        endpoint: Endpoint = self._awaited if waits else self._at_once
        self.server = AdmissionServer(
            {"validate": endpoint},
            self._failed,
            self.metrics,
            self.readiness,
            drain_patience=60,
            fast_path=cast(FastPath, import_module("webhook.fast_path")) if FAST_PATH else None,
        )
        self.address = ("", 0)
        self.session: aiohttp.ClientSession

    def _allow(self, _: Request, __: float) -> Answer:
        return Answer(allowed())

    def _at_once(self, request: Request, deadline: float) -> Answer:
        answer = self.answer(request, deadline)
        assert isinstance(answer, Answer)
        return answer

    async def _awaited(self, request: Request, deadline: float) -> Answer:
        answer = self.answer(request, deadline)
        return answer if isinstance(answer, Answer) else await answer

    @staticmethod
    def _failed(name: str, _: Request) -> Response:
        return allowed([f"{name} failed"])

    def url(self, path: str) -> str:
        host, port = self.address
        return f"http://{host}:{port}{path}"

    async def post(self, data: Any, path: str = "/validate", **headers: str) -> tuple[int, str]:
        async with self.session.post(self.url(path), data=data, headers=JSON_TYPE | headers) as answer:
            return answer.status, await answer.text()

    async def review(self, path: str = "/validate", **changes: Any) -> Json:
        status, text = await self.post(json.dumps(review(**changes)), path)
        assert status == 200
        answer: Json = json.loads(text)
        assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        response: Json = answer["response"]
        return response

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url(path)) as answer:
            return answer.status, await answer.text()

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0


@asynccontextmanager
async def serving(
    tls: Callable[[], ssl.SSLContext] | None = None, *, waits: bool = False
) -> AsyncIterator[Running]:
    it = Running(waits)
    listener = listen("127.0.0.1", 0)
    it.address = listener.getsockname()
    await it.server.start(listener, tls)
    async with aiohttp.ClientSession() as it.session:
        yield it
    await it.server.drain(0)
