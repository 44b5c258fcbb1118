"""The nodes that have accelerators, by vendor, and by what they look like to the pods of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from policies.accelerators.vendors import NodeLabel, Pool, Vendor
from policies.kube.cache import Cache
from policies.kube.json import Json, text
from policies.kube.nodes import HOSTNAME

MOST_HOSTNAMES: Final = 20
"""The most accelerator nodes without a label of their vendor that are listed by name."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node with accelerators, or the node that a declared pool would make."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Json, ...]
    accelerators: Mapping[str, int]
    """How many it has to give of each resource; pods that run there not subtracted."""
    pool: Pool | None = None
    promised: Mapping[str, str] = field(default_factory=dict)
    """Labels that a pool's nodes will carry once they run, by the product and memory it declares."""
    lasting_taints: tuple[Json, ...] = field(init=False, repr=False, compare=False)
    """The taints that keep pods off, without those of a passing state such as a cordon."""

    def __post_init__(self) -> None:
        lasting = tuple(
            taint
            for taint in self.taints
            if taint.get("effect") != "PreferNoSchedule"
            and not text(taint, "key").startswith("node.kubernetes.io/")
        )
        object.__setattr__(self, "lasting_taints", lasting)

    @property
    def described(self) -> Mapping[str, str]:
        """All labels that are known of it."""
        return {**self.promised, **self.labels} if self.promised else self.labels


class Likeness(NamedTuple):
    """The properties of a node that decide which pods it can take: thousands of nodes have a few
    likenesses."""

    labels: tuple[tuple[str, str], ...]
    """Those that speak of accelerators; of an autoscaler's only the key."""
    taints: tuple[tuple[str, str, str], ...]
    """Key, value and effect."""

    def node(self) -> Node:
        """A node of this likeness, without a name and without what it has to give."""
        return Node("", dict(self.labels), tuple(_taint(*taint) for taint in self.taints), {})


def _taint(key: str, value: str, effect: str) -> Json:
    return {"key": key, "value": value, "effect": effect}


Members = Callable[[], tuple[tuple[Node, ...], tuple[Node, ...]]]
"""The nodes themselves: those that have something to give, pools included, and those that have not."""


@dataclass(frozen=True)
class Fleet:
    """The nodes of one vendor. Questions about their likenesses cost the same for ten nodes as for ten
    thousand; the nodes are sorted when they are first asked for."""

    vendor: Vendor
    likenesses: tuple[Node, ...]
    """One node for each likeness of `nodes`, and the pools."""
    barren_likenesses: tuple[Node, ...]
    """One node for each likeness of `barren`."""
    cover: tuple[NodeLabel, ...]
    """The fewest labels such that each of `nodes` carries one; empty where there are none such."""
    demandable: bool
    """Whether the cover may be demanded without keeping pods from any node there is or may be made."""
    members: Members = field(compare=False, repr=False)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Those that have a resource of the vendor to give, pools included."""
        return self.members()[0]

    @cached_property
    def barren(self) -> tuple[Node, ...]:
        """Those that carry its labels but offer no accelerators now, for example while a device plugin
        restarts."""
        return self.members()[1]

    @cached_property
    def known_labels(self) -> tuple[NodeLabel, ...]:
        """The vendor's labels that at least one of its nodes carries."""
        return tuple(
            label for label in self.vendor.labels if any(label.on(n.labels) for n in self.likenesses)
        )

    @cached_property
    def taints(self) -> tuple[Json, ...]:
        """The distinct taints of its nodes that are the vendor's own, in the order of the nodes."""
        borne = self._own_taints((*self.likenesses, *self.barren_likenesses))
        if len(borne) > 1:
            borne = self._own_taints((*self.nodes, *self.barren))
        return tuple(_taint(*taint) for taint in borne)

    def _own_taints(self, nodes: Iterable[Node]) -> dict[tuple[str, str, str], None]:
        keys = {taint.key for taint in self.vendor.taints}
        return dict.fromkeys(
            (text(taint, "key"), text(taint, "value"), text(taint, "effect"))
            for node in nodes
            for taint in node.taints
            if text(taint, "key") in keys
        )

    @cached_property
    def variants(self) -> tuple[Mapping[str, str], ...]:
        """The distinct pairs of product and memory labels of the nodes."""
        return self._distinct(
            node.labels if node.pool and node.pool.labels else node.described for node in self.likenesses
        )

    @cached_property
    def described(self) -> tuple[Mapping[str, str], ...]:
        """The same with the labels that pools promise."""
        return self._distinct(node.described for node in self.likenesses)

    @cached_property
    def labelled_pools(self) -> tuple[Node, ...]:
        """The pools that declare labels, by which their autoscaler knows them."""
        return tuple(node for node in self.likenesses if node.pool and node.pool.labels)

    def _distinct(self, labelled: Iterable[Mapping[str, str]]) -> tuple[Mapping[str, str], ...]:
        keys = (*self.vendor.product_labels, *(label.key for label in self.vendor.memory_labels))
        seen = {tuple((key, labels[key]) for key in keys if key in labels) for labels in labelled}
        return tuple(dict(items) for items in sorted(seen))


