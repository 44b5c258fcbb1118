"""rollout-host-port-deadlock: a rollout whose new pod waits for the host port that the old pod holds."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.pod_features import PodFeature
from policies.core.target import PodTemplate, Target
from policies.kube.group_kinds import DAEMON_SET, DEPLOYMENT
from policies.kube.json import Json, dig, indexed_maps, integer, text
from policies.kube.names import listed
from policies.kube.nodes import pinned_to_one_node
from policies.kube.pods import Container, Role
from policies.rollouts.rollouts import rolling_update


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    if target.kind == DAEMON_SET:
        surges, certainty = _daemon_set_surges(target.obj), Certainty.SURE
    else:
        rollout = rolling_update(target.obj)
        surges, certainty = rollout is not None and rollout.unavailable == 0, Certainty.LIKELY
    if not surges:
        return
    for template in target.templates:
        sure = certainty is Certainty.SURE or pinned_to_one_node(template.spec)
        for container in template.containers(Role.MAIN, Role.SIDECAR):
            taken = _host_ports(template, container)
            if taken:
                yield Finding(
                    template.at(container, f"ports[{next(iter(taken))}]"),
                    f"The new pod needs host port {listed(map(str, taken.values()))} of "
                    f"{'the same node' if sure else 'a node'}, and the old pod holds it until the new one is "
                    "ready.",
                    "Set maxSurge to 0 and maxUnavailable to 1, or drop the host port and use a Service.",
                    Certainty.SURE if sure else Certainty.LIKELY,
                )


def _daemon_set_surges(daemon_set: Json) -> bool:
    if text(daemon_set, "spec", "updateStrategy", "type") == "OnDelete":
        return False
    surge = dig(daemon_set, "spec", "updateStrategy", "rollingUpdate", "maxSurge")
    return surge not in (None, 0, "0", "0%")


def _host_ports(template: PodTemplate, container: Container) -> dict[int, int]:
    """The ports of the node that a container takes, by their index; under hostNetwork that is each port
    it declares."""
    on_host = template.spec.get("hostNetwork") is True
    taken = {}
    for index, port in indexed_maps(container.spec, "ports"):
        inside = integer(port, "containerPort", default=0) if on_host else 0
        number = integer(port, "hostPort", default=0) or inside
        if number:
            taken[index] = number
    return taken


RULE = rule(__name__, check, (DEPLOYMENT, DAEMON_SET), requires=(PodFeature.HOST_PORT,))
