"""The hosts that one workload depends on, read from its pod templates without the cluster."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from itertools import takewhile
from typing import Final

from msgspec import Struct

from policies.commands import SHELLS, Host, Reach, StepBudget, reach_of
from policies.commands.hosts import is_url, url_hosts
from policies.containers.commands import ReviewBudget, commands_fit, container_command, exec_command
from policies.core.dns import cluster_host, is_address
from policies.core.finding import Certainty
from policies.core.pod_templates import pod_templates
from policies.core.target import PodTemplate, Target
from policies.core.workloads import workloads_by_kind
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, integer, mapping, maps
from policies.kube.objects.pods import Probe
from policies.kube.pods import Container, Role
from policies.startup.waits import init_waits, may_end_otherwise, probe_waits


class Relation(StrEnum):
    """How one object depends on another."""

    WAITS = "waits for"
    """It does not start before the other object answers."""
    NEEDS_READY = "is ready only with"
    """A readiness or startup probe sends requests to the other object."""
    NEEDS_ALIVE = "is restarted without"
    """A liveness probe sends requests to the other object."""
    CALLS = "calls"
    """Its environment or arguments name the other object. No rule reads this."""


class Link(Struct, frozen=True):
    """One host that a workload depends on."""

    relation: Relation
    host: str
    """The name as a pod of this workload resolves it, lower case: `db`, `db.ml`,
    `db-0.db.ml.svc.cluster.local`, an address, or the kubelet's variable `$DB_SERVICE_HOST`."""
    path: str
    """Field path in the workload."""
    who: str
    """The client: "init container wait", "the readiness probe of container api"."""
    certainty: Certainty
    name_lookup: bool = False
    """Only the name is resolved."""
    limit: float | None = None
    """Seconds after which the workload continues without the host; None: never."""
    tolerates: int | None = None
    """Seconds for which a running pod tolerates a failure of the host; None if no probe depends on it."""

    @property
    def subject(self) -> str:
        """`who` at the beginning of a sentence."""
        return self.who[:1].upper() + self.who[1:]


MAX_LINKS: Final = 64
"""The number of links that are read of one workload."""

_URL_VARIABLE: Final = re.compile(r"(?:URL|URI|ENDPOINT|HOST|HOSTNAME|ADDR|ADDRESS|SERVER|SERVICE|DSN)$")


_NAME: Final = re.compile(r"[a-z0-9.-]+")
_VARIABLE: Final = re.compile(r"(?i)\$[({]?\w+_service_host[)}]?")
_NO_HOSTS: Final = frozenset(
    ["true", "false", "yes", "no", "on", "off", "none", "null", "http", "https", "unix"]
)
"""Values of variables such as LOG_HOSTNAME, and schemes in lists of URLs."""


def _is_named(host: Host) -> bool:
    """Whether a variable or an argument has a name that a resolver can know, or an address."""
    name = host.name
    if _VARIABLE.fullmatch(name) or (is_address(name) and not name.isdigit()):
        return True
    top = name.rstrip(".").rpartition(".")[2]
    return name not in _NO_HOSTS and bool(_NAME.fullmatch(name)) and not top.isdigit()


def blocking_links(target: Target) -> tuple[Link, ...]:
    """The links that keep pods of a workload from becoming ready, in reading order."""
    return _first(link for template in target.templates for link in _blocking(template))


def tried_links(target: Target) -> tuple[Link, ...]:
    """The hosts that a Job's own programs try to reach for a limited time, before they go on or fail."""
    return _first(
        link
        for template in target.templates
        if template.completes
        for container in template.containers(Role.MAIN)
        for host, limit in _limited_waits(template, container)
        for link in _link(
            template,
            container,
            f"the command of container {container.name}",
            Relation.WAITS,
            host,
            template.command_path(container),
            limit=limit,
        )
    )


def all_links(target: Target) -> tuple[Link, ...]:
    return _first(
        link
        for template in target.templates
        for link in (*_blocking(template), *_liveness(template), *_calls(template))
    )


def _first(links: Iterator[Link]) -> tuple[Link, ...]:
    found: dict[Link, None] = {}
    for link in links:
        found[link] = None
        if len(found) == MAX_LINKS:
            break
    return tuple(found)


def _blocking(template: PodTemplate) -> Iterator[Link]:
    for container in template.containers(Role.INIT):
        link = partial(_link, template, container, f"init container {container.name}")
        for wait in init_waits(template, container):
            yield from link(Relation.WAITS, wait.host, wait.path, wait.certainty)
        path = template.command_path(container)
        for host, limit in _limited_waits(template, container):
            yield from link(Relation.WAITS, host, path, Certainty.CERTAIN, limit=limit)
    running = template.containers(Role.MAIN, Role.SIDECAR)
    for container in running:
        link = partial(_link, template, container, f"the command of container {container.name}")
        sure = Certainty.CERTAIN if len(running) == 1 else Certainty.UNDECIDED
        for host, always in _command_waits(template, container):
            certainty = sure if always else Certainty.UNDECIDED
            yield from link(Relation.WAITS, host, template.command_path(container), certainty)
        for probe, wait in probe_waits(template, container):
            if _is_resolved_on_node(wait.host):
                continue
            link = partial(_link, template, container, f"the {probe} probe of container {container.name}")
            # The kubelet does not repeat the startup probe after the start.
            readiness = container.typed.readiness_probe or Probe()
            tolerates = readiness.give_up if probe == "readiness" else None
            yield from link(Relation.NEEDS_READY, wait.host, wait.path, wait.certainty, tolerates=tolerates)


