"""`chassis scan --view models`: the models of each pod with a puller, as the puller reports them.

The pods are asked through the API server's proxy, so no pod needs rights. A pod that does not answer is
listed with the reason, not as a pod without models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from policies.kube.json import Json, integer, maps, text
from policies.kube.names import plural
from policies.models.model_puller import status_port
from puller.quantities import human
from webhook.admission.missed import runs
from webhook.cli import terminal
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.calls import ApiError

CONCURRENT_REQUESTS: Final = 16
_TIMEOUT_SECONDS: Final = 10.0
_COLUMNS: Final = ("pod", "node", "model", "state", "version", "bytes", "since", "why")
_NUMBERS: Final = ("bytes", "bytesDone", "bytesTotal")
"""Bytes on disk; of a download, the bytes so far and in total."""
_FIELDS: Final = ("name", "state", "reason", "message", "version", *_NUMBERS, "since")
"""The fields of a model in the puller's answer and in `-o json`."""


async def pulled(api: ApiServer, namespace: str) -> list[Json]:
    """The models of all running pods with a puller, by namespace and pod, with the fields of `-o json`. An
    element without a name is a pod that did not answer."""
    pods: list[tuple[Json, int]] = []
    async for pod in api.objects(paths.collection("v1", "pods", namespace)):
        port = status_port(pod)
        if port is not None and runs(pod):
            pods.append((pod, port))
    slots = asyncio.Semaphore(CONCURRENT_REQUESTS)

    async def ask(pod: Json, port: int) -> list[Json]:
        async with slots:
            return await _models(api, pod, port)

    found = await asyncio.gather(*(ask(pod, port) for pod, port in pods))
    models = (model for models in found for model in models)
    return sorted(models, key=lambda each: (each["namespace"], each["pod"], each["name"]))


async def _models(api: ApiServer, pod: Json, port: int) -> list[Json]:
    name, namespace = text(pod, "metadata", "name"), text(pod, "metadata", "namespace")
    place = {"namespace": namespace, "pod": name, "node": text(pod, "spec", "nodeName")}
    if not text(pod, "status", "podIP"):
        return [place | _not_asked("the pod has no address yet")]
    try:
        answer = await api.call(
            "GET", paths.proxied(name, namespace, port, "v1/models"), timeout=_TIMEOUT_SECONDS
        )
    except ApiError as error:
        return [place | _not_asked(str(error))]
    if not isinstance(answer.get("models"), list):
        return [place | _not_asked("the answer lists no models")]
    return [place | _model(each) for each in maps(answer, "models")]


def _model(status: Json) -> Json:
    return {key: integer(status, key, default=0) if key in _NUMBERS else text(status, key) for key in _FIELDS}


def _not_asked(why: str) -> Json:
    return _model({"state": "Unknown", "reason": "NotAsked", "message": why})


def _row(model: Json) -> list[str]:
    size = human(model["bytes"]) if model["bytes"] else ""
    if model["bytesTotal"]:
        size = f"{human(model['bytesDone'])} of {human(model['bytesTotal'])}"
    pod, why = f"{model['namespace']}/{model['pod']}", filter(None, (model["reason"], model["message"]))
    named = {"pod": pod, "model": model["name"] or "-", "bytes": size, "why": ": ".join(why)}
    return [(model | named)[column] for column in _COLUMNS]


def table(found: Iterable[Json]) -> Iterator[str]:
    """A line for each model, and how many there are."""
    models = list(found)
    yield from terminal.table(_COLUMNS, map(_row, models))
    named = [each for each in models if each["name"]]
    loaded = sum(each["state"] == "Loaded" for each in named)
    silent = len(models) - len(named)
    others = f"; {plural(silent, 'pod')} could not be asked" if silent else ""
    yield f"\n{plural(len(named), 'model')}, {loaded} loaded{others}\n"
