"""Who serves: the serving containers of a pod, and which model server each of them is.

`standard-probes` and the rules must agree, so all ask here. Law: unsure is None, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policies.core.annotations import HEALTH_PATH, HEALTH_PORT, LIVE_PATH, READY_PATH
from policies.core.facts import Facts
from policies.kube.json import Json
from policies.kube.metadata import annotations_of
from policies.kube.pods import Container, Role
from policies.probes.recognition import Part, Recogniser, Server, is_idle
from policies.probes.settings import StandardProbes

HEALTH_ANNOTATIONS: Final = (HEALTH_PATH, HEALTH_PORT, LIVE_PATH, READY_PATH)


def istio_came_first(pod: Json) -> bool:
    """Whether Istio's injector has been at the pod before.

    It rewrites the probes that it finds, because the kubelet has no certificate for mutual TLS; a probe
    that is added afterwards goes to the proxy unrewritten, and fails where mutual TLS is strict.
    Source: https://istio.io/latest/docs/ops/configuration/mesh/app-health-check/
    """
    return "sidecar.istio.io/status" in annotations_of(pod)


def recognised(container: Container, facts: Facts) -> Server | None:
    """The model server in a container, by the presets in force."""
    return facts.settings(StandardProbes).recogniser.server(container)


def is_infrastructure(container: Container, facts: Facts) -> bool:
    """Whether a container is a known proxy, log shipper or exporter."""
    return facts.settings(StandardProbes).recogniser.is_infrastructure(container)


def serving_containers(pod: Json, facts: Facts) -> list[Container]:
    """The serving containers of a pod (a map with `spec`); none in a pod that runs to completion.

    A container serves if it declares a TCP port, carries a readinessProbe, or is recognised by a
    preset or named by a health annotation; a native sidecar only if it declares a port; an init
    container, a known proxy, a worker of a group, one that only sleeps, or a container that isn't
    restarted whenever it ends never.
    """
    return facts.pod_cache(pod).once(_serving, pod, facts)


def _serving(pod: Json, facts: Facts) -> list[Container]:
    view = facts.view(pod)
    if view.completes:
        return []
    recogniser = facts.settings(StandardProbes).recogniser
    found = [each for each in view.running if not (recogniser.is_infrastructure(each) or _ends(each))]
    return [
        each
        for each in found
        if _serves(each, recogniser) or _annotated(view.ours, each, only=len(found) == 1)
    ]


def _ends(container: Container) -> bool:
    """Whether a restartPolicy of the container's own (Kubernetes 1.34) makes a kill by a probe its end."""
    return container.spec.get("restartPolicy") in ("Never", "OnFailure")


def _annotated(annotations: Mapping[str, str], container: Container, *, only: bool) -> bool:
    return container.role is Role.MAIN and any(
        f"{key}.{container.name}" in annotations or (only and key in annotations)
        for key in HEALTH_ANNOTATIONS
    )


def _serves(container: Container, recogniser: Recogniser) -> bool:
    server = recogniser.server(container)
    part = Part.SERVES if server is None else server.part
    if part is Part.WORKER or is_idle(container):
        return False
    if container.tcp_ports:
        return True
    if container.role is Role.SIDECAR:
        return False
    known = server is not None and part is Part.SERVES
    return known or bool(container.spec.get("readinessProbe"))
