"""The number of pods of a workload that fit at once if each node or zone takes a limited number: required
anti-affinity, host ports, topology spread with DoNotSchedule.

Only permanent filters of the scheduler count. Other pods, cordons and nodes that are not ready are temporary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Final, TypeVar, cast

import msgspec
from msgspec import Struct

from policies.accelerators.placement import Placement, apart_in
from policies.core.facts import is_virtual
from policies.core.listing import Listing
from policies.core.target import PodTemplate
from policies.kube.cache import BoundedCache
from policies.kube.objects.nodes import HOSTNAME, Node, Taint
from policies.kube.objects.pods import PodSpec
from policies.kube.pods import Role
from policies.kube.scheduling import admits, required_terms, untolerated
from policies.rollouts.rollouts import host_ports

V = TypeVar("V")

MAX_NODES: Final = 2_000
"""Larger clusters are not judged: each node is compared with the pod."""
_MAX_LIMITS: Final = 8
_IGNORE: Final = "Ignore"


class DomainCause(Enum):
    APART = "anti-affinity"
    PORT = "a port of the node"
    SPREAD = "topology spread"


class Limit(Struct, frozen=True):
    """The maximum number of pods of a workload in each domain of a topology."""

    cause: DomainCause
    key: str
    """The node label that names the domain."""
    path: str
    per_domain: int = 1
    across_revisions: bool = True
    """Whether pods of two revisions count together, as during a rollout."""
    min_domains: int = 1
    """minDomains of a spread: with fewer domains, each takes at most `per_domain` pods."""
    ignores_selector: bool = False
    """Whether nodes that the pod does not select count as domains of a spread."""
    ignores_taints: bool = True
    """Whether nodes whose taints the pod does not tolerate count as domains of a spread."""


def limits_of(template: PodTemplate) -> list[Limit]:
    """The limits of a pod, the certain ones first; empty if there are too many to judge."""
    found = list(_limits(template))
    return found if len(found) <= _MAX_LIMITS else []


def _limits(template: PodTemplate) -> Iterator[Limit]:
    path = f"{template.spec_path}.affinity.podAntiAffinity"
    pod = template.typed
    across_revisions = apart_in(pod, revisions=True)
    for key in dict.fromkeys(apart_in(pod)):
        yield Limit(DomainCause.APART, key, path, across_revisions=key in across_revisions)
    for container in template.containers(Role.MAIN, Role.SIDECAR):
        for index in host_ports(pod.spec, container.typed):
            yield Limit(DomainCause.PORT, HOSTNAME, template.at(container, f"ports[{index}]"))
            break
    for index, spread in enumerate(pod.spec.topology_spread_constraints):
        selector = spread.label_selector
        if (
            spread.when_unsatisfiable != "ScheduleAnyway"
            and selector is not None
            and selector.matches(pod.metadata.labels)
        ):
            yield Limit(
                DomainCause.SPREAD,
                spread.topology_key,
                f"{template.spec_path}.topologySpreadConstraints[{index}]",
                max(1, spread.max_skew),
                not spread.match_label_keys,
                spread.min_domains,
                spread.node_affinity_policy == _IGNORE,
                spread.node_taints_policy != "Honor",
            )


class Domains(Struct, frozen=True):
    """The number of domains of a topology."""

    usable: int
    """Domains that can take a pod."""
    unusable: int
    """Domains that cannot, although the scheduler counts them in a spread."""
    lacking: str = ""
    """The accelerators that some of these lack, if the pod requests any: `1 nvidia.com/gpu`."""

    def room(self, limit: Limit) -> float:
        """The number of pods that fit at once; infinite without a limit.

        A spread compares each domain with the one that has the fewest pods. It limits the total only if that
        domain never gets a pod (`podtopologyspread/filtering.go` of the scheduler).
        """
        if limit.cause is DomainCause.SPREAD and not self.unusable and self.usable >= limit.min_domains:
            return float("inf")
        return limit.per_domain * self.usable


def domains(pod: PodSpec, limit: Limit, nodes: Listing) -> Domains | None:
    """The domains of a limit; None if a node can take any number of pods."""
    fields = [dict(pod.node_selector), required_terms(pod), pod.tolerations]
    key = [*fields, limit.cause.value, limit.key, limit.ignores_selector, limit.ignores_taints]
    return _cached(nodes, key, lambda: _count(pod, limit, nodes))


def with_accelerators(found: Domains, limit: Limit, placed: Placement) -> Domains | None:
    """The domains of a limit for a pod with accelerators, which some nodes lack.

    None if a pool may add nodes that have them, if all domains of a spread have them, or if
    `rollout-gpu-deadlock` counts the nodes: those of pods that must be on different ones.
    """
    if any(node.pool is not None for node in placed.nodes):
        return None
    if limit.cause is DomainCause.APART and limit.key == HOSTNAME:
        return None
    usable = {_domain_of(node.name, node.labels, limit) for node in placed.nodes} - {""}
    if limit.cause is not DomainCause.SPREAD:
        return Domains(len(usable), 0)
    without = found.usable - len(usable)
    if without <= 0:
        return None
    return Domains(len(usable), found.unusable + without, placed.requested)


def _domain_of(name: str, labels: Mapping[str, str], limit: Limit) -> str:
    """The domain of a node; empty if it is in none."""
    return labels.get(limit.key) or (name if limit.key == HOSTNAME else "")


def _count(pod: PodSpec, limit: Limit, nodes: Listing) -> Domains | None:
    usable: set[str] = set()
    counted: set[str] = set()
    spread = limit.cause is DomainCause.SPREAD
    for node in nodes.objects(Node):
        labels = node.metadata.labels
        domain = _domain_of(node.name, labels, limit)
        if spread and not domain:
            continue  # the scheduler places no pod of a spread there
        selected = admits(pod, node.name, labels)
        if not selected and not (spread and limit.ignores_selector):
            continue
        tolerated = untolerated(pod, node.spec.taints) is None
        if tolerated and selected:
            if not domain or is_virtual(node):
                # Anti-affinity has no effect on a node without the label; a virtual node takes many pods.
                return None
            usable.add(domain)
        elif tolerated or limit.ignores_taints:
            counted.add(domain)
    return Domains(len(usable), len(counted - usable))


def matches_no_node(pod: PodSpec, nodes: Listing) -> bool:
    """Whether the node selector or required node affinity of a pod matches no node."""
    required = pod.affinity.node_affinity.required
    if not pod.node_selector and required is None:
        return False

    def matches_none() -> bool:
        return not any(admits(pod, node.name, node.metadata.labels) for node in nodes.objects(Node))

    return _cached(nodes, [dict(pod.node_selector), required], matches_none)


def taint_of_matching(pod: PodSpec, nodes: Listing) -> tuple[str, Taint] | None:
    """The name of a node and its taint, if a pod with a node selector or required node affinity tolerates no
    node that matches; else None."""
    if not pod.node_selector and pod.affinity.node_affinity.required is None:
        return None

    def first_taint() -> tuple[str, Taint] | None:
        found = None
        for node in nodes.objects(Node):
            if admits(pod, node.name, node.metadata.labels):
                taint = untolerated(pod, node.spec.taints)
                if taint is None:
                    return None
                found = found or (node.name, taint)
        return found

    key: list[object] = [dict(pod.node_selector), pod.affinity.node_affinity.required, pod.tolerations]
    return _cached(nodes, key, first_taint)


def _cached(nodes: Listing, key: list[object], compute: Callable[[], V]) -> V:
    """A result about nodes, kept until a node changes. The keys of two functions differ in length."""
    cache, encoded = nodes.derive(_cache), msgspec.json.encode(key)
    found = cache.get(encoded)
    if found is None:
        found = (compute(),)
        cache.put(encoded, found, len(encoded))
    return cast("V", found[0])


def _cache(nodes: Listing) -> BoundedCache[bytes, tuple[object]]:
    return BoundedCache()
