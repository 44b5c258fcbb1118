"""The requests of one workload to other hosts, read from its pod templates without the cluster."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from policies.commands import Host, Reach, reach_of
from policies.commands.hosts import is_url, url_hosts
from policies.containers.commands import container_command, exec_command
from policies.core.finding import Certainty
from policies.core.names import asked, is_address
from policies.core.target import PodTemplate, Target
from policies.kube.json import maps, strings, text
from policies.kube.metadata import labels_of
from policies.kube.pods import Container, Role
from policies.kube.probe_timing import give_up
from policies.startup.waits import init_waits, probe_waits


class Relation(StrEnum):
    """How one object depends on another."""

    WAITS = "waits for"
    """It does not start before the other one answers."""
    NEEDS_READY = "is ready only with"
    """A readiness or startup probe asks the other one."""
    NEEDS_ALIVE = "is restarted without"
    """A liveness probe asks the other one."""
    CALLS = "calls"
    """Its environment names the other one. Reported, never judged."""


@dataclass(frozen=True, slots=True)
class Link:
    """One host that a workload asks."""

    relation: Relation
    host: str
    """As a pod of this workload resolves it, lower case: `db`, `db.ml`, `db-0.db.ml.svc.cluster.local`, an
    address, or kubelet's variable `$DB_SERVICE_HOST`."""
    path: str
    """Field path in the workload."""
    who: str
    """Who asks: "init container wait", "the readiness probe of container api"."""
    certainty: Certainty
    name_lookup: bool = False
    """Only the name is resolved."""
    limit: float | None = None
    """Seconds after which the workload goes on without the host; None: never."""
    tolerates: int | None = None
    """Seconds for which a running pod tolerates that the host fails; None: its probes do not ask it."""


MOST_LINKS: Final = 64
"""Links of one workload that are read; a workload with more is a mistake or an attack."""

_URL_VARIABLE: Final = re.compile(r"(?:URL|URI|ENDPOINT|HOST|HOSTNAME|ADDR|ADDRESS|SERVER|SERVICE|DSN)$")


def blocking_links(target: Target) -> tuple[Link, ...]:
    """The links that keep pods of a workload from becoming ready, in reading order."""
    return _first(link for template in target.templates for link in _blocking(template))


def all_links(target: Target) -> tuple[Link, ...]:
    """Every link of a workload, in reading order."""
    return _first(
        link
        for template in target.templates
        for link in (*_blocking(template), *_liveness(template), *_calls(template))
    )


def _first(links: Iterator[Link]) -> tuple[Link, ...]:
    found: dict[Link, None] = {}
    for link in links:
        found[link] = None
        if len(found) == MOST_LINKS:
            break
    return tuple(found)


def _blocking(template: PodTemplate) -> Iterator[Link]:
    for container in template.containers(Role.INIT):
        link = partial(_link, template, container, f"init container {container.name}")
        for wait in init_waits(template, container):
            yield from link(Relation.WAITS, wait.host, wait.path, wait.certainty)
        path = template.at_words(container)
        for host, limit in _given_up(template, container):
            yield from link(Relation.WAITS, host, path, Certainty.SURE, limit=limit)
    running = template.containers(Role.MAIN, Role.SIDECAR)
    for container in running:
        link = partial(_link, template, container, f"the command of container {container.name}")
        sure = Certainty.SURE if len(running) == 1 else Certainty.UNDECIDED
        for host in _awaited_by_command(template, container):
            yield from link(Relation.WAITS, host, template.at_words(container), sure)
        for called, wait in probe_waits(template, container):
            if _is_asked_by_kubelet(wait.host):
                continue
            link = partial(_link, template, container, f"the {called} probe of container {container.name}")
            # After the start the startup probe is not asked again.
            tolerates = give_up(container.spec.get("readinessProbe")) if called == "readiness" else None
            yield from link(Relation.NEEDS_READY, wait.host, wait.path, wait.certainty, tolerates=tolerates)


def _is_asked_by_kubelet(host: Host) -> bool:
    """Whether a name is resolved on the node, where names of Services mean nothing."""
    return host.client in ("httpGet", "tcpSocket") and not is_address(host.name)


def _awaited_by_command(template: PodTemplate, container: Container) -> Iterator[Host]:
    """The hosts of loops that must end before the container's own program runs."""
    summary = container_command(template, container)
    if not math.isinf(summary.seconds):
        return  # every loop has an end or runs in the background
    yield from (host for loop in summary.loops if not loop.bounded for host in loop.hosts)


def _given_up(template: PodTemplate, container: Container) -> list[tuple[Host, float]]:
    """The hosts that an init container waits for during a limited time, after which it succeeds."""
    summary = container_command(template, container)
    if not summary.loops or not 0 < summary.seconds < math.inf:
        return []
    waited = {wait.host for wait in init_waits(template, container)}
    hosts = dict.fromkeys(host for loop in summary.loops for host in loop.hosts)
    return [(host, summary.seconds) for host in hosts if host not in waited]


def _liveness(template: PodTemplate) -> Iterator[Link]:
    for container in template.containers(Role.MAIN, Role.SIDECAR):
        who = f"the liveness probe of container {container.name}"
        tolerates = give_up(container.spec.get("livenessProbe"))
        link = partial(_link, template, container, who, Relation.NEEDS_ALIVE, tolerates=tolerates)
        for handler in ("httpGet", "tcpSocket"):
            name = text(container.spec, "livenessProbe", handler, "host")
            host = Host(name.lower(), reach_of(name), handler)
            if name and not _is_asked_by_kubelet(host):
                yield from link(
                    host, template.at(container, "livenessProbe", handler, "host"), Certainty.SURE
                )
        for host in dict.fromkeys(exec_command(template, container, "livenessProbe").hosts):
            yield from link(
                host, template.at(container, "livenessProbe", "exec.command"), Certainty.UNDECIDED
            )


def _calls(template: PodTemplate) -> Iterator[Link]:
    """The hosts that a container's environment and arguments name."""
    for container in template.containers():
        who = f"the environment of container {container.name}"
        for index, entry in enumerate(maps(container.spec, "env")):
            value, name = text(entry, "value"), text(entry, "name")
            if is_url(value) or (value and _URL_VARIABLE.search(name.upper())):
                path = template.at(container, f"env[{index}]", "value")
                for host in url_hosts(value, "env"):
                    yield from _link(template, container, who, Relation.CALLS, host, path)
        who = f"the arguments of container {container.name}"
        for place in ("command", "args"):
            for index, word in enumerate(strings(container.spec, place)):
                value = word.partition("=")[2] if word.startswith("--") and "=" in word else word
                if is_url(value):
                    path = template.at(container, f"{place}[{index}]")
                    for host in url_hosts(value, place):
                        yield from _link(template, container, who, Relation.CALLS, host, path)


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
    """The link to a host, if the text names one outside the pod."""
    if host.reach is Reach.LOCAL or not host.name:
        return
    named = asked(host.name, template, container)
    if named is None:
        if relation is Relation.CALLS:
            yield Link(relation, host.name, path, who, certainty)
        return
    if not named.certain:
        certainty = Certainty.UNDECIDED
    yield Link(relation, named.host, path, who, certainty, host.name_lookup, limit, tolerates)


def pod_labels(target: Target) -> dict[str, str]:
    """The labels of the pods that the first template makes."""
    return dict(labels_of(target.templates[0].pod)) if target.templates else {}
