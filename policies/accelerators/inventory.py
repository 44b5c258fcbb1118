"""The nodes with accelerators, by vendor and by the labels and taints that pods select them by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from msgspec import Struct

from policies.accelerators.vendors import NodeLabel, Pool, Vendor
from policies.kube.cache import Cache
from policies.kube.objects.nodes import HOSTNAME, Taint
from policies.kube.scheduling import lasting

MAX_HOSTNAMES: Final = 20
"""The most accelerator nodes without a vendor's label that are listed by name."""


@dataclass(frozen=True, slots=True)
class AcceleratorNode:
    """A node with accelerators, or a future node of a declared pool."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    accelerators: Mapping[str, int]
    """The allocatable number of each resource, used or not."""
    pool: Pool | None = None
    promised: Mapping[str, str] = field(default_factory=dict)
    """Labels that the running nodes of a pool will have, from its product and memory."""
    lasting_taints: tuple[Taint, ...] = field(init=False, repr=False, compare=False)
    """The taints without those of a temporary state, such as a cordon."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "lasting_taints", lasting(self.taints))

    @property
    def described(self) -> Mapping[str, str]:
        return {**self.promised, **self.labels} if self.promised else self.labels


Taints = tuple[tuple[str, str, str], ...]
"""Key, value and effect of each taint, which can be sorted."""


def taints_of(taints: Iterable[Taint]) -> Taints:
    return tuple((taint.key, taint.value, taint.effect) for taint in taints)


def _as_taints(taints: Iterable[tuple[str, str, str]]) -> tuple[Taint, ...]:
    return tuple(Taint(key=key, value=value, effect=effect) for key, value, effect in taints)


class NodeClass(NamedTuple):
    """The properties of a node that decide which pods it can take; thousands of nodes have few classes."""

    labels: tuple[tuple[str, str], ...]
    """The labels of vendors, and the keys of autoscalers' labels."""
    taints: Taints

    def sample(self) -> AcceleratorNode:
        """A node of this class, without name and accelerators."""
        return AcceleratorNode("", dict(self.labels), _as_taints(self.taints), {})


@dataclass(frozen=True)
class Fleet:
    """The nodes of one vendor. Decisions that use samples cost the same for ten nodes as for ten thousand;
    the nodes are sorted at first use."""

    vendor: Vendor
    samples: tuple[AcceleratorNode, ...]
    """A node of each class in `nodes`, and the pools."""
    idle_samples: tuple[AcceleratorNode, ...]
    """A node of each class in `idle`."""
    cover: tuple[NodeLabel, ...]
    """The fewest labels such that each of `nodes` has one; empty if there are none."""
    requirable: bool
    """Whether pods may be required to run on nodes with the cover, without excluding a node or future
    node."""
    members: Callable[[], tuple[tuple[AcceleratorNode, ...], tuple[AcceleratorNode, ...]]] = field(
        compare=False, repr=False
    )
    """`nodes` and `idle`."""

    @cached_property
    def nodes(self) -> tuple[AcceleratorNode, ...]:
        """The nodes that offer accelerators of the vendor, and the pools."""
        return self.members()[0]

    @cached_property
    def idle(self) -> tuple[AcceleratorNode, ...]:
        """The nodes that have its labels but offer no accelerators, for example while a device plugin
        restarts."""
        return self.members()[1]

    @cached_property
    def known_labels(self) -> tuple[NodeLabel, ...]:
        """The vendor's labels that at least one of its nodes has."""
        return tuple(label for label in self.vendor.labels if any(label.on(n.labels) for n in self.samples))

    @cached_property
    def taints(self) -> tuple[Taint, ...]:
        """The distinct taints of its nodes with keys of the vendor, in the order of the nodes."""
        found = self._own_taints((*self.samples, *self.idle_samples))
        return tuple(found if len(found) < 2 else self._own_taints((*self.nodes, *self.idle)))

    def _own_taints(self, nodes: Iterable[AcceleratorNode]) -> dict[Taint, None]:
        keys = {taint.key for taint in self.vendor.taints}
        return dict.fromkeys(taint for node in nodes for taint in node.taints if taint.key in keys)

    @cached_property
    def variants(self) -> tuple[Mapping[str, str], ...]:
        """The distinct pairs of product and memory labels of the nodes."""
        return self._distinct(
            node.labels if node.pool and node.pool.labels else node.described for node in self.samples
        )

    @cached_property
    def described(self) -> tuple[Mapping[str, str], ...]:
        """The same with the promised labels of pools."""
        return self._distinct(node.described for node in self.samples)

    @cached_property
    def labelled_pools(self) -> tuple[AcceleratorNode, ...]:
        """The pools with labels, by which their autoscaler knows them."""
        return tuple(node for node in self.samples if node.pool and node.pool.labels)

    def _distinct(self, labelled: Iterable[Mapping[str, str]]) -> tuple[Mapping[str, str], ...]:
        keys = self.vendor.variant_keys
        seen = {tuple((key, labels[key]) for key in keys if key in labels) for labels in labelled}
        return tuple(dict(items) for items in sorted(seen))


