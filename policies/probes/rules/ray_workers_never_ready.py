"""ray-workers-never-ready: workers of a RayService whose readinessProbe asks a proxy that is not there, heads
that wait for Serve, and replicas of Serve that do not fit.

Source: `initLivenessAndReadinessProbe`, `generateRayStartCommand` and `updateRayStartParamsResources` in
ray-operator/controllers/ray/common/pod.go of KubeRay 1.6, and `reconcileServe` in
ray-operator/controllers/ray/rayservice_controller.go of 1.1 to 1.7.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Final

from msgspec import Struct

from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.ray_pods import SERVE_PORT, SERVE_PORT_NAME
from policies.kube.group_kinds import RAY_SERVICE
from policies.kube.json import integer, mapping, maps
from policies.kube.objects.pods import ContainerSpec
from policies.kube.objects.ray import RayClusterSpec, RayService, RayServiceSpec, WorkerGroupSpec
from policies.kube.pods import Role, port_number
from policies.kube.quantities import parse_quantity, whole_number
from policies.kube.yaml_text import EMBEDDED, BadDocument, load_all
from policies.probes.probe import READINESS, STARTUP, ContainerProbe, probes

_WITHOUT_PROXIES: Final = ("HeadOnly", "Disabled")
_OPTIONS: Final = {"num_cpus": "CPUs", "num_gpus": "GPUs"}
_NUMBER: Final = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4})?", re.ASCII)
_MAX_CONFIG: Final = 32 * 1024
"""Characters of a config of Serve whose deployments are read."""
_PORT: Final = re.compile(r"(?:^|[{,\s])port:[ \t]*([0-9]{1,5})\b")


def check(target: Target, facts: Facts) -> Findings:
    spec = target.read(RayService).spec
    every = list(_deployments(spec.serve_config_v2))
    yield from list(_too_large(target, spec, every)) or _too_many(target, spec, every)
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


class _Deployment(Struct, frozen=True):
    """A deployment in a config of Serve."""

    replicas: int
    asked: Mapping[str, Decimal]
    """The options of one replica."""


def _too_large(target: Target, spec: RayServiceSpec, every: Sequence[_Deployment]) -> Findings:
    """A replica, which runs in one pod, that asks for more than each pod tells Ray that it has."""
    for option, resource in _OPTIONS.items():
        asked = max((each.asked[option] for each in every if each.replicas), default=0)
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


def _too_many(target: Target, spec: RayServiceSpec, every: Sequence[_Deployment]) -> Findings:
    """Replicas that together ask for more than all pods of the cluster tell Ray that they have."""
    cluster = spec.ray_cluster_config
    for option, resource in _OPTIONS.items():
        asked = sum(each.replicas * each.asked[option] for each in every)
        most = Decimal(0)
        if not asked or not target.templates:
            continue
        for template in target.templates:
            each, pods = _told(template, spec, option), _most_pods(template, cluster)
            if each is None or (each and pods is None):
                break  # unknown
            most += each * (pods or 0)
        else:
            if asked > most:
                yield Finding(
                    "spec.serveConfigV2",
                    f"The replicas of Serve ask for {asked} {resource} together ({option}), and the pods of "
                    f"the Ray cluster have {most} at most. Ray never starts the rest, and the service does "
                    "not get ready.",
                    "Lower num_replicas, or raise "
                    + ("maxReplicas" if cluster.enable_in_tree_autoscaling else "replicas")
                    + " of a worker group.",
                )


def _most_pods(template: PodTemplate, cluster: RayClusterSpec) -> int | None:
    """The greatest number of pods of a template; None if there is no limit."""
    group = _group(template, cluster.worker_group_specs)
    if group is None:
        return 1
    most = group.max_replicas if cluster.enable_in_tree_autoscaling else group.replicas
    if most is None:
        return None
    return max(most, group.min_replicas) * max(1, group.num_of_hosts)


def _deployments(config: str) -> Iterator[_Deployment]:
    """The deployments of a config of Serve; none if it can't be read, or is long."""
    try:
        found = list(load_all(config, EMBEDDED, [])) if len(config) <= _MAX_CONFIG else []
    except BadDocument:
        return
    for application in maps(found[0], "applications") if found and isinstance(found[0], dict) else ():
        for each in maps(application, "deployments"):
            options = mapping(each, "ray_actor_options")
            numbers = {option: f"{options.get(option, 0)}" for option in _OPTIONS}
            yield _Deployment(
                integer(each, "num_replicas", default=1),
                {
                    name: Decimal(number if _NUMBER.fullmatch(number) else 0)
                    for name, number in numbers.items()
                },
            )


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
    if not gpus and (template.typed.spec.runtime_class_name or any("/" in name for name in resources.limits)):
        return None  # Ray counts the devices that it finds
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
