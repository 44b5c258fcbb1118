"""route-timeout-too-short, route-body-too-small, host-refused: gateways that let less through than servers
need, or ask them for a host that they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Final, TypeVar

from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.facts import WholeObjects
from policies.core.services import pools_of, selecting
from policies.kube.group_kinds import HTTP_ROUTE, INGRESS, SERVING
from policies.kube.images import image_matches, repository_and_tag
from policies.kube.objects.metadata import Object
from policies.kube.objects.reading import readable
from policies.kube.objects.services import Ingress, Route
from policies.kube.pods import Container, Role
from policies.network.gateways import Backends, Routed, routed, with_body_limit
from policies.probes.preset import AnsweredHosts
from policies.probes.recognition import Server, release
from policies.probes.serving import recognised

Need = TypeVar("Need")
_Limits = Callable[[WholeObjects, str, Backends], list[Routed]]


def _limited(
    target: Target, facts: Facts, need_of: Callable[[Server], Need | None], limits_of: _Limits
) -> Iterator[tuple[str, Server, Need, list[Routed]]]:
    """The path of each server with a need, and the limited routes that lead to its pods. None in the webhook,
    which does not know the routes."""
    cluster = facts.whole
    if cluster is None:
        return
    for template, container, server, need in _in_need(target, facts, need_of):
        limits = limits_of(cluster, facts.namespace, _backends_of(template, facts))
        yield template.at(container), server, need, limits


def _in_need(
    target: Target, facts: Facts, need_of: Callable[[Server], Need | None]
) -> Iterator[tuple[PodTemplate, Container, Server, Need]]:
    """The servers of a workload with a need."""
    for template in () if target.has_controller else target.templates:
        for container in template.containers(Role.MAIN):
            server = recognised(container, facts)
            need = None if server is None else need_of(server)
            if server is not None and need is not None:
                yield template, container, server, need


def _backends_of(template: PodTemplate, facts: Facts) -> Backends:
    """The Services and InferencePools that select the pods of a template."""
    labels = template.typed.metadata.labels
    return Backends(
        frozenset(each.name for each in selecting(labels, facts)),
        frozenset(pool.name for pool in pools_of(labels, facts)),
    )


def _default_of(route: Routed) -> str:
    return f", the default of {route.gateway.name}" if route.is_default else ""


# --- route-timeout-too-short ---------------------------------------------------------------------


def short_timeouts(target: Target, facts: Facts) -> Findings:
    for path, server, long, limits in _limited(
        target, facts, lambda server: server.preset.long_answers, routed
    ):
        for each in limits:
            if each.limit > long.seconds:
                continue
            streams = "" if each.gateway.whole else " if it is not streamed"
            yield Finding(
                path,
                f"{each.route} ends requests to {each.backend} after {each.limit:g} s{_default_of(each)}. A "
                f"normal answer of {server.name} may take {long.seconds} s or longer{streams}. The client "
                "then gets status 504, and the server keeps computing.",
                f"Set the route's timeout to 600 s or more ({each.gateway.setting}).",
            )
            break


# --- route-body-too-small ------------------------------------------------------------------------


def small_bodies(target: Target, facts: Facts) -> Findings:
    needs = _limited(target, facts, lambda server: server.preset.large_requests, with_body_limit)
    for path, server, large, limits in needs:
        for each in limits:
            if each.limit >= large.bytes:
                continue
            yield Finding(
                path,
                f"{each.route} refuses requests to {each.backend} above "
                f"{_sized(int(each.limit))}{_default_of(each)}, with status 413. {large.what} that "
                f"{server.name} gets are often larger.",
                f"Set {each.gateway.setting} to the largest request that you want to accept.",
            )
            break


def _sized(size: int) -> str:
    return f"{size / 2**20:g} MiB" if size >= 2**20 else f"{size / 2**10:g} KiB"


# --- host-refused --------------------------------------------------------------------------------

_REWRITES: Final = ("vhost", "host", "host-header", "passhostheader")
"""The ends of annotations with which a gateway asks for another host."""
_MAY_REWRITE: Final = ("snippet", "middleware", "plugins", "headers")
"""Parts of annotations with settings, or names of objects, that may do the same."""
_FILTERS: Final = ("urlRewrite", "requestHeaderModifier", "extensionRef")
"""Filters of HTTPRoutes that may do the same."""


def refused_hosts(target: Target, facts: Facts) -> Findings:
    cluster = facts.whole
    if cluster is None:
        return
    for template, container, server, answered in _in_need(target, facts, _answered_hosts):
        services = list(selecting(template.typed.metadata.labels, facts))
        if not _refuses_hosts(server, container.image, answered) or any(map(_asks_for_another, services)):
            continue
        names = frozenset(each.name for each in services)
        for route, host in _hosts(cluster, facts.namespace, names):
            if any(fnmatchcase(host, known) for known in answered.known):
                continue
            yield Finding(
                template.at(container),
                f"{route} sends requests for {host} to {server.name}, which from {answered.since} on "
                "refuses those for hosts that it doesn't know, with status 403.",
                f"Name the host in {answered.flags[0]}, with those of clients in the cluster.",
            )
            break


def _answered_hosts(server: Server) -> AnsweredHosts | None:
    return server.preset.answered_hosts


def _refuses_hosts(server: Server, image: str, answered: AnsweredHosts) -> bool:
    options = (*answered.flags, *answered.unless)
    if not image_matches(image, (*server.preset.images, *server.preset.version_images)):
        return False
    old = release(repository_and_tag(image)[1]) < release(answered.since)
    if old or server.has_env_from or server.may_hold_options:
        return False
    return not server.has_option(*options) and not server.has_variable(*answered.env, *answered.unless)


def _asks_for_another(obj: Object) -> bool:
    """Whether annotations of an Ingress or a Service may let the gateway ask for another host."""
    keys = [key.lower() for key in obj.metadata.annotations]
    return any(key.endswith(_REWRITES) or any(part in key for part in _MAY_REWRITE) for key in keys)


def _hosts(cluster: WholeObjects, namespace: str, services: frozenset[str]) -> Iterator[tuple[str, str]]:
    """The Ingresses and HTTPRoutes in front of Services, each with a host that it passes on."""
    for ingress in cluster.typed(INGRESS, namespace, Ingress):
        if _asks_for_another(ingress):
            continue
        for part in ingress.spec.rules:
            if part.host and any(path.backend.service.name in services for path in part.http.paths):
                yield f"Ingress {ingress.name}", part.host
    for obj in cluster.every(HTTP_ROUTE, namespace):
        route = readable(obj, Route)
        spec = str(obj.get("spec"))
        if route is None or any(each in spec for each in _FILTERS):
            continue
        if route.spec.hostnames and any(each.name in services for _, each in route.services()):
            yield f"HTTPRoute {route.name}", route.spec.hostnames[0]


RULES = (
    rule(__name__, refused_hosts, SERVING, name="host-refused"),
    rule(__name__, short_timeouts, name="route-timeout-too-short"),
    rule(__name__, small_bodies, name="route-body-too-small"),
)
