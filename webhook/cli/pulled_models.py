"""`chassis scan --view models`: the models of each pod with a puller, as the puller itself reports them.

The pods are asked through the API server's proxy, so no pod needs rights of its own. Law: a pod that cannot
be asked is listed with the reason, and is not taken for one without models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Final

from policies.kube.json import Json, integer, maps, text
from policies.models.sidecar import status_port
from puller.quantities import human
from webhook.admission.missed import runs
from webhook.cli.output import plain
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.errors import ApiError

AT_ONCE: Final = 16
"""Pods that are asked at a time."""
_SECONDS: Final = 10.0
_COLUMNS: Final = ("pod", "node", "model", "state", "version", "bytes", "since", "why")


@dataclass(frozen=True, slots=True)
class PulledModel:
    """One model of one pod; without a name, a pod that could not be asked."""

    namespace: str
    pod: str
    node: str
    name: str = ""
    state: str = "Unknown"
    reason: str = ""
    message: str = ""
    version: str = ""
    bytes: int = 0
    """On disk."""
    bytes_done: int = 0
    """Of a download."""
    bytes_total: int = 0
    since: str = ""

    @property
    def cells(self) -> dict[str, str]:
        """A row of the table, by column."""
        size = human(self.bytes) if self.bytes else ""
        if self.bytes_total:
            size = f"{human(self.bytes_done)} of {human(self.bytes_total)}"
        why = ": ".join(each for each in (self.reason, self.message) if each)
        return {
            "pod": f"{self.namespace}/{self.pod}",
            "node": self.node,
            "model": self.name or "-",
            "state": self.state,
            "version": self.version,
            "bytes": size,
            "since": self.since,
            "why": why,
        }


async def pulled(api: ApiServer, namespace: str) -> list[PulledModel]:
    """The models of all running pods with a puller, by namespace and pod."""
    pods: list[tuple[Json, int]] = []
    async for pod in api.objects(paths.collection("v1", "pods", namespace)):
        port = status_port(pod)
        if port is not None and runs(pod):
            pods.append((pod, port))
    slots = asyncio.Semaphore(AT_ONCE)

    async def ask(pod: Json, port: int) -> list[PulledModel]:
        async with slots:
            return await _models(api, pod, port)

    found = await asyncio.gather(*(ask(pod, port) for pod, port in pods))
    return sorted(
        (model for models in found for model in models),
        key=lambda each: (each.namespace, each.pod, each.name),
    )


async def _models(api: ApiServer, pod: Json, port: int) -> list[PulledModel]:
    name, namespace = text(pod, "metadata", "name"), text(pod, "metadata", "namespace")
    node = text(pod, "spec", "nodeName")
    if not text(pod, "status", "podIP"):
        return [PulledModel(namespace, name, node, reason="NotAsked", message="the pod has no address yet")]
    try:
        answer = await api.call("GET", paths.proxied(name, namespace, port, "v1/models"), timeout=_SECONDS)
    except ApiError as error:
        return [PulledModel(namespace, name, node, reason="NotAsked", message=str(error))]
    if not isinstance(answer.get("models"), list):
        return [PulledModel(namespace, name, node, reason="NotAsked", message="the answer lists no models")]
    return [
        PulledModel(
            namespace,
            name,
            node,
            text(each, "name"),
            text(each, "state"),
            text(each, "reason"),
            text(each, "message"),
            text(each, "version"),
            integer(each, "bytes", default=0),
            integer(each, "bytesDone", default=0),
            integer(each, "bytesTotal", default=0),
            text(each, "since"),
        )
        for each in maps(answer, "models")
    ]


def table(found: Iterable[PulledModel]) -> Iterator[str]:
    """A line for each model, and how many there are."""
    models = list(found)
    yield from plain.table(_COLUMNS, ([each.cells[name] for name in _COLUMNS] for each in models))
    named = [each for each in models if each.name]
    loaded = sum(each.state == "Loaded" for each in named)
    silent = len(models) - len(named)
    others = f"; {plain.plural(silent, 'pod')} could not be asked" if silent else ""
    yield f"\n{plain.plural(len(named), 'model')}, {loaded} loaded{others}\n"


def as_json(found: Iterable[PulledModel]) -> Iterator[str]:
    """An array of objects, with keys in the style of the other outputs."""
    renamed = {"bytes_done": "bytesDone", "bytes_total": "bytesTotal"}
    entries = [{renamed.get(key, key): value for key, value in asdict(each).items()} for each in found]
    yield plain.as_json(entries)
