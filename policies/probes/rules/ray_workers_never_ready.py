"""ray-workers-never-ready: workers of a RayService whose readinessProbe asks a proxy that is not there.

Source: `initLivenessAndReadinessProbe` in ray-operator/controllers/ray/common/pod.go of KubeRay 1.6.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.ray_pods import SERVE_PORT, SERVE_PORT_NAME
from policies.kube.group_kinds import RAY_SERVICE
from policies.kube.objects.pods import ContainerSpec
from policies.kube.objects.ray import RayService, WorkerGroupSpec
from policies.kube.quantities import whole_number

_WITHOUT_PROXIES: Final = ("HeadOnly", "Disabled")
_PORT: Final = re.compile(r"(?:^|[{,\s])port:[ \t]*([0-9]{1,5})\b")


def check(target: Target, facts: Facts) -> Findings:
    spec = target.read(RayService).spec
    place = _proxy_location(spec.serve_config_v2)
    port = _port(spec.serve_config_v2)
    groups = spec.ray_cluster_config.worker_group_specs
    for template in target.templates:
        group = _group(template, groups)
        if group is None or not _has_pods(group) or not template.typed.spec.containers:
            continue
        first = template.typed.spec.containers[0]
        asked = _asked(first)
        if first.readiness_probe is not None:
            continue
        if place in _WITHOUT_PROXIES:
            yield Finding(
                "spec.serveConfigV2",
                f"With proxy_location {place}, no Serve proxy runs on the workers, but KubeRay's "
                f"readinessProbe checks it in each of them. The pods of group {group.group_name} are never "
                "ready.",
                "Omit proxy_location (EveryNode), or give the Ray container of the group a readinessProbe "
                "that checks only its raylet.",
            )
            return
        if port != asked:
            yield Finding(
                "spec.serveConfigV2",
                f"Serve listens on port {port}, but KubeRay's readinessProbe checks port {asked} of group "
                f"{group.group_name}, and the Service sends requests there. The workers are never ready.",
                f"Declare containerPort {port} with the name {SERVE_PORT_NAME} in the Ray containers.",
            )
            return


def _proxy_location(config: str) -> str:
    """Where the proxies of Serve run by its config; empty without the field."""
    value = next(_section(config, "proxy_location"), "").partition(":")[2].split()
    return value[0].strip("\"'") if value else ""


def _port(config: str) -> int:
    """The port of `http_options` in a config of Serve, by default 8000."""
    found = (_PORT.search(line) for line in _section(config, "http_options"))
    port = next((whole_number(each[1], 5) for each in found if each is not None), None)
    return port or SERVE_PORT


def _section(config: str, key: str) -> Iterator[str]:
    """The lines of a field at the top of a YAML text. Two fields need no parser, whose aliases and merge keys
    would have to be bounded."""
    inside = False
    for line in config.splitlines():
        inside = line.startswith(f"{key}:") or (inside and line[:1] in (" ", "\t"))
        if inside:
            yield line


def _asked(container: ContainerSpec) -> int:
    """The port that KubeRay's probe asks: the one that is named serve, else 8000."""
    ports = (each.container_port for each in container.ports if each.name == SERVE_PORT_NAME)
    return next(filter(None, ports), SERVE_PORT)


def _group(template: PodTemplate, groups: tuple[WorkerGroupSpec, ...]) -> WorkerGroupSpec | None:
    """The worker group of a template; None for the head's."""
    index = template.entry
    return None if index is None or index >= len(groups) else groups[index]


def _has_pods(group: WorkerGroupSpec) -> bool:
    return not group.suspend and bool(group.replicas or group.min_replicas or group.max_replicas)


RULE = rule(__name__, check, (RAY_SERVICE,))
