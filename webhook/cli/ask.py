"""`chassis scan --view servers --ask`: servers are asked for their version through the API server's proxy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from policies.kube.json import Json, maps, text
from policies.kube.metadata import labels_of
from policies.kube.selectors import matches
from webhook.admission.missed import runs
from webhook.cli.connection import Wait
from webhook.cli.output.servers import Serving
from webhook.cli.tell import tell
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.errors import ApiError

VERSIONS: Final[Mapping[str, str]] = {
    "vllm": "version",
    "vllm-by-arguments": "version",
    "ollama": "api/version",
    "triton": "v2",
    "tgi": "info",
    "tei": "info",
}
"""By preset the path whose JSON answer has a field `version`:
vllm/entrypoints/serve/instrumentator (`show_version`), https://docs.ollama.com/api/version,
https://github.com/kserve/open-inference-protocol (server metadata; Triton's own version, not the tag of its
image), `get_model_info` in server.rs of text-generation-inference and text-embeddings-inference."""
LONGEST_VERSION: Final = 64


def asked(api: ApiServer, wait: Wait, found: Iterable[Serving]) -> Iterator[Serving]:
    """Each with the version that a ready pod of it answers, if one can be reached."""
    for each in found:
        version = wait(_version(api, each))
        yield replace(each, version=version, verified=True) if version else each


async def _version(api: ApiServer, serving: Serving) -> str:
    path = VERSIONS.get(serving.server or "")
    if path is None or serving.port is None:
        return ""
    try:
        pod = await _ready_pod(api, serving)
        if pod is None:
            return ""
        name = text(pod, "metadata", "name")
        answer = await api.call("GET", paths.proxied(name, serving.namespace, serving.port, path))
    except ApiError as error:
        tell(f"{serving.namespace}/{serving.name} could not be asked: {error}")
        return ""
    version = text(answer, "version")
    return version[:LONGEST_VERSION]


async def _ready_pod(api: ApiServer, serving: Serving) -> Json | None:
    if serving.kind == "Pod":
        return await api.get(paths.one("v1", "pods", serving.name, serving.namespace))
    if not serving.selector:
        return None
    path = paths.collection("v1", "pods", serving.namespace)
    async for pod in api.objects(path):
        if matches(serving.selector, labels_of(pod)) and runs(pod) and _ready(pod):
            return pod
    return None


def _ready(pod: Json) -> bool:
    conditions = maps(pod, "status", "conditions")
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