@dataclass(frozen=True)
class Inventory:
    """The accelerators of the cluster and of its declared pools."""

    fleets: Mapping[str, Fleet]
    nodes_known: bool
    """Whether the nodes are known; else only the pools are."""
    cache: Cache = field(default_factory=Cache, init=False, repr=False, compare=False)
    """Values that depend on these nodes only; a changed node makes a new inventory."""

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all nodes with accelerators."""
        return frozenset(
            node.name
            for fleet in self.fleets.values()
            for node in (*fleet.nodes, *fleet.idle)
            if not node.pool
        )

    @cached_property
    def exposed(self) -> tuple[Exposure, ...]:
        """The accelerator nodes, by their taints."""
        by_taints: dict[Taints, dict[str, list[AcceleratorNode]]] = {}
        for name, fleet in self.fleets.items():
            for node in (*fleet.samples, *fleet.idle_samples):
                by_taints.setdefault(_lasting(node), {}).setdefault(name, []).append(node)
        return tuple(
            self._exposure(taints, members)
            for taints, members in sorted(by_taints.items(), key=lambda item: item[0])
        )

    def _exposure(self, taints: Taints, members: Mapping[str, list[AcceleratorNode]]) -> Exposure:
        """`members`: samples by vendor."""
        labels: list[NodeLabel] = []
        hostnames: set[str] = set()
        for name, nodes in members.items():
            fleet = self.fleets[name]
            cover, bare = cover_of(fleet.vendor.labels, nodes)
            labels += cover
            if bare:
                hostnames |= {
                    node.labels[HOSTNAME]
                    for node in (*fleet.nodes, *fleet.idle)
                    if HOSTNAME in node.labels
                    and not any(label.on(node.labels) for label in fleet.vendor.labels)
                    and _lasting(node) == taints
                }
        return Exposure(
            _as_taints(taints),
            tuple(dict.fromkeys(labels)),
            tuple(sorted(hostnames)[:MAX_HOSTNAMES]),
        )


def _lasting(node: AcceleratorNode) -> Taints:
    return tuple(sorted(taints_of(node.lasting_taints)))


class Exposure(Struct, frozen=True):
    """How a pod avoids the accelerator nodes with some taints."""

    taints: tuple[Taint, ...]
    labels: tuple[NodeLabel, ...]
    """Each of the nodes has one of these labels or is in `hostnames`."""
    hostnames: tuple[str, ...]


def cover_of(
    labels: Iterable[NodeLabel], nodes: list[AcceleratorNode]
) -> tuple[tuple[NodeLabel, ...], list[AcceleratorNode]]:
    """Labels such that each node has one, and the nodes that have none. Tries single labels, then adds labels
    greedily."""
    labels = tuple(labels)
    for label in labels:
        if nodes and all(label.on(node.labels) for node in nodes):
            return (label,), []
    chosen, left = [], nodes
    for label in labels:
        rest = [node for node in left if not label.on(node.labels)]
        if len(rest) < len(left):
            chosen.append(label)
            left = rest
    return tuple(chosen), left
