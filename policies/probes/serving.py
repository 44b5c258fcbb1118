"""The serving containers of a pod, and the model server in each of them.

`standard-probes` and all rules use these functions, so they agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policies.containers.programs import Program, joins_ray, programs
from policies.core.annotations import CANARY, HEALTH_PATH, HEALTH_PORT, LIVE_PATH, READY_PATH
from policies.core.facts import Facts
from policies.core.groups import LWS_NAME, Waits, leads
from policies.core.pod_view import PodView
from policies.core.services import selecting
from policies.kube.objects.services import Service
from policies.kube.objects.workloads import StatefulSet
from policies.kube.pods import Container, Role
from policies.probes.preset import Preset
from policies.probes.recognition import GroupRole, Recogniser, Server, is_idle
from policies.probes.standard_probes_settings import StandardProbes

HEALTH_ANNOTATIONS: Final = (HEALTH_PATH, HEALTH_PORT, LIVE_PATH, READY_PATH, CANARY)


def istio_came_first(pod: PodView) -> bool:
    """Whether Istio's injector has changed the pod already.

    It rewrites the existing probes, because the kubelet has no certificate for mutual TLS. A probe that is
    added later is not rewritten, and fails if mutual TLS is strict.
    Source: https://istio.io/latest/docs/ops/configuration/mesh/app-health-check/
    """
    return "sidecar.istio.io/status" in pod.typed.metadata.annotations


def istio_leaves_probes(pod: PodView) -> bool:
    """Whether an annotation keeps Istio from rewriting probes, so that its proxy may refuse each of them.

    Source: `ShouldRewriteAppHTTPProbers` of istio/istio, pkg/kube/inject/app_probe.go.
    """
    return pod.typed.metadata.annotations.get("sidecar.istio.io/rewriteAppHTTPProbers") in _FALSE


def istio_refuses_probes(pod: PodView) -> bool:
    """Whether Istio's proxy may refuse a probe that is added, because Istio does not rewrite it any more."""
    return istio_came_first(pod) or istio_leaves_probes(pod)


_FALSE: Final = ("0", "f", "F", "false", "FALSE", "False")
"""As Go's strconv.ParseBool reads them."""


def is_kuberay_container(pod: PodView, container: Container) -> bool:
    """Whether KubeRay sets the probes of a container: they match Ray's own failure detection."""
    return container.role is Role.MAIN and container.index == 0 and pod.is_ray


def recognised(container: Container, facts: Facts) -> Server | None:
    """The model server in a container, by the presets in force."""
    return facts.settings(StandardProbes).recogniser.server(container)


def own_preset(container: Container, facts: Facts) -> Preset | None:
    """The preset of the server whose own image a container has, whatever it runs."""
    return facts.settings(StandardProbes).recogniser.own_preset(container)


def is_infrastructure(container: Container, facts: Facts) -> bool:
    """Whether a container is a known proxy, log shipper or exporter."""
    return facts.settings(StandardProbes).recogniser.is_infrastructure(container)


def serving_containers(pod: PodView, facts: Facts) -> tuple[Container, ...]:
    """The serving containers of a pod (a map with `spec`); none in a pod that runs to completion.

    A container serves if it declares a TCP port or has a readinessProbe, or if a preset matches it or a
    health annotation names it. A native sidecar serves only if it declares a port. Init containers, known
    proxies, workers of a group, idle containers, and containers that are not restarted never serve.
    """
    return facts.pod_caches[pod].once(_serving, pod, facts)


def _serving(pod: PodView, facts: Facts) -> tuple[Container, ...]:
    if pod.completes:
        return ()
    recogniser = facts.settings(StandardProbes).recogniser
    found = [each for each in pod.running if not (recogniser.is_infrastructure(each) or _ends(each))]
    return tuple(
        each
        for each in found
        if _serves(each, recogniser) or _annotated(pod.chassis_annotations, each, only=len(found) == 1)
    )


def _ends(container: Container) -> bool:
    """Whether the container's own restartPolicy (Kubernetes 1.34) makes a kill by a probe final."""
    return container.spec.get("restartPolicy") in ("Never", "OnFailure")


def _annotated(annotations: Mapping[str, str], container: Container, *, only: bool) -> bool:
    return container.role is Role.MAIN and any(
        f"{key}.{container.name}" in annotations or (only and key in annotations)
        for key in HEALTH_ANNOTATIONS
    )


def _serves(container: Container, recogniser: Recogniser) -> bool:
    known = container.cache.once_for(recogniser, _serves_by_program, container, recogniser)
    return bool(container.spec.get("readinessProbe")) if known is None else known


def _serves_by_program(container: Container, recogniser: Recogniser) -> bool | None:
    """Whether a container serves by what runs in it; None if its readinessProbe decides."""
    server = recogniser.server(container)
    role = GroupRole.SERVES if server is None else server.role
    if role is GroupRole.WORKER or is_idle(container):
        return False
    if container.tcp_ports:
        return True
    if container.role is Role.SIDECAR:
        return False
    return True if server is not None and role is GroupRole.SERVES else None


def waits_for(pod: PodView, container: Container, facts: Facts) -> Waits:
    """Whether the other pods of a group wait until this pod is Ready, while its server may wait for them."""
    leader = leads(pod, facts)
    if leader is not None:
        return leader
    server = recognised(container, facts)
    if server is None:
        return Waits.NO
    grouped = server.spans_pods or server.has_option(*server.preset.group_flags)
    return _peers_wait(pod, facts) if grouped or starts_ray_for(server, pod, facts) else Waits.NO


def starts_ray_for(server: Server, pod: PodView, facts: Facts) -> bool:
    """Whether the pod starts the head of a Ray cluster next to a server, which may wait for its workers. The
    head itself answers without them."""
    return any(head != server.argv for head in facts.pod_caches[pod].once(_ray_heads, pod))


def _ray_heads(pod: PodView) -> tuple[Program, ...]:
    """What starts the head of a Ray cluster in a pod."""
    return tuple(
        program
        for container in pod.containers
        for program in programs(container)
        if joins_ray(program)
        and all(word in program for word in (("start", "--head") if program[0] == "ray" else ("leader",)))
    )


def _peers_wait(pod: PodView, facts: Facts) -> Waits:
    """Whether the other members of a pod's group are created, or find it, only after it is Ready."""
    metadata = pod.typed.metadata
    if LWS_NAME in metadata.labels:
        return Waits.NO  # its Service publishes unready addresses
    owner = metadata.controller
    workloads, services = facts.objects(StatefulSet), facts.objects(Service)
    if owner is None or owner.kind != "StatefulSet":
        if not metadata.labels:
            return Waits.NO  # no Service selects it
        # The others may find it by any Service that selects it, now or later.
        publish = [each.spec.publish_not_ready_addresses for each in selecting(metadata.labels, facts)]
        return Waits.NO if any(publish) else Waits.YES if publish else Waits.UNKNOWN
    if workloads is None or services is None:
        return Waits.UNKNOWN
    named = workloads.all_named(owner.name)
    found = next((each for each in named if each.kind == "StatefulSet"), None)
    if found is None:
        return Waits.UNKNOWN
    if found.spec.pod_management_policy != "Parallel":
        return Waits.YES
    service = services.named(found.spec.service_name)
    if service is None:
        return Waits.UNKNOWN
    return Waits.NO if service.spec.publish_not_ready_addresses else Waits.YES
