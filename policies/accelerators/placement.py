"""The nodes and declared pools that can take a pod with accelerators, or the reason why none can.

These are the scheduler's filters without temporary states: requests of other pods, cordons and unready nodes
do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import msgspec
from msgspec import Struct

from policies.accelerators.annotations import (
    Resolution,
    requested_memory,
    requested_products,
    resolve_memory,
    resolve_product,
)
from policies.accelerators.catalogue import Catalogue
from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.inventory import AcceleratorNode, Fleet
from policies.accelerators.requests import inventory_of, served_by_claims
from policies.accelerators.vendors import MIB
from policies.core.annotations import GPU_MEMORY, GPU_PRODUCT
from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.core.target import PodTemplate
from policies.kube.cache import Cache
from policies.kube.names import listed
from policies.kube.objects.devices import DeviceClass
from policies.kube.objects.nodes import Taint
from policies.kube.objects.pods import Pod, PodSpec
from policies.kube.scheduling import (
    admits,
    is_within_limits,
    matches,
    required_keys,
    required_terms,
    tolerates,
)

_MAX_CACHED: Final = 1024
"""Placements that are kept until a node changes."""
_MAX_KEY_LENGTH: Final = 4096
"""Bytes; a placement with a longer key is not kept."""

_LISTED: Final = 4
"""Names in a message."""


class Cause(Enum):
    """The part of a pod that excludes every node."""

    RESOURCES = "resources"
    PRODUCT = GPU_PRODUCT
    MEMORY = GPU_MEMORY
    SELECTOR = "selector"
    TAINTS = "taints"


class Obstacle(Struct, frozen=True):
    """Why no node can take the pod, and how to fix it."""

    cause: Cause
    message: str
    hint: str
    certain: bool = True
    """Whether the nodes and pools show no sign that it is temporary."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes that can take the pod when they are empty; if there are none, the obstacle."""

    requests: Mapping[str, int]
    nodes: tuple[AcceleratorNode, ...]
    obstacle: Obstacle | None = None
    cache: Cache = field(default_factory=Cache, init=False, repr=False, compare=False)

    @property
    def requested(self) -> str:
        """The requests in a sentence: `1 nvidia.com/gpu`."""
        return listed(f"{count} {resource}" for resource, count in self.requests.items())

    def competes_with(self, other: Placement) -> bool:
        """Whether pods of both request the same, and fit on the same nodes."""
        nodes, others = ({node.name for node in each.nodes} for each in (self, other))
        return self.requests == other.requests and nodes == others

    def room(self, *, one_each: bool) -> float:
        """The number of such pods that fit at the same time; infinite if a pool has no maximum."""
        return self.cache.once_for(one_each, Placement._room, self, one_each)

    def _room(self, one_each: bool) -> float:
        return sum(self._room_on(node, one_each) for node in self.nodes)

    def _room_on(self, node: AcceleratorNode, one_each: bool) -> float:
        fits = min(node.accelerators[resource] // count for resource, count in self.requests.items())
        fits = min(fits, 1) if one_each else fits
        if node.pool is None:
            return fits
        return fits * (float("inf") if node.pool.max_nodes is None else node.pool.max_nodes)


def placement(pod: PodView, facts: Facts) -> Placement | None:
    """The placement of a pod. None if it is undecided: the pod requests no accelerator, has a nodeName or too
    many node conditions, or no node with an accelerator is known."""
    return facts.pod_caches[pod].once(_placed, pod, facts)


def competing(
    counts: Iterable[tuple[PodTemplate, int]], facts: Facts
) -> list[tuple[PodTemplate, Placement, int]]:
    """The numbers of pods of templates that fit on some node. Pods that request the same and fit on the same
    nodes are counted together, at the first of their templates."""
    found: list[tuple[PodTemplate, Placement, int]] = []
    for template, pods in counts:
        placed = placement(template.view, facts)
        if placed is None or not placed.nodes or not pods:
            continue
        same = next((n for n, (_, each, _) in enumerate(found) if placed.competes_with(each)), None)
        if same is None:
            found.append((template, placed, pods))
        else:
            first, known, others = found[same]
            found[same] = (first, known, others + pods)
    return found


def _placed(pod: PodView, facts: Facts) -> Placement | None:
    settings, typed = facts.settings(GpuAffinity), pod.typed
    requests = settings.catalogue.requests(typed.spec)
    nodes = facts.nodes()
    if not requests or not nodes or typed.spec.node_name or not is_within_limits(typed.spec):
        return None
    if served_by_claims(requests, facts) or facts.is_unread(DeviceClass):
        return None  # nodes that do not advertise the resource can take the pod
    inventory = inventory_of(settings, facts)
    if not settings.fixed_size and not any(
        fleet.samples or fleet.idle_samples for fleet in inventory.fleets.values()
    ):
        return None  # these are other nodes, or examples in manifests
    key, known = _cache_key(typed, requests), inventory.cache.once(_no_placements)
    found = known.get(key)
    if found is None:
        found = _placement(typed, requests, _fleets(requests, settings.catalogue, inventory.fleets))
        if len(known) < _MAX_CACHED and len(key) < _MAX_KEY_LENGTH:
            known[key] = found
    return found


def _no_placements() -> dict[bytes, Placement]:
    return {}


def kept_apart(pod: Pod, topology_key: str, *, revisions: bool = False) -> bool:
    """Whether the pod's own anti-affinity allows one such pod in each domain of a topology. `revisions`: also
    for pods of two revisions of the workload, as during a rollout."""
    return topology_key in apart_in(pod, revisions=revisions)


def apart_in(pod: Pod, *, revisions: bool = False) -> list[str]:
    """The topology keys of `kept_apart`."""
    return [
        term.topology_key
        for term in pod.spec.affinity.pod_anti_affinity.required
        if term.label_selector is not None
        and term.label_selector.matches(pod.metadata.labels)
        and not (revisions and (term.match_label_keys or term.mismatch_label_keys))
    ]


def _cache_key(pod: Pod, requests: Mapping[str, int]) -> bytes:
    """The fields of a pod that decide its placement: equal for the pods of one workload."""
    annotations, spec = pod.metadata.annotations, pod.spec
    parts = (
        requests,
        [annotations.get(key) for key in (GPU_PRODUCT, GPU_MEMORY)],
        dict(spec.node_selector),
        spec.affinity.node_affinity.required,
        spec.tolerations,
    )
    return msgspec.json.encode(parts)


def _placement(pod: Pod, requests: Mapping[str, int], fleets: list[Fleet]) -> Placement:
    candidates = tuple({node.name: node for fleet in fleets for node in fleet.nodes}.values())
    for narrow in (_by_resources, _by_product, _by_memory, _by_selector, _by_taints):
        found = narrow(pod, requests, fleets, candidates)
        if isinstance(found, Obstacle):
            return Placement(requests, (), found)
        candidates = found
    return Placement(requests, candidates)


def _fleets(requests: Iterable[str], catalogue: Catalogue, known: Mapping[str, Fleet]) -> list[Fleet]:
    names = dict.fromkeys(catalogue.vendor_of(resource) for resource in requests)
    return [known[name] for name in names if name is not None and name in known]


Nodes = tuple[AcceleratorNode, ...]
Narrowed = Nodes | Obstacle


def _by_resources(pod: Pod, requests: Mapping[str, int], fleets: list[Fleet], nodes: Nodes) -> Narrowed:
    left = nodes
    for resource, count in requests.items():
        left = tuple([node for node in left if node.accelerators.get(resource, 0) >= count])
    if left:
        return left
    # A restarting device plugin reports nothing for a moment; the labels stay.
    certain = not any(fleet.idle_samples for fleet in fleets)
    for resource, count in requests.items():
        best = max(nodes, key=lambda node: node.accelerators.get(resource, 0), default=None)
        most = best.accelerators.get(resource, 0) if best else 0
        if best is None or not most:
            message = f"No node and no declared pool has {resource}."
            hint = "Request a resource that a node has, or declare the pool in gpu-affinity.yaml."
            return Obstacle(Cause.RESOURCES, message, hint, certain)
        if most < count:
            message = (
                f"The pod requests {count} {resource}, but the most that one node has is {most} "
                f"({best.name})."
            )
            hint = f"Request at most {most}, spread the work over several pods, or declare the larger pool."
            return Obstacle(Cause.RESOURCES, message, hint, certain)
    message = f"No node and no declared pool has {_listed(f'{n} {r}' for r, n in requests.items())} together."
    return Obstacle(Cause.RESOURCES, message, "Request only as much as one node has.", certain)


def _by_product(pod: Pod, requests: Mapping[str, int], fleets: list[Fleet], nodes: Nodes) -> Narrowed:
    globs = requested_products(pod.metadata.annotations)
    left, unmet = _fitting(nodes, (resolve_product(fleet, globs) for fleet in fleets if globs))
    if unmet is None:
        return left
    requested = _listed(f"{count} {resource}" for resource, count in requests.items())
    message = f"No node and no declared pool with {requested} has a product that matches {_listed(globs)}."
    hint = f"Choose one of {_listed(unmet.present)}, or declare the pool in gpu-affinity.yaml."
    return Obstacle(Cause.PRODUCT, message, hint)


def _fitting(nodes: Nodes, resolutions: Iterable[Resolution]) -> tuple[Nodes, Resolution | None]:
    """The nodes that fulfil all resolutions; or none, and the first resolution that excludes the last
    node."""
    for each in resolutions:
        if each.alternatives:  # else no node has the label, and the annotation has no effect
            nodes = tuple(node for node in nodes if each.fits(node.described))
            if not nodes:
                return (), each
    return nodes, None


def _by_memory(pod: Pod, requests: Mapping[str, int], fleets: list[Fleet], nodes: Nodes) -> Narrowed:
    try:
        bound = requested_memory(pod.metadata.annotations)
    except ValueError:
        bound = None
    if bound is None:
        return nodes
    left, unmet = _fitting(nodes, (resolve_memory(fleet, bound) for fleet in fleets))
    if unmet is None:
        return left
    amount = f"{bound.operator}{bound.amount // MIB}Mi"
    message = f"None of the other nodes and declared pools has accelerators with {amount} of memory."
    hint = f"Nodes have {_listed(unmet.present)}. A card sold as 40 GB reports less than 40Gi, so use 40G."
    return Obstacle(Cause.MEMORY, message, hint)


def _by_selector(pod: Pod, requests: Mapping[str, int], fleets: list[Fleet], nodes: Nodes) -> Narrowed:
    left = tuple(_admitted(pod.spec, nodes))
    if left:
        return left
    requested = _listed(f"{count} {resource}" for resource, count in requests.items())
    unmet = _listed(_unmet(pod.spec, nodes))
    what = f"has {unmet}" if unmet else "fits its node selector and required node affinity together"
    message = f"None of the {len(nodes)} nodes and pools with {requested} {what}."
    hint = "Correct the node selector or affinity, or declare the pool in gpu-affinity.yaml."
    return Obstacle(Cause.SELECTOR, message, hint)


def _admitted(pod: PodSpec, nodes: Nodes) -> Iterator[AcceleratorNode]:
    """The nodes that the pod's selector and affinity admit. Nodes with the same values of the selected keys
    are compared once, since a cluster may have thousands."""
    keys = tuple(required_keys(pod))
    by_name = any(term.match_fields for term in required_terms(pod))
    known: dict[object, bool] = {}
    if not keys and not by_name and admits(pod, "", {}):
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


def _unmet(pod: PodSpec, nodes: Nodes) -> Iterator[str]:
    """The conditions that no node fulfils, each by itself."""
    for key, value in pod.node_selector.items():
        if not any(node.described.get(key) == value for node in nodes):
            yield f"{key}={value}"
    terms = required_terms(pod)
    for expression in terms[0].match_expressions if len(terms) == 1 else ():
        if not any(matches(expression, node.described) for node in nodes):
            yield f"{expression.key} {expression.operator} {','.join(expression.values)}".rstrip()


def _by_taints(pod: Pod, requests: Mapping[str, int], fleets: list[Fleet], nodes: Nodes) -> Narrowed:
    own = {taint.key for fleet in fleets for taint in fleet.vendor.taints}  # gpu-affinity tolerates these
    left, names = [], dict[str, None]()
    known = Cache()  # the nodes of a pool have the same taints
    for node in nodes:
        taints = [
            taint
            for taint in node.lasting_taints
            if taint.key not in own and not known.once_for(taint, tolerates, pod.spec, taint)
        ]
        if taints:
            names[_named(taints[0])] = None
        else:
            left.append(node)
    if left:
        return tuple(left)
    message = (
        f"Every node that could run the pod has a taint that the pod doesn't tolerate: {_listed(names)}."
    )
    hint = "Tolerate the taint if these nodes are meant for the pod."
    return Obstacle(Cause.TAINTS, message, hint, certain=False)


def _named(taint: Taint) -> str:
    return f"{taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}"


def _listed(names: Iterable[str]) -> str:
    return listed(names, _LISTED)
