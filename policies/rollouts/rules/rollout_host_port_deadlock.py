"""rollout-host-port-deadlock: a rollout whose new pod waits for the host port that the old pod holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.facts import WholeObjects
from policies.kube.group_kinds import DAEMON_SET, SERVING
from policies.kube.names import listed
from policies.kube.objects.nodes import Node, only_node, pinned_to_one_node
from policies.kube.objects.pods import ContainerPort, PodSpec
from policies.kube.objects.workloads import DaemonSet, Replicated
from policies.kube.pods import Role
from policies.rollouts.rollouts import (
    RollingUpdate,
    RolloutOutcome,
    host_ports,
    minimum_of,
    minimum_replicas,
    outcome,
    pending_replicas,
    running_update,
)


def check(target: Target, facts: Facts) -> Findings:
    other = next(iter(_taken_by_others(target, facts)), None)
    if other is not None:
        yield other
        return
    update = running_update(target, facts)
    if update is None:
        return
    for template in target.templates:
        yield from _of_rollout(target, template, update, facts)


def keeps_new_pod_waiting(target: Target, template: PodTemplate, update: RollingUpdate, facts: Facts) -> bool:
    """Whether the rule reports that a new pod waits for the host port of an old one."""
    return _outcome(target, template, update, facts) is RolloutOutcome.STUCK and any(
        host_ports(template.typed.spec, each.typed) for each in template.containers(Role.MAIN, Role.SIDECAR)
    )


def _of_rollout(target: Target, template: PodTemplate, update: RollingUpdate, facts: Facts) -> Findings:
    """A finding about the host ports of the pods of a rollout."""
    found = _outcome(target, template, update, facts)
    if found is RolloutOutcome.COMPLETES:
        return
    one_node = _is_on_one_node(target, template)
    taken = [
        (template.at(container, f"ports[{index}]"), port)
        for container in template.containers(Role.MAIN, Role.SIDECAR)
        for index, port in host_ports(template.typed.spec, container.typed).items()
    ]
    if not taken:
        return
    ports = [*dict.fromkeys(str(port) for _, port in taken)]
    message, fix = _texts(f"{'ports' if ports[1:] else 'port'} {listed(ports)}", one_node, update, found)
    yield Finding(
        taken[0][0],
        message,
        f"{fix}, or remove the host port and use a Service.",
        Certainty.CERTAIN if one_node else Certainty.LIKELY,
    )


def _outcome(target: Target, template: PodTemplate, update: RollingUpdate, facts: Facts) -> RolloutOutcome:
    """The end of a rollout whose pods have host ports."""
    one_node = _is_on_one_node(target, template)
    if not one_node and facts.nodes():
        return RolloutOutcome.COMPLETES  # rollout-node-deadlock counts the nodes
    return outcome(update, 1 if one_node else update.replicas)


def _is_on_one_node(target: Target, template: PodTemplate) -> bool:
    return target.kind == DAEMON_SET or pinned_to_one_node(template.typed.spec)


def _taken_by_others(target: Target, facts: Facts) -> Findings:
    """Findings about host ports that the pods of another workload take on the same node. The webhook's caches
    keep no ports of other workloads: they are found in files and by a scan."""
    cluster = facts.whole
    if cluster is None or not (target.kind == DAEMON_SET or minimum_replicas(target, facts)):
        return
    for template in target.templates:
        pod = template.typed.spec
        for container in template.containers(Role.MAIN, Role.SIDECAR):
            for index, port in host_ports(pod, container.typed).items():
                for who, where in _others(target, pod, facts, cluster, (port, container.typed.ports[index])):
                    yield Finding(
                        template.at(container, f"ports[{index}]"),
                        f"{who} also uses host port {port} of {where}. One of the two pods stays Pending.",
                        "Give them different host ports or nodes, or remove the host port and use a Service.",
                        Certainty.LIKELY,
                    )


def _others(
    target: Target, pod: PodSpec, facts: Facts, cluster: WholeObjects, port: tuple[int, ContainerPort]
) -> Iterator[tuple[str, str]]:
    """The other workloads of the namespace that take a host port of the node of a pod, and the node."""
    node = _node(pod, facts) if target.kind != DAEMON_SET else ""
    for other in facts.objects(Replicated) or () if node else ():
        second = other.spec.template.spec
        own = (other.kind, other.name) == (target.kind.kind, target.name)
        if not own and _node(second, facts) == node and _takes(second, port) and minimum_of(other, facts):
            yield f"{other.kind} {other.name}", f"node {node}"
    for daemons in cluster.typed(DAEMON_SET, facts.namespace, DaemonSet):
        second = daemons.spec.template.spec
        if target.kind == DAEMON_SET and daemons.name >= target.name and _is_wherever(pod, second):
            continue  # itself, or another that is reported instead
        if _takes(second, port) and _is_wherever(second, pod):
            yield f"DaemonSet {daemons.name}", "every such node"


def _is_wherever(daemon: PodSpec, pod: PodSpec) -> bool:
    """Whether a DaemonSet has a pod on each node that another pod may run on."""
    selects = daemon.node_name or daemon.node_selector or daemon.affinity.node_affinity.required is not None
    tolerates_all = any(each.operator == "Exists" and not each.key for each in daemon.tolerations)
    return not selects and (tolerates_all or not pod.tolerations)


def _node(pod: PodSpec, facts: Facts) -> str:
    """The only node for a pod: the one that it names, or the only one of the cluster."""
    nodes = facts.cluster_objects(Node)
    alone = next(iter(nodes)).name if nodes and len(nodes) == 1 else ""
    return only_node(pod) or alone


def _takes(pod: PodSpec, wanted: tuple[int, ContainerPort]) -> bool:
    """Whether a pod takes a host port of the same protocol and of the same address, or of all."""
    number, port = wanted
    for container in pod.containers:
        for index, taken in host_ports(pod, container).items():
            other = container.ports[index]
            addresses = {port.host_ip, other.host_ip}
            same = len(addresses) == 1 or not addresses.isdisjoint(_ALL_ADDRESSES)
            if (taken, other.protocol) == (number, port.protocol) and same:
                return True
    return False


_ALL_ADDRESSES: Final = ("", "0.0.0.0", "::")  # noqa: S104


def _texts(ports: str, one_node: bool, update: RollingUpdate, found: RolloutOutcome) -> tuple[str, str]:
    if found is RolloutOutcome.STUCK:
        node = "the same node" if one_node else "a node"
        return (
            f"The new pod needs host {ports} of {node}, which the old pod holds until the new one is ready.",
            update.in_place,
        )
    return (
        f"Only one pod of a node can have host {ports}, and all pods are bound to the same node, so "
        f"{pending_replicas(update.replicas, 1)}.",
        "Run 1 replica",
    )


RULE = rule(__name__, check, (*SERVING, DAEMON_SET), requires=(PodFeature.HOST_PORT,))
