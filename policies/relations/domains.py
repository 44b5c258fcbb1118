"""How many pods of a workload the nodes take at once, where each node or zone takes only so many: required
anti-affinity, ports of the node, topology spread with DoNotSchedule.

The scheduler's filters as far as they last: what other pods hold, a cordon, a node that is not ready pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar, cast

from policies.accelerators.inventory import Node
from policies.accelerators.node_affinity import REQUIRED, admits, tolerates
from policies.accelerators.placement import apart_in
from policies.containers.remembered import Remembered
from policies.core.facts import is_virtual
from policies.core.listing import Listing
from policies.core.target import PodTemplate
from policies.kube.json import Json, dig, integer, maps, text
from policies.kube.metadata import labels_of
from policies.kube.nodes import HOSTNAME
from policies.kube.pods import Role
from policies.kube.selectors import matches
from policies.rollouts.rollouts import host_ports

V = TypeVar("V")

MOST_NODES: Final = 2_000
"""A larger cluster is not judged: all its nodes would be compared with the pod."""
_MOST_LIMITS: Final = 8
_IGNORE: Final = "Ignore"


class Cause(Enum):
    """Why a domain takes only so many pods."""

    APART = "anti-affinity"
    PORT = "a port of the node"
    SPREAD = "topology spread"


@dataclass(frozen=True, slots=True)
class Limit:
    """Each domain of a topology takes so many pods of a workload."""

    cause: Cause
    key: str
    path: str
    """The field that demands it."""
    each: int = 1
    across: bool = True
    """Whether pods of two revisions count together, as during a rollout."""
    least: int = 1
    """minDomains of a spread: below that number of domains each takes `each` at most."""
    ignores_selector: bool = False
    """Whether nodes that the pod does not select count as domains of a spread."""
    ignores_taints: bool = True
    """Whether nodes whose taints the pod does not tolerate count as domains of a spread."""


def limits_of(template: PodTemplate) -> list[Limit]:
    """The limits of a pod, the certain ones first; empty if there are too many to follow."""
    found = list(_limits(template))
    return found if len(found) <= _MOST_LIMITS else []


def _limits(template: PodTemplate) -> Iterator[Limit]:
    path = f"{template.spec_path}.affinity.podAntiAffinity"
    across = apart_in(template.pod, revisions=True)
    for key in dict.fromkeys(apart_in(template.pod)):
        yield Limit(Cause.APART, key, path, across=key in across)
    for container in template.containers(Role.MAIN, Role.SIDECAR):
        for index in host_ports(template.spec, container.spec):
            yield Limit(Cause.PORT, HOSTNAME, template.at(container, f"ports[{index}]"))
            break
    for index, spread in enumerate(maps(template.spec, "topologySpreadConstraints")):
        if spread.get("whenUnsatisfiable") != "ScheduleAnyway" and matches(
            spread.get("labelSelector"), labels_of(template.pod)
        ):
            yield Limit(
                Cause.SPREAD,
                text(spread, "topologyKey"),
                f"{template.spec_path}.topologySpreadConstraints[{index}]",
                max(1, integer(spread, "maxSkew", default=1)),
                not spread.get("matchLabelKeys"),
                integer(spread, "minDomains", default=1),
                spread.get("nodeAffinityPolicy") == _IGNORE,
                spread.get("nodeTaintsPolicy") != "Honor",
            )


@dataclass(frozen=True, slots=True)
class Domains:
    """The domains of a topology that can take a pod, and those that the scheduler counts in a spread but that
    can't."""

    usable: int
    unusable: int

    def room(self, limit: Limit) -> float:
        """How many pods they take at once; infinite if nothing limits them.

        A spread compares each domain with the one that has the fewest pods. It limits the total only where
        that one never gets a pod (`podtopologyspread/filtering.go` of the scheduler).
        """
        if limit.cause is Cause.SPREAD and not self.unusable and self.usable >= limit.least:
            return float("inf")
        return limit.each * self.usable


def domains(pod: Json, limit: Limit, nodes: Listing) -> Domains | None:
    """The domains of a limit; None if a node can take any number of pods."""
    demands = [dig(pod, "spec", "nodeSelector"), dig(pod, *REQUIRED), dig(pod, "spec", "tolerations")]
    question = [*demands, limit.cause.value, limit.key, limit.ignores_selector, limit.ignores_taints]
    return _remembered(nodes, question, lambda: _counted(pod, limit, nodes))


def _counted(pod: Json, limit: Limit, nodes: Listing) -> Domains | None:
    usable: set[str] = set()
    counted: set[str] = set()
    spread = limit.cause is Cause.SPREAD
    for obj in nodes:
        name, labels = text(obj, "metadata", "name"), labels_of(obj)
        domain = text(labels, limit.key) or (name if limit.key == HOSTNAME else "")
        if spread and not domain:
            continue  # no pod of a spread lands there
        selected = admits(pod, name, labels)
        if not selected and not (spread and limit.ignores_selector):
            continue
        taints = Node(name, labels, tuple(maps(obj, "spec", "taints")), {}).lasting_taints
        tolerated = all(tolerates(pod, taint) for taint in taints)
        if tolerated and selected:
            if not domain or is_virtual(obj):
                # Pods on a node without the label are apart from nobody; a virtual node takes many pods.
                return None
            usable.add(domain)
        elif tolerated or limit.ignores_taints:
            counted.add(domain)
    return Domains(len(usable), len(counted - usable))


def selects_none(pod: Json, nodes: Listing) -> bool:
    """Whether the node selector or required node affinity of a pod matches no node."""
    demands = [dig(pod, "spec", "nodeSelector"), dig(pod, *REQUIRED)]
    if not any(demands):
        return False
    return _remembered(
        nodes,
        demands,
        lambda: not any(admits(pod, text(node, "metadata", "name"), labels_of(node)) for node in nodes),
    )


def _remembered(nodes: Listing, question: list[object], work_out: Callable[[], V]) -> V:
    """An answer about nodes, kept for as long as no node changes. Questions of two functions differ."""
    answers = nodes.derive(_answers)
    key = json.dumps(question)
    found = answers.get(key)
    if found is None:
        found = (work_out(),)
        answers.put(key, found, len(key))
    return cast("V", found[0])


def _answers(nodes: Listing) -> Remembered[str, tuple[object]]:
    return Remembered()
