"""The vendors and pools of one configuration, and what pods and nodes have of their accelerators.

Law: pods are required only to have properties that nodes or declared pools show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Final

from msgspec import Struct

from policies.accelerators.inventory import AcceleratorNode, Fleet, Inventory, NodeClass, cover_of, taints_of
from policies.accelerators.vendors import GIB, MIB, MemoryUnit, Pool, Vendor
from policies.core.listing import Groups, Index, Listing
from policies.kube.json import Json
from policies.kube.objects.metadata import Quantity
from policies.kube.objects.nodes import Node as ClusterNode
from policies.kube.objects.nodes import Taint
from policies.kube.objects.pods import PodSpec, ResourceRequirements
from policies.kube.objects.reading import read
from policies.kube.quantities import MAX_CHARACTERS, parse_quantity

_MAX_RESOURCE_LENGTH: Final = 317
"""Characters of the name of an extended resource: a domain of 253, a slash, a name of 63."""


class _Reading(Struct, frozen=True):
    """A node as read from the cluster."""

    node: AcceleratorNode
    node_class: NodeClass
    vendors: tuple[tuple[str, bool], ...]
    """Its vendors, each with whether it offers their accelerators or only has their labels."""


_Key = tuple[str, bool, NodeClass]
"""A vendor, whether a node offers its accelerators, and the class of the node."""
_MAX_STALE: Final = 1000
"""Readings of changed and deleted nodes that are kept."""


@dataclass(eq=False)
class Catalogue:
    """The vendors and pools of one configuration. Compared by identity, as a part of the keys of caches."""

    vendors: Mapping[str, Vendor]
    pools: tuple[Pool, ...]
    autoscaler_labels: tuple[str, ...]
    _vendor_of: dict[str, str | None] = field(default_factory=dict, repr=False)
    _readings: dict[int, tuple[Json, _Reading]] = field(default_factory=dict, repr=False)

    def vendor_of(self, resource: str) -> str | None:
        """The name of the vendor of an extended resource; None if it is not an accelerator."""
        if "/" not in resource or len(resource) > _MAX_RESOURCE_LENGTH:
            return None
        if resource not in self._vendor_of:
            # The names come from users.
            if len(self._vendor_of) > 1000:
                self._vendor_of.clear()
            self._vendor_of[resource] = next(
                (
                    name
                    for name, vendor in self.vendors.items()
                    if any(fnmatchcase(resource, glob) for glob in vendor.resources)
                ),
                None,
            )
        return self._vendor_of[resource]

    def requests(self, pod: PodSpec) -> dict[str, int]:
        """The number of accelerators that a pod requests, by resource, as the scheduler counts them.

        It is the maximum of all main containers with all sidecars, and of each init container with the
        sidecars before it (`PodRequests` in `k8s.io/component-helpers/resource`).
        """
        main: dict[str, int] = {}
        sidecars: dict[str, int] = {}
        peak: dict[str, int] = {}
        for container in pod.containers:
            _add(main, self.requests_of(container.resources))
        for container in pod.init_containers:
            requested = self.requests_of(container.resources)
            if container.is_sidecar:
                _add(sidecars, requested)
                continue
            for resource, count in requested.items():
                peak[resource] = max(peak.get(resource, 0), count + sidecars.get(resource, 0))
        if not sidecars and not peak:
            return main
        names = dict.fromkeys((*main, *sidecars, *peak))
        return {name: max(main.get(name, 0) + sidecars.get(name, 0), peak.get(name, 0)) for name in names}

    def requests_of(self, resources: ResourceRequirements) -> dict[str, int]:
        """The number of accelerators that a container requests, by resource."""
        # The API server copies limits of extended resources into requests; a file may lack either.
        given = {**resources.limits, **resources.requests}
        counts = {name: whole_quantity(value) for name, value in given.items() if self.vendor_of(name)}
        return {name: count for name, count in counts.items() if count > 0}

    @cached_property
    def _by_class(self) -> Index[_Key]:
        """The nodes by vendor and class."""
        return Index(self._keys_of)

    def _keys_of(self, obj: Json) -> Iterator[_Key]:
        reading = self._read(obj)
        yield from ((name, offers, reading.node_class) for name, offers in reading.vendors)

    def inventory(self, listing: Listing) -> Inventory:
        """The inventory of a cluster's nodes: the same object until a node with accelerators changes."""
        groups = listing.by(self._by_class)
        return groups.derived(lambda: self._inventory_of(groups))

    def _inventory_of(self, groups: Groups[_Key]) -> Inventory:
        # Copies, since the next listing inherits the groups.
        found = {key: tuple(groups[key]) for key in groups}
        if len(self._readings) > 2 * sum(map(len, found.values())) + _MAX_STALE:
            present = {id(obj): obj for objects in found.values() for obj in objects}
            self._readings = {key: (obj, self._read(obj)) for key, obj in present.items()}
        return self._inventory(found, nodes_known=True)

    @cached_property
    def declared(self) -> Inventory:
        """The inventory of the pools, for unknown nodes."""
        return self._inventory({}, nodes_known=False)

    def _inventory(self, found: Mapping[_Key, tuple[Json, ...]], *, nodes_known: bool) -> Inventory:
        pools: dict[str, list[AcceleratorNode]] = {}
        for pool in self.pools:
            for vendor, node in self._pool_nodes(pool):
                pools.setdefault(vendor, []).append(node)
        present = {*pools, *(name for name, _, _ in found)}
        fleets = {
            name: self._fleet(name, found, tuple(pools.get(name, ())))
            for name in self.vendors
            if name in present
        }
        return Inventory(fleets, nodes_known)

    def _read(self, obj: Json) -> _Reading:
        """A node; cached if it has a vendor, so that after a change of one of 5,000 nodes one is read."""
        known = self._readings.get(id(obj))
        if known is None or known[0] is not obj:
            known = (obj, self._reading(obj))
            if known[1].vendors:
                self._readings[id(obj)] = known
        return known[1]

    def _reading(self, obj: Json) -> _Reading:
        found = read(obj, ClusterNode)
        labels, accelerators = found.metadata.labels, self._offered(found.status.allocatable)
        node = AcceleratorNode(found.name, labels, found.spec.taints, accelerators)
        offered = {self.vendor_of(resource) for resource in accelerators}
        offering = [(name, True) for name in self.vendors if name in offered]
        labelled = [(name, False) for name in self._labelled(labels) if name not in offered]
        return _Reading(node, self._class_of(node), (*offering, *labelled))

    def _class_of(self, node: AcceleratorNode) -> NodeClass:
        labels = {key: "" for key in self.autoscaler_labels if key in node.labels}
        labels |= {key: node.labels[key] for key in self._vendor_keys if key in node.labels}
        return NodeClass(tuple(sorted(labels.items())), taints_of(node.taints))

    @cached_property
    def _vendor_keys(self) -> frozenset[str]:
        """All label keys of vendors."""
        return frozenset().union(*(vendor.own_keys for vendor in self.vendors.values()))

    @cached_property
    def _label_keys(self) -> frozenset[str]:
        return frozenset(label.key for vendor in self.vendors.values() for label in vendor.labels)

    def _labelled(self, labels: Mapping[str, str]) -> list[str]:
        """The vendors whose labels a node has."""
        if labels.keys().isdisjoint(self._label_keys):
            return []  # a fast answer for most of 5,000 nodes
        return [
            name for name, vendor in self.vendors.items() if any(label.on(labels) for label in vendor.labels)
        ]

    def _offered(self, allocatable: Mapping[str, Quantity]) -> dict[str, int]:
        offered = {
            name: whole_quantity(amount)
            for name, amount in allocatable.items()
            if "/" in name and self.vendor_of(name) is not None
        }
        return {name: count for name, count in offered.items() if count > 0}

    def _pool_nodes(self, pool: Pool) -> Iterator[tuple[str, AcceleratorNode]]:
        """The future node of a pool, for each vendor of its accelerators."""
        vendors = {self.vendor_of(resource) for resource in pool.accelerators}
        name = f"pool {pool.name}"
        taints = tuple(
            Taint(key=taint.key, value=taint.value, effect=taint.effect.value) for taint in pool.taints
        )
        for key, vendor in self.vendors.items():
            if key in vendors:
                promised = _promised(vendor, pool)
                yield key, AcceleratorNode(name, pool.labels, taints, pool.accelerators, pool, promised)

    def _fleet(
        self, name: str, found: Mapping[_Key, tuple[Json, ...]], pools: tuple[AcceleratorNode, ...]
    ) -> Fleet:
        vendor = self.vendors[name]
        offering = {key[2]: objects for key, objects in found.items() if key[:2] == (name, True)}
        idle = {key[2]: objects for key, objects in found.items() if key[:2] == (name, False)}

        def members() -> tuple[tuple[AcceleratorNode, ...], tuple[AcceleratorNode, ...]]:
            return (*self._nodes(offering.values()), *pools), self._nodes(idle.values())

        samples = (*(each.sample() for each in sorted(offering)), *pools)
        cover, uncovered = cover_of(vendor.labels, [*samples])
        certain = [label for label in cover if not label.agent]
        requirable = not uncovered and all(
            any(label.on(node.labels) for label in certain) or not self._autoscaled(node) for node in samples
        )
        idle_samples = tuple(each.sample() for each in sorted(idle))
        return Fleet(vendor, samples, idle_samples, () if uncovered else cover, requirable, members)

    def _nodes(self, found: Iterable[Iterable[Json]]) -> tuple[AcceleratorNode, ...]:
        """The nodes by name, so that the order of changes has no effect."""
        nodes = (self._read(obj).node for objects in found for obj in objects)
        return tuple(sorted(nodes, key=lambda node: node.name))

    def _autoscaled(self, node: AcceleratorNode) -> bool:
        return node.pool is None and not node.labels.keys().isdisjoint(self.autoscaler_labels)


def _promised(vendor: Vendor, pool: Pool) -> dict[str, str]:
    """The vendor's own labels that follow from a pool's product and memory."""
    labels = {}
    if pool.product is not None and vendor.product_labels:
        labels[vendor.product_labels[-1]] = pool.product
    if pool.memory is not None and vendor.memory_labels:
        label = vendor.memory_labels[-1]
        plain = label.unit is MemoryUnit.MIB
        # AMD's labeller rounds to whole GiB.
        labels[label.key] = str(pool.memory // MIB) if plain else f"{round(pool.memory / GIB)}G"
    return labels


def _add(total: dict[str, int], requested: Mapping[str, int]) -> None:
    for resource, count in requested.items():
        total[resource] = total.get(resource, 0) + count


_MOST: Final = 2**63 - 1
"""The kubelet and the scheduler count devices in 64 bits."""


def whole_quantity(value: object) -> int:
    """The quantity of an extended resource, an integer; 0 for other values."""
    if type(value) is str and value.isascii() and value.isdigit() and len(value) <= MAX_CHARACTERS:
        return min(int(value), _MOST)
    try:
        return min(int(parse_quantity(value)), _MOST)
    except (ValueError, OverflowError):
        return 0
