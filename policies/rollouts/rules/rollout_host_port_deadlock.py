"""rollout-host-port-deadlock: a rollout whose new pod waits for the host port that the old pod holds."""

from __future__ import annotations

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.group_kinds import DAEMON_SET, DEPLOYMENT
from policies.kube.names import listed
from policies.kube.nodes import pinned_to_one_node
from policies.kube.pods import Role
from policies.rollouts.rollouts import (
    Outcome,
    RollingUpdate,
    host_ports,
    outcome,
    pending_replicas,
    running_update,
)


def check(target: Target, facts: Facts) -> Findings:
    update = running_update(target, facts)
    if update is None:
        return
    for template in target.templates:
        one_node = target.kind == DAEMON_SET or pinned_to_one_node(template.typed.spec)
        if not one_node and facts.nodes():
            continue  # rollout-node-deadlock counts the nodes
        found = outcome(update, 1 if one_node else update.replicas)
        if found is Outcome.COMPLETES:
            continue
        for container in template.containers(Role.MAIN, Role.SIDECAR):
            taken = host_ports(template.typed.spec, container.typed)
            if taken:
                message, fix = _texts(listed(map(str, taken.values())), one_node, update, found)
                yield Finding(
                    template.at(container, f"ports[{next(iter(taken))}]"),
                    message,
                    f"{fix}, or drop the host port and use a Service.",
                    Certainty.CERTAIN if one_node else Certainty.LIKELY,
                )


def _texts(ports: str, one_node: bool, update: RollingUpdate, found: Outcome) -> tuple[str, str]:
    if found is Outcome.STUCK:
        node = "the same node" if one_node else "a node"
        return (
            f"The new pod needs host port {ports} of {node}, and the old pod holds it until the new one is "
            "ready.",
            "Set maxSurge to 0 and maxUnavailable to 1",
        )
    return (
        f"One pod of a node can have host port {ports}, and all pods are bound to the same node: "
        f"{pending_replicas(update.replicas, 1)}.",
        "Run 1 replica",
    )


RULE = rule(__name__, check, (DEPLOYMENT, DAEMON_SET), requires=(PodFeature.HOST_PORT,))
