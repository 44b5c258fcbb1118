"""A pod's request for models, from its annotations, its containers and its model config.

`policies.models.model_puller` injects the sidecar for it. An invalid request raises PullError.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from policies.core.annotations import (
    MODEL_CACHE,
    MODEL_CLAIM,
    MODEL_CONFIG,
    MODEL_CONTAINERS,
    MODEL_CREDENTIALS,
    MODEL_DIR,
    MODEL_SERVER,
    MODEL_SERVER_PORT,
)
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.kube.json import Json
from policies.kube.names import is_subdomain, listed
from policies.kube.objects.pods import ContainerSpec
from policies.kube.pods import Container, Role, containers, port_number
from policies.probes.endpoints import declared_http_port, server_port
from policies.probes.recognition import Server
from policies.probes.serving import is_infrastructure, recognised, serving_containers
from puller import model_config as model_spec

LORA_SERVERS: Final = ("vllm", "sglang")
"""Servers that load LoRA adapters at run time, by the names of their presets."""
SERVERS: Final = ("v2", "kserve", "triton", "tfserving", *LORA_SERVERS, "none")
DEFAULT_PORT: Final = 8080


class PullError(ValueError):
    """Why a pod that requests models gets no sidecar."""

    def __init__(self, path: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.finding = Finding(path, message, hint)


class ModelPull(Struct, frozen=True):
    """A pod's request for models."""

    config: str
    """The name of the ConfigMap."""
    model_dir: str
    """Where the containers mount the models."""
    claim: str
    """The PersistentVolumeClaim for the models; empty for a volume of the pod."""
    cache: str
    """The PersistentVolumeClaim of a shared cache; empty without one."""
    credentials: str
    """The Secret whose keys become the puller's environment; empty for the ServiceAccount only."""
    targets: tuple[Container, ...]
    """The containers that read the models."""
    server: str
    """The protocol of the model server: one of SERVERS."""
    port: int
    """The port of the model server."""


def pull_of(pod: Json, facts: Facts, model_dir: str) -> ModelPull | None:
    """The pod's request; None without one. Raises PullError. `model_dir`: the default path."""
    annotations = facts.view(pod).typed.metadata.annotations
    config = _name(annotations, MODEL_CONFIG)
    if not config:
        return None
    targets = _targets(pod, annotations.get(MODEL_CONTAINERS, ""), facts)
    server, port = _server(annotations, targets, facts)
    return ModelPull(
        config=config,
        model_dir=_directory(annotations) or model_dir,
        claim=_name(annotations, MODEL_CLAIM),
        cache=_name(annotations, MODEL_CACHE),
        credentials=_name(annotations, MODEL_CREDENTIALS),
        targets=targets,
        server=server,
        port=port,
    )


def _name(annotations: Mapping[str, str], key: str) -> str:
    """The name of an object in an annotation; empty without the annotation."""
    value = annotations.get(key)
    if value is None or is_subdomain(value):
        return value or ""
    raise _invalid(key, f"is {value!r}, which is not a name", "Use the object's name.")


def _directory(annotations: Mapping[str, str]) -> str:
    value = annotations.get(MODEL_DIR)
    if value is None or (re.fullmatch(r"(/[\w.-]+)+", value) and ".." not in value.split("/")):
        return value or ""
    what = f"is {value!r}, which isn't an absolute path"
    raise _invalid(MODEL_DIR, what, "Use a path such as /mnt/models.")


def _invalid(key: str, what: str, hint: str) -> PullError:
    return PullError(f"metadata.annotations[{key}]", f"Annotation {key} {what}.", hint)


# --- the containers that read the models ---------------------------------------------------------


def _targets(pod: Json, named: str, facts: Facts) -> tuple[Container, ...]:
    """`named`: the annotation that chooses them."""
    mains = list(containers(pod, Role.MAIN))
    if named:
        chosen = {name.strip() for name in named.split(",")} - {""}
        missing = chosen - {container.name for container in mains}
        if missing or not chosen:
            what = f"names containers that the pod doesn't have: {listed(sorted(missing))}"
            hint = f"The containers are {listed(container.name for container in mains)}."
            raise _invalid(MODEL_CONTAINERS, what, hint)
        return tuple(container for container in mains if container.name in chosen)
    serving = [
        container for container in serving_containers(facts.view(pod), facts) if container.role is Role.MAIN
    ]
    return tuple(serving or [container for container in mains if not is_infrastructure(container, facts)])


def _server(annotations: Mapping[str, str], targets: Iterable[Container], facts: Facts) -> tuple[str, int]:
    """The protocol and the port of the model server."""
    known = [(container, recognised(container, facts)) for container in targets]
    annotated = annotations.get(MODEL_SERVER)
    container, server = next(
        ((container, server) for container, server in known if server and _loads_models(server, annotated)),
        next(iter(known), (None, None)),
    )
    if annotated is not None and annotated not in SERVERS:
        raise _invalid(MODEL_SERVER, f"is {annotated!r}", f"Use one of {', '.join(SERVERS)}.")
    api = annotated or (server.preset.repository_api if server else None) or "none"
    return api, _server_port(annotations.get(MODEL_SERVER_PORT), container, server, api)


def _loads_models(server: Server, api: object) -> bool:
    """Whether the puller can load models into this server, or adapters if the pod requests them."""
    return server.name == api if api in LORA_SERVERS else server.preset.repository_api is not None


def _server_port(annotated: str | None, container: Container | None, server: Server | None, api: str) -> int:
    spec = container.typed if container else ContainerSpec()
    if annotated is not None:
        port = port_number(spec, annotated)
        if port is None:
            what = f"is {annotated!r}: neither a port number nor a port's name"
            hint = "Use a number from 1 to 65535 or the name of a declared port."
            raise _invalid(MODEL_SERVER_PORT, what, hint)
        return port
    if container and server and _loads_models(server, api):
        return server_port(container, server) or server.preset.port
    return declared_http_port(spec) or DEFAULT_PORT


# --- the model config -----------------------------------------------------------------------------


def claims_of(models: Mapping[str, model_spec.ModelSpec] | None) -> list[str]:
    """The PersistentVolumeClaims in `pvc://` URIs."""
    uris = [urlsplit(model.storage_uri) for model in (models or {}).values()]
    return sorted({uri.netloc for uri in uris if uri.scheme == "pvc" and is_subdomain(uri.netloc)})