def _is_resolved_on_node(host: Host) -> bool:
    """Whether the kubelet resolves the name: the node's resolver does not know Services."""
    return host.client in ("httpGet", "tcpSocket") and not is_address(host.name)


def _command_waits(template: PodTemplate, container: Container) -> Iterator[tuple[Host, bool]]:
    """The hosts of loops that must end before the container's own program runs, each with whether that is
    certain: the loop has no other end, and no program runs in the background before it."""
    summary = container_command(template, container)
    if not math.isinf(summary.seconds):
        return  # every loop has an end or runs in the background
    before = takewhile(lambda command: not command.hosts, summary.commands)
    serves = any(command.forgiven and command.name not in SHELLS for command in before)
    uncertain = may_end_otherwise(summary)
    for loop in summary.loops:
        for host in () if loop.bounded else loop.hosts:
            yield host, not (serves or host in uncertain)


def _limited_waits(template: PodTemplate, container: Container) -> list[tuple[Host, float]]:
    """The hosts that a container waits for up to a time limit, after which it goes on."""
    summary = container_command(template, container)
    if not summary.loops or not 0 < summary.seconds < math.inf:
        return []
    waited = {wait.host for wait in init_waits(template, container)}
    hosts = dict.fromkeys(host for loop in summary.loops for host in loop.hosts)
    return [(host, summary.seconds) for host in hosts if host not in waited]


def _liveness(template: PodTemplate) -> Iterator[Link]:
    for container in template.containers(Role.MAIN, Role.SIDECAR):
        probe = container.typed.liveness_probe
        if probe is None:
            continue
        who = f"the liveness probe of container {container.name}"
        link = partial(_link, template, container, who, Relation.NEEDS_ALIVE, tolerates=probe.give_up)
        for handler, action in (("httpGet", probe.http_get), ("tcpSocket", probe.tcp_socket)):
            name = "" if action is None else action.host
            host = Host(name.lower(), reach_of(name), handler)
            if name and not _is_resolved_on_node(host):
                path = template.at(container, "livenessProbe", handler, "host")
                yield from link(host, path, Certainty.CERTAIN)
        path = template.at(container, "livenessProbe", "exec.command")
        for host in dict.fromkeys(exec_command(template, container, "livenessProbe").hosts):
            yield from link(host, path, Certainty.UNDECIDED)


def _calls(template: PodTemplate) -> Iterator[Link]:
    """The hosts that a container's environment and arguments name."""
    for container in template.containers():
        link = partial(_link, template, container, f"the environment of container {container.name}")
        for index, entry in enumerate(container.typed.env):
            value, name = entry.value, entry.name
            if is_url(value) or (value and _URL_VARIABLE.search(name.upper())):
                path = template.at(container, f"env[{index}]", "value")
                for host in filter(_is_named, url_hosts(value, "env")):
                    yield from link(Relation.CALLS, host, path)
        link = partial(_link, template, container, f"the arguments of container {container.name}")
        for field, words in (("command", container.typed.command), ("args", container.typed.args)):
            for index, word in enumerate(words):
                value = word.partition("=")[2] if word.startswith("--") and "=" in word else word
                if is_url(value):
                    path = template.at(container, f"{field}[{index}]")
                    for host in filter(_is_named, url_hosts(value, field)):
                        yield from link(Relation.CALLS, host, path)


def _link(
    template: PodTemplate,
    container: Container,
    who: str,
    relation: Relation,
    host: Host,
    path: str,
    certainty: Certainty = Certainty.UNDECIDED,
    *,
    limit: float | None = None,
    tolerates: int | None = None,
) -> Iterator[Link]:
    """The link to a host, if it is outside the pod."""
    if host.reach is Reach.LOCAL or not host.name:
        return
    named = cluster_host(host.name, template, container)
    if named is None:
        if relation is Relation.CALLS:
            yield Link(relation, host.name, path, who, certainty)
        return
    if not named.certain:
        certainty = Certainty.UNDECIDED
    yield Link(relation, named.host, path, who, certainty, host.name_lookup, limit, tolerates)


MAX_STEPS: Final = 10_000
"""The budget of steps for reading the commands of another workload; beyond it, its waits are unknown."""


class CachedLinks(Struct, frozen=True):
    """The part of a workload that a watch cache stores for this package."""

    links: tuple[Link, ...]
    """The links that keep its pods from becoming ready."""
    ready: bool
    """Whether one of its pods is ready."""


CACHED_LINKS: Final = "relations"
"""The key of the `CachedLinks` in a cached workload. JSON cannot contain one, so no manifest can forge it."""


def cached_links(obj: Json) -> CachedLinks | None:
    """What a cache stores of a workload from an API server; None if it neither waits nor has ready pods."""
    workload = workloads_by_kind().get(kind_of(obj))
    if workload is None:
        return None
    links: tuple[Link, ...] = ()
    if _may_wait(obj):
        templates = pod_templates(obj, {workload.group_kind: workload})
        allowance = ReviewBudget(StepBudget(MAX_STEPS))
        if all(commands_fit(template, allowance) for template in templates):
            links = blocking_links(Target(obj, workload.group_kind, templates))
    ready = integer(obj, "status", "readyReplicas", default=0) > 0
    if not links and not ready:
        return None
    return CachedLinks(links, ready)


def _may_wait(obj: Json) -> bool:
    """Whether the pod template has a field that can wait. Most workloads have none and need no more work."""
    spec = mapping(obj, "spec", "template", "spec")
    return "initContainers" in spec or any(
        "command" in container or "args" in container or "readinessProbe" in container
        for container in maps(spec, "containers")
    )