@dataclass(frozen=True)
class Inventory:
    """What the cluster has, or by its declared pools could have."""

    fleets: Mapping[str, Fleet]
    nodes_known: bool
    """Whether the nodes could be read; else only the pools are known."""
    cache: Cache = field(default_factory=Cache, init=False, repr=False, compare=False)
    """Values that depend on these nodes only; a changed node makes a new inventory."""

    @cached_property
    def names(self) -> frozenset[str]:
        """The nodes that are any vendor's."""
        return frozenset(
            node.name
            for fleet in self.fleets.values()
            for node in (*fleet.nodes, *fleet.barren)
            if not node.pool
        )

    @cached_property
    def exposed(self) -> tuple[Exposure, ...]:
        """The accelerator nodes, by the taints that they bear."""
        by_taints: dict[Taints, dict[str, list[Node]]] = {}
        for name, fleet in self.fleets.items():
            for node in (*fleet.likenesses, *fleet.barren_likenesses):
                by_taints.setdefault(_lasting(node), {}).setdefault(name, []).append(node)
        return tuple(
            self._exposure(taints, members)
            for taints, members in sorted(by_taints.items(), key=lambda item: item[0])
        )

    def _exposure(self, taints: Taints, members: Mapping[str, list[Node]]) -> Exposure:
        """`members`: one node for each likeness, by vendor."""
        labels: list[NodeLabel] = []
        hostnames: set[str] = set()
        for name, nodes in members.items():
            fleet = self.fleets[name]
            cover, bare = cover_of(fleet.vendor.labels, nodes)
            labels += cover
            if bare:  # then the nodes that are like them
                hostnames |= {
                    node.labels[HOSTNAME]
                    for node in (*fleet.nodes, *fleet.barren)
                    if HOSTNAME in node.labels
                    and not any(label.on(node.labels) for label in fleet.vendor.labels)
                    and _lasting(node) == taints
                }
        return Exposure(
            tuple(_taint(*taint) for taint in taints),
            tuple(dict.fromkeys(labels)),
            tuple(sorted(hostnames)[:MOST_HOSTNAMES]),
        )


Taints = tuple[tuple[str, str, str], ...]


def _lasting(node: Node) -> Taints:
    return tuple(sorted((text(t, "key"), text(t, "value"), text(t, "effect")) for t in node.lasting_taints))


@dataclass(frozen=True, slots=True)
class Exposure:
    """Accelerator nodes with the same taints, and how a pod selects them."""

    taints: tuple[Json, ...]
    labels: tuple[NodeLabel, ...]
    """Each of the nodes carries one of these labels or is listed in `hostnames`."""
    hostnames: tuple[str, ...]


def cover_of(labels: Iterable[NodeLabel], nodes: list[Node]) -> tuple[tuple[NodeLabel, ...], list[Node]]:
    """Labels such that each node carries one, and the nodes that carry none. The search tries single labels
    first and is then greedy."""
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
