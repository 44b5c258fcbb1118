"""route-timeout-too-short, route-body-too-small: gateways that let less through than model servers need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.facts import WholeObjects
from policies.core.services import pools_of, selecting
from policies.kube.pods import Role
from policies.network.gateways import Backends, Routed, routed, with_body_limit
from policies.probes.recognition import Server
from policies.probes.serving import recognised

Need = TypeVar("Need")
_Limits = Callable[[WholeObjects, str, Backends], list[Routed]]


def _limited(
    target: Target, facts: Facts, need_of: Callable[[Server], Need | None], limits_of: _Limits
) -> Iterator[tuple[str, Server, Need, list[Routed]]]:
    """The path of each server with a need, and the limited routes that lead to its pods. None in the webhook,
    which does not know the routes."""
    cluster = facts.whole
    if cluster is None or target.has_controller:
        return
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            server = recognised(container, facts)
            need = None if server is None else need_of(server)
            if server is not None and need is not None:
                limits = limits_of(cluster, facts.namespace, _backends_of(template, facts))
                yield template.at(container), server, need, limits


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


RULES = (
    rule(__name__, short_timeouts, name="route-timeout-too-short"),
    rule(__name__, small_bodies, name="route-body-too-small"),
)
