"""Which nodes, or nodes of declared pools, could ever take a pod with accelerators; or the obstacle.

The scheduler's filters as far as they last: what other pods hold, a cordon, a node that is not
ready pass, and so are no obstacle here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from policies.accelerators.annotations import (
    Resolution,
    resolve_memory,
    resolve_product,
    wanted_memory,
    wanted_products,
)
from policies.accelerators.inventory import Fleet, Node
from policies.accelerators.node_affinity import (
    REQUIRED,
    TERMS,
    admits,
    is_within_limits,
    matches,
    required_keys,
    tolerates,
)
from policies.accelerators.requests import MIB, Catalogue, GpuAffinity, inventory_of, served_by_claims
from policies.core.annotations import GPU_MEMORY, GPU_PRODUCT
from policies.core.facts import Facts
from policies.kube.cache import Cache
from policies.kube.json import Json, dig, mapping, maps, strings, text
from policies.kube.metadata import annotations_of, labels_of
from policies.kube.selectors import matches as selector_matches

_MOST_CACHED: Final = 1024
"""Placements that are kept until a node changes."""
_LONGEST_KEY: Final = 4096
"""Bytes; a placement with a longer key is not kept."""

_SHOWN: Final = 4
"""Names that a message lists."""


class Place(Enum):
    """The part of a pod that keeps it from every node."""

    RESOURCES = "resources"
    PRODUCT = GPU_PRODUCT
    MEMORY = GPU_MEMORY
    SELECTOR = "selector"
    TAINTS = "taints"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why no node takes the pod: a sentence, and one how to mend it."""

    place: Place
    message: str
    hint: str
    certain: bool = True
    """Whether it lasts, as far as the nodes and pools show."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes that could take the pod if they were empty; with none, the obstacle."""

    requests: Mapping[str, int]
    nodes: tuple[Node, ...]
    obstacle: Obstacle | None = None
    cache: Cache = field(default_factory=Cache, init=False, repr=False, compare=False)
    """Values that depend on these nodes only: a placement is kept until a node changes."""

    def room(self, *, one_each: bool) -> float:
        """How many such pods there is room for at once; infinite where a pool may grow without limit."""
        return self.cache.once_for(one_each, Placement._room, self, one_each)

    def _room(self, one_each: bool) -> float:
        return sum(self._room_on(node, one_each) for node in self.nodes)

    def _room_on(self, node: Node, one_each: bool) -> float:
        fits = min(node.accelerators[resource] // count for resource, count in self.requests.items())
        fits = min(fits, 1) if one_each else fits
        if node.pool is None:
            return fits
        return fits * (float("inf") if node.pool.max_nodes is None else node.pool.max_nodes)


def placement(pod: Json, facts: Facts) -> Placement | None:
    """Where a pod could run. None if that is undecided: the pod asks for no accelerator, is bound to a node,
    demands more of its nodes than can be evaluated, or no node with an accelerator is known."""
    return facts.pod_cache(pod).once(_placed, pod, facts)


def _placed(pod: Json, facts: Facts) -> Placement | None:
    settings = facts.settings(GpuAffinity)
    requests = settings.catalogue.requests(pod)
    nodes = facts.nodes()
    if not requests or not nodes or text(pod, "spec", "nodeName") or not is_within_limits(pod):
        return None
    if served_by_claims(requests, facts):
        return None  # nodes that do not advertise the resource may take the pod
    inventory = inventory_of(settings, facts)
    if not settings.fixed_size and not any(
        fleet.likenesses or fleet.barren_likenesses for fleet in inventory.fleets.values()
    ):
        return None  # these nodes belong to another part of the cluster, or are an example among manifests
    key, known = _cache_key(pod, requests), inventory.cache.once(_no_placements)
    found = known.get(key)
    if found is None:
        found = _placement(pod, requests, _fleets(requests, settings.catalogue, inventory.fleets))
        if len(known) < _MOST_CACHED and len(key) < _LONGEST_KEY:
            known[key] = found
    return found


def _no_placements() -> dict[bytes, Placement]:
    """Where the placements in an inventory are kept."""
    return {}


def kept_apart(pod: Json, topology_key: str, *, revisions: bool = False) -> bool:
    """Whether the pod's own anti-affinity allows one of its kind in each domain of a topology.

    `revisions`: whether that holds for pods of two revisions of the workload too, as during a rollout.
    """
    return topology_key in apart_in(pod, revisions=revisions)


def apart_in(pod: Json, *, revisions: bool = False) -> list[str]:
    """The topology keys of which each domain takes one pod of its kind."""
    path = ("spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    return [
        text(term, "topologyKey")
        for term in maps(pod, *path)
        if selector_matches(term.get("labelSelector"), labels_of(pod))
        and not (revisions and (term.get("matchLabelKeys") or term.get("mismatchLabelKeys")))
    ]


def _cache_key(pod: Json, requests: Mapping[str, int]) -> bytes:
    """The fields of a pod that decide its placement: equal for the pods of one workload."""
    annotations, spec = annotations_of(pod), mapping(pod, "spec")
    parts = (
        requests,
        [annotations.get(key) for key in (GPU_PRODUCT, GPU_MEMORY)],
        spec.get("nodeSelector"),
        dig(pod, *REQUIRED),
        spec.get("tolerations"),
    )
    return json.dumps(parts).encode()


def _placement(pod: Json, requests: Mapping[str, int], fleets: list[Fleet]) -> Placement:
    candidates = tuple({node.name: node for fleet in fleets for node in fleet.nodes}.values())
    for narrow in (_by_resources, _by_product, _by_memory, _by_selector, _by_taints):
        left, obstacle = narrow(pod, requests, fleets, candidates)
        if obstacle is not None:
            return Placement(requests, (), obstacle)
        candidates = left
    return Placement(requests, candidates)


def _fleets(requests: Iterable[str], catalogue: Catalogue, known: Mapping[str, Fleet]) -> list[Fleet]:
    names = dict.fromkeys(catalogue.vendor_of(resource) for resource in requests)
    return [known[name] for name in names if name is not None and name in known]


Nodes = tuple[Node, ...]
Narrowed = tuple[Nodes, Obstacle | None]


def _by_resources(pod: Json, requests: Mapping[str, int], fleets: list[Fleet], nodes: Nodes) -> Narrowed:
    left = nodes
    for resource, count in requests.items():
        left = tuple([node for node in left if node.accelerators.get(resource, 0) >= count])
    if left:
        return left, None
    # A device plugin that restarts reports nothing for a moment; the labels stay.
    certain = not any(fleet.barren_likenesses for fleet in fleets)
    for resource, count in requests.items():
        best = max(nodes, key=lambda node: node.accelerators.get(resource, 0), default=None)
        most = best.accelerators.get(resource, 0) if best else 0
        if best is None or not most:
            message = f"No node and no declared pool has {resource}."
            hint = "Ask for a resource that a node has, or declare the pool in gpu-affinity.yaml."
            return (), Obstacle(Place.RESOURCES, message, hint, certain)
        if most < count:
            message = (
                f"The pod asks for {count} {resource}, and the most that one node has is {most} "
                f"({best.name})."
            )
            hint = f"Ask for at most {most}, spread the work over several pods, or declare the larger pool."
            return (), Obstacle(Place.RESOURCES, message, hint, certain)
    message = f"No node and no declared pool has {_listed(f'{n} {r}' for r, n in requests.items())} together."
    return (), Obstacle(Place.RESOURCES, message, "Request only as much as one node has.", certain)


def _by_product(pod: Json, requests: Mapping[str, int], fleets: list[Fleet], nodes: Nodes) -> Narrowed:
    globs = wanted_products(pod)
    left, unmet = _fitting(nodes, (resolve_product(fleet, globs) for fleet in fleets if globs))
    if unmet is None:
        return left, None
    asked = _listed(f"{count} {resource}" for resource, count in requests.items())
    message = f"No node and no declared pool with {asked} has a product that matches {_listed(globs)}."
    hint = f"Choose among {_listed(unmet.present)}, or declare the pool in gpu-affinity.yaml."
    return (), Obstacle(Place.PRODUCT, message, hint)


def _fitting(nodes: Nodes, wanted: Iterable[Resolution]) -> tuple[Nodes, Resolution | None]:
    """The nodes that fulfil all of these; none, and the first that none of those left fulfils."""
    for each in wanted:
        if each.alternatives:  # else no node shows it: the annotation is not followed
            nodes = tuple(node for node in nodes if each.fits(node.described))
            if not nodes:
                return (), each
    return nodes, None


def _by_memory(pod: Json, requests: Mapping[str, int], fleets: list[Fleet], nodes: Nodes) -> Narrowed:
    try:
        bound = wanted_memory(pod)
    except ValueError:
        bound = None
    if bound is None:
        return nodes, None
    left, unmet = _fitting(nodes, (resolve_memory(fleet, bound) for fleet in fleets))
    if unmet is None:
        return left, None
    amount = f"{bound.operator}{bound.amount // MIB}Mi"
    message = f"None of the other nodes and declared pools has accelerators with {amount} of memory."
    hint = f"Nodes have {_listed(unmet.present)}. A card sold as 40 GB reports less than 40Gi, so write 40G."
    return (), Obstacle(Place.MEMORY, message, hint)


def _by_selector(pod: Json, requests: Mapping[str, int], fleets: list[Fleet], nodes: Nodes) -> Narrowed:
    left = tuple(_admitted(pod, nodes))
    if left:
        return left, None
    asked = _listed(f"{count} {resource}" for resource, count in requests.items())
    blamed = list(_unmet(pod, nodes))
    what = (
        f"has {_listed(blamed)}" if blamed else "fits its node selector and required node affinity together"
    )
    message = f"None of the {len(nodes)} nodes and pools with {asked} {what}."
    hint = "Correct the node selector or affinity, or declare the pool in gpu-affinity.yaml."
    return (), Obstacle(Place.SELECTOR, message, hint)


def _admitted(pod: Json, nodes: Nodes) -> Iterator[Node]:
    """The nodes that the pod's selector and affinity let it onto; nodes that look the same to them are
    judged once, for a cluster may have thousands."""
    keys = tuple(required_keys(pod))
    by_name = any(maps(term, "matchFields") for term in maps(pod, *TERMS))
    known: dict[object, bool] = {}
    if not keys and not by_name and admits(pod, "", {}):  # it demands nothing
        yield from nodes
        return
    for node in nodes:
        labels = node.described
        partial = node.pool is not None
        properties = (partial, node.name if by_name else "", *(repr(labels.get(key)) for key in keys))
        if properties not in known:
            known[properties] = admits(pod, node.name, labels, partial=partial)
        if known[properties]:
            yield node


def _unmet(pod: Json, nodes: Nodes) -> Iterator[str]:
    """The demands that no node meets, each by itself."""
    for key, value in mapping(pod, "spec", "nodeSelector").items():
        if not any(node.described.get(key) == value for node in nodes):
            yield f"{key}={value}"
    terms = maps(pod, *TERMS) if dig(pod, *REQUIRED) is not None else []
    for expression in maps(terms[0], "matchExpressions") if len(terms) == 1 else ():
        if not any(matches(expression, node.described) for node in nodes):
            values = ",".join(strings(expression, "values"))
            yield f"{text(expression, 'key')} {text(expression, 'operator')} {values}".rstrip()


def _by_taints(pod: Json, requests: Mapping[str, int], fleets: list[Fleet], nodes: Nodes) -> Narrowed:
    own = {taint.key for fleet in fleets for taint in fleet.vendor.taints}  # gpu-affinity tolerates these
    left, borne = [], {}
    known: dict[str, bool] = {}  # the nodes of a pool bear the same taints

    def is_tolerated(taint: Json) -> bool:
        name = _named(taint)
        if name not in known:
            known[name] = tolerates(pod, taint)
        return known[name]

    for node in nodes:
        taints = [t for t in node.lasting_taints if text(t, "key") not in own and not is_tolerated(t)]
        if taints:
            borne[_named(taints[0])] = node.name
        else:
            left.append(node)
    if left:
        return tuple(left), None
    message = f"Every node that could run the pod has a taint that it does not tolerate: {_listed(borne)}."
    return (), Obstacle(
        Place.TAINTS, message, "Tolerate the taint, if these nodes are meant for it.", certain=False
    )


def _named(taint: Json) -> str:
    value = text(taint, "value")
    return f"{text(taint, 'key')}{'=' if value else ''}{value}:{text(taint, 'effect')}"


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
