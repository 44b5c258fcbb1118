"""ray-workers-never-ready: workers of a RayService whose readinessProbe asks a proxy that is not there, heads
that wait for Serve, and replicas of Serve that fit no pod.

Source: `initLivenessAndReadinessProbe`, `generateRayStartCommand` and `updateRayStartParamsResources` in
ray-operator/controllers/ray/common/pod.go of KubeRay 1.6, and `reconcileServe` in
ray-operator/controllers/ray/rayservice_controller.go of 1.1 to 1.7.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal
from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.ray_pods import SERVE_PORT, SERVE_PORT_NAME
from policies.kube.group_kinds import RAY_SERVICE
from policies.kube.objects.pods import ContainerSpec
from policies.kube.objects.ray import RayService, RayServiceSpec, WorkerGroupSpec
from policies.kube.pods import Role, port_number
from policies.kube.quantities import parse_quantity, whole_number
from policies.probes.probe import READINESS, STARTUP, ContainerProbe, probes

_WITHOUT_PROXIES: Final = ("HeadOnly", "Disabled")
_OPTIONS: Final = {"num_cpus": "CPUs", "num_gpus": "GPUs"}
_NUMBER: Final = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4})?", re.ASCII)
_ASKED: Final = re.compile(
    r"\b(num_cpus|num_gpus)[\"']?:[ \t]*[\"']?([0-9]{1,4}(?:\.[0-9]{1,4})?)(?![\w.])", re.ASCII
)
_OUTSIDE: Final = -1
_PORT: Final = re.compile(r"(?:^|[{,\s])port:[ \t]*([0-9]{1,5})\b")


def check(target: Target, facts: Facts) -> Findings:
    spec = target.read(RayService).spec
    yield from _too_large(target, spec)
    place = _proxy_location(spec.serve_config_v2)
    port = _port(spec.serve_config_v2)
    groups = spec.ray_cluster_config.worker_group_specs
    if spec.serve_config_v2:
        yield from _head_waits(target, port)
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


def _head_waits(target: Target, port: int) -> Findings:
    """A head that gets ready only when Serve answers, although KubeRay deploys to Serve only then."""
    for probe in probes(target, READINESS, STARTUP):
        head = probe.template.entry is None and probe.container.index == 0
        if "lifecycle" in probe.container.spec:
            continue  # a hook may start Serve
        if head and probe.container.role is Role.MAIN and _asks(probe, port):
            yield Finding(
                probe.at(),
                f"The {probe.name} asks the proxy of Serve (port {port}), which starts with the first "
                "application. KubeRay deploys applications only when the head is ready, so the service never "
                "starts.",
                f"Remove the {probe.which}Probe of the head: KubeRay adds probes of its raylet and its GCS, "
                "and checks the proxy itself.",
            )
            return


def _asks(probe: ContainerProbe, port: int) -> bool:
    """Whether a probe certainly asks a port of its own pod."""
    given = probe.typed
    action = given.http_get or given.tcp_socket
    if action is not None:
        return not action.host and port_number(probe.container.typed, action.port) == port
    text = " ".join(given.exec.command) if given.exec is not None else ""
    return not _ALTERNATIVE.search(text) and f"{port}" in _LOCAL.findall(text)


_LOCAL: Final = re.compile(r"\b(?:localhost|127\.0\.0\.1):([0-9]{1,5})(?![0-9])", re.ASCII)
_ALTERNATIVE: Final = re.compile(r"\|\||[;\n]|\bif\b")
"""Of a command that may succeed without one of its parts."""


def _too_large(target: Target, spec: RayServiceSpec) -> Findings:
    """A replica, which runs in one pod, that asks for more than each pod tells Ray that it has."""
    every = list(_asked_by_replicas(spec.serve_config_v2))
    for option, resource in _OPTIONS.items():
        asked = max((amount for name, amount in every if name == option), default=Decimal(0))
        if not asked:
            continue
        known = [_told(template, spec, option) for template in target.templates]
        if not known or None in known:
            continue
        most = max(each for each in known if each is not None)
        if asked > most:
            yield Finding(
                "spec.serveConfigV2",
                f"A replica of Serve asks for {asked} {resource} ({option}), and no pod of the Ray cluster "
                f"has more than {most}. A replica runs in one pod, so Ray never starts it, however many pods "
                "there are.",
                f"Lower {option} in ray_actor_options to {most}, or give the pods of a group more.",
            )


def _asked_by_replicas(config: str) -> Iterator[tuple[str, Decimal]]:
    """The options in the `ray_actor_options` of a config of Serve, each with a value."""
    inside = _OUTSIDE
    for line in config.splitlines():
        text = line.partition("#")[0]
        depth = len(text) - len(text.lstrip(" -"))
        if inside != _OUTSIDE and text.strip() and depth <= inside:
            inside = _OUTSIDE
        key, has_options, rest = text.partition("ray_actor_options:")
        if has_options:
            inside, text = len(key), rest
        if inside != _OUTSIDE:
            for found in _ASKED.finditer(text):
                yield found[1], Decimal(found[2])


def _told(template: PodTemplate, spec: RayServiceSpec, option: str) -> Decimal | None:
    """The number that KubeRay tells Ray for the pods of a group; None if it is unknown."""
    cluster = spec.ray_cluster_config
    index = template.entry
    if index is not None and index >= len(cluster.worker_group_specs):
        return None
    group = cluster.head_group_spec if index is None else cluster.worker_group_specs[index]
    containers = template.typed.spec.containers
    if not template.is_exact or not containers or group.resources:
        return None
    if index is not None and not _has_pods(cluster.worker_group_specs[index]):
        return Decimal(0)
    written = group.ray_start_params.get(option.replace("_", "-"))
    if written is not None:
        return Decimal(written) if _NUMBER.fullmatch(written) else None
    resources = containers[0].resources
    if option == "num_cpus":
        quantity = resources.limits.get("cpu") or resources.requests.get("cpu")
        return None if quantity is None else _rounded_up(quantity)
    if resources.claims:
        return None
    gpus = [value for name, value in resources.limits.items() if name.endswith("gpu") or ".com/mig-" in name]
    return max(filter(None, map(_rounded_up, gpus)), default=Decimal(0))


def _rounded_up(quantity: object) -> Decimal | None:
    try:
        return parse_quantity(f"{quantity}").to_integral_value(ROUND_CEILING)
    except ValueError:
        return None


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
