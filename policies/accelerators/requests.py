"""Accelerators: which pods ask for them, and which nodes have them.

The policies and rules about accelerators share this reading. Law: a pod is only required to have properties
that nodes or declared pools show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache, cached_property
from typing import Final

from pydantic import Field

from policies.accelerators.inventory import Fleet, Inventory, Likeness, Node, cover_of
from policies.accelerators.vendors import MemoryUnit, Pool, Vendor, known_vendors
from policies.core.facts import Facts
from policies.core.listing import Groups, Index, Listing
from policies.core.resources import Resource
from policies.core.settings import Settings
from policies.kube.json import Json, mapping, maps, text
from policies.kube.metadata import annotations_of, labels_of
from policies.kube.pods import Role, container_specs
from policies.kube.quantities import MOST_CHARACTERS, parse_quantity

MIB: Final = 1 << 20
GIB: Final = 1 << 30
_LONGEST_RESOURCE: Final = 317
"""Characters of an extended resource's name: a domain of 253, a slash, a name of 63."""


class Strength(StrEnum):
    """How strongly a pod is bound to, or kept off, nodes."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    OFF = "off"


class GpuAffinity(Settings):
    """Key `gpu-affinity.yaml`."""

    pools: tuple[Pool, ...] = Field(
        (), description="pools of accelerator nodes that an autoscaler creates, possibly from zero"
    )
    fixed_size: bool = Field(
        False,
        description="whether no other nodes will be added: a pod that fits on no present node and on no "
        "pool is then refused instead of warned about",
    )
    vendors: Mapping[str, Vendor] = Field(
        default_factory=dict,
        description="further vendors by name, or other definitions of known ones: nvidia, amd, gaudi, tpu, "
        "neuron",
    )
    affinity: Strength = Field(
        Strength.REQUIRED,
        description="affinity of accelerator pods to their vendor's nodes; `required` becomes `preferred` "
        "if a node with the resource lacks the label",
    )
    weights: Strength = Field(
        Strength.PREFERRED,
        description="affinity of a model server to nodes whose accelerators have memory for its weights, if "
        "they fit on some nodes only and the pod itself selects no product or memory; `required` holds only "
        "where no autoscaler makes the nodes, and is `preferred` elsewhere",
    )
    cpu_pods: Strength = Field(
        Strength.PREFERRED,
        description="affinity of pods without accelerators to nodes without accelerators; `required` "
        "becomes `preferred` if there are no other nodes",
    )
    weight: int = Field(100, ge=1, le=100, description="weight of the preferences that are added")
    system_namespaces: tuple[str, ...] = Field(
        ("kube-*", "*-system", "gpu-operator", "nvidia-*", "node-feature-discovery"),
        description="namespaces whose pods get no affinity against accelerator nodes; `*` is any text",
    )
    topology: Strength = Field(
        Strength.PREFERRED,
        description="meaning of the annotation mlchassis.dev/topology if it contains neither `required` "
        "nor `preferred`",
    )
    autoscaler_labels: tuple[str, ...] = Field(
        (
            "karpenter.sh/nodepool",
            "eks.amazonaws.com/nodegroup",
            "cloud.google.com/gke-nodepool",
            "kubernetes.azure.com/agentpool",
            "alibabacloud.com/nodepool-id",
            "doks.digitalocean.com/node-pool-id",
            "ibm-cloud.kubernetes.io/worker-pool-id",
            "k8s.scaleway.com/pool",
            "lke.linode.com/pool-id",
            "kops.k8s.io/instancegroup",
            "worker.gardener.cloud/pool",
        ),
        description="labels of nodes that belong to a pool of an autoscaler. For these nodes no label is "
        "required that an agent writes on the running node: an autoscaler that does not know the label "
        "would create no node",
    )

    @property
    def knows_all_nodes(self) -> bool:
        """Whether the nodes and pools are all that there can be."""
        return bool(self.pools) or self.fixed_size

    @cached_property
    def catalogue(self) -> Catalogue:
        """The vendors and pools of these settings, ready for use."""
        if not (self.vendors or self.pools or "autoscaler_labels" in self.model_fields_set):
            return standard()  # one object, so that values derived from the nodes are shared
        return Catalogue({**known_vendors(), **self.vendors}, self.pools, self.autoscaler_labels)


# --- the catalogue -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reading:
    """A node as read from the cluster, with the vendors that it gives accelerators of, or only names."""

    node: Node
    likeness: Likeness
    giving: tuple[str, ...]
    barren: tuple[str, ...]


_Found = Mapping[tuple[str, bool, Likeness], tuple[Json, ...]]
"""The nodes of the cluster by a vendor, by whether they have something to give, and by their likeness."""
_CHANGED: Final = 1000
"""Nodes that went or changed, of which it is remembered what they were, before they are forgotten."""


@dataclass(eq=False)
class Catalogue:
    """The vendors and pools of one configuration. Compared by identity: it is the key of values derived from
    nodes."""

    vendors: Mapping[str, Vendor]
    pools: tuple[Pool, ...]
    autoscaler_labels: tuple[str, ...]
    _vendor_of: dict[str, str | None] = field(default_factory=dict, repr=False)
    _remembered: dict[int, tuple[Json, _Reading]] = field(default_factory=dict, repr=False)

    def vendor_of(self, resource: str) -> str | None:
        """The name of the vendor of an extended resource; None if it is no accelerator."""
        if "/" not in resource or len(resource) > _LONGEST_RESOURCE:
            return None
        if resource not in self._vendor_of:
            # names come from users, so the number of remembered ones is bounded
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

    def requests(self, pod: Json) -> dict[str, int]:
        """How many accelerators a pod asks for, by resource, as the scheduler counts them.

        Sidecars run at the same time as all containers after them, so: the greater of all main containers
        with all sidecars, and of each init container with the sidecars before it (`PodRequests` in
        `k8s.io/component-helpers/resource`).
        """
        main: dict[str, int] = {}
        beside: dict[str, int] = {}
        peak: dict[str, int] = {}
        for container, _, _, role in container_specs(pod):
            asked = self._of_container(container)
            if not asked:
                continue
            match role:
                case Role.MAIN:
                    _add(main, asked)
                case Role.SIDECAR:
                    _add(beside, asked)
                case Role.INIT:
                    for resource, count in asked.items():
                        peak[resource] = max(peak.get(resource, 0), count + beside.get(resource, 0))
        if not beside and not peak:
            return main
        names = dict.fromkeys((*main, *beside, *peak))
        return {name: max(main.get(name, 0) + beside.get(name, 0), peak.get(name, 0)) for name in names}

    def _of_container(self, container: Json) -> dict[str, int]:
        resources = container.get("resources")
        if not resources:
            return {}
        # The API server copies limits of extended resources into requests; a file may lack either.
        given = {**mapping(resources, "limits"), **mapping(resources, "requests")}
        counts = {name: whole_number(value) for name, value in given.items() if self.vendor_of(name)}
        return {name: count for name, count in counts.items() if count > 0}

    @cached_property
    def _by_likeness(self) -> Index[tuple[str, bool, Likeness]]:
        """The nodes by each vendor that they give accelerators of (True), or whose labels they only carry,
        and by what they are like."""
        return Index(self._vendors_on)

    def _vendors_on(self, obj: Json) -> Iterator[tuple[str, bool, Likeness]]:
        reading = self._read(obj)
        yield from ((name, True, reading.likeness) for name in reading.giving)
        yield from ((name, False, reading.likeness) for name in reading.barren)

    def inventory(self, listing: Listing) -> Inventory:
        """The accelerators of a cluster's nodes; the same one until a node with accelerators changes."""
        groups = listing.by(self._by_likeness)
        return groups.derived(lambda: self._inventory_of(groups))

    def _inventory_of(self, groups: Groups[tuple[str, bool, Likeness]]) -> Inventory:
        # Separate lists: the next listing takes over the groups.
        found = {key: tuple(groups[key]) for key in groups}
        if len(self._remembered) > 2 * sum(map(len, found.values())) + _CHANGED:
            kept = {id(obj): obj for objects in found.values() for obj in objects}
            self._remembered = {key: (obj, self._read(obj)) for key, obj in kept.items()}
        return self._inventory(found, nodes_known=True)

    @cached_property
    def declared(self) -> Inventory:
        """The inventory of the pools, for when the nodes are not known."""
        return self._inventory({}, nodes_known=False)

    def _inventory(self, found: _Found, *, nodes_known: bool) -> Inventory:
        pools: dict[str, list[Node]] = {}
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
        """What a node with accelerators is; remembered for as long as the object is the same one, so that one
        that changed out of 5,000 is read, not all of them."""
        known = self._remembered.get(id(obj))
        if known is None or known[0] is not obj:
            known = (obj, self._reading(obj))
            if known[1].giving or known[1].barren:
                self._remembered[id(obj)] = known
        return known[1]

    def _reading(self, obj: Json) -> _Reading:
        labels = _texts(mapping(obj, "metadata", "labels"))
        accelerators = self._offered(mapping(obj, "status", "allocatable"))
        labelled = self._labelled(labels)
        taints = tuple(maps(obj, "spec", "taints"))
        node = Node(text(obj, "metadata", "name"), labels, taints, accelerators)
        givers = {self.vendor_of(resource) for resource in accelerators}
        return _Reading(
            node,
            self._likeness(node),
            giving=tuple(name for name in self.vendors if name in givers),
            barren=tuple(name for name in labelled if name not in givers),
        )

    def _likeness(self, node: Node) -> Likeness:
        labels = {key: "" for key in self.autoscaler_labels if key in node.labels}
        labels |= {key: node.labels[key] for key in self._telling_keys if key in node.labels}
        taints = ((text(t, "key"), text(t, "value"), text(t, "effect")) for t in node.taints)
        return Likeness(tuple(sorted(labels.items())), tuple(taints))

    @cached_property
    def _telling_keys(self) -> tuple[str, ...]:
        """The labels that identify any vendor's nodes."""
        return tuple(
            dict.fromkeys(key for vendor in self.vendors.values() for key in sorted(vendor.own_keys))
        )

    @cached_property
    def _label_keys(self) -> frozenset[str]:
        return frozenset(label.key for vendor in self.vendors.values() for label in vendor.labels)

    def _labelled(self, labels: Mapping[str, str]) -> list[str]:
        """The vendors whose labels a node carries."""
        if labels.keys().isdisjoint(self._label_keys):
            return []  # most nodes end here: with 5,000 of them the rest is expensive
        return [
            name for name, vendor in self.vendors.items() if any(label.on(labels) for label in vendor.labels)
        ]

    def _offered(self, allocatable: Json) -> dict[str, int]:
        offered = {
            name: whole_number(amount)
            for name, amount in allocatable.items()
            if "/" in name and self.vendor_of(name) is not None
        }
        return {name: count for name, count in offered.items() if count > 0}

    def _pool_nodes(self, pool: Pool) -> Iterator[tuple[str, Node]]:
        """The pool's node-to-be, once for each vendor that it has accelerators of."""
        vendors = {self.vendor_of(resource) for resource in pool.accelerators}
        for name, vendor in self.vendors.items():
            if name in vendors:
                taints = tuple(taint.as_json for taint in pool.taints)
                yield (
                    name,
                    Node(
                        f"pool {pool.name}",
                        pool.labels,
                        taints,
                        pool.accelerators,
                        pool,
                        _promised(vendor, pool),
                    ),
                )

    def _fleet(self, name: str, found: _Found, pools: tuple[Node, ...]) -> Fleet:
        vendor = self.vendors[name]
        giving = {key[2]: objects for key, objects in found.items() if key[:2] == (name, True)}
        barren = {key[2]: objects for key, objects in found.items() if key[:2] == (name, False)}

        def members() -> tuple[tuple[Node, ...], tuple[Node, ...]]:
            return (*self._nodes(giving.values()), *pools), self._nodes(barren.values())

        alike = (*(likeness.node() for likeness in sorted(giving)), *pools)
        cover, uncovered = cover_of(vendor.labels, [*alike])
        certain = [label for label in cover if not label.agent]
        demandable = not uncovered and all(
            any(label.on(node.labels) for label in certain) or not self._autoscaled(node) for node in alike
        )
        return Fleet(
            vendor,
            alike,
            tuple(likeness.node() for likeness in sorted(barren)),
            cover if not uncovered else (),
            demandable,
            members,
        )

    def _nodes(self, found: Iterable[Iterable[Json]]) -> tuple[Node, ...]:
        """Sorted, so that the order of changes has no effect."""
        nodes = (self._read(obj).node for objects in found for obj in objects)
        return tuple(sorted(nodes, key=lambda node: node.name))

    def _autoscaled(self, node: Node) -> bool:
        return node.pool is None and not node.labels.keys().isdisjoint(self.autoscaler_labels)


def _texts(labels: Json) -> Mapping[str, str]:
    """The labels that are text; a file may hold others."""
    if all(type(value) is str for value in labels.values()):
        return labels
    return {key: value for key, value in labels.items() if isinstance(value, str)}


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


def _add(total: dict[str, int], asked: Mapping[str, int]) -> None:
    for resource, count in asked.items():
        total[resource] = total.get(resource, 0) + count


def whole_number(value: object) -> int:
    """A quantity of an extended resource, which is a whole number; 0 for other values."""
    if type(value) is str and value.isascii() and value.isdigit() and len(value) <= MOST_CHARACTERS:
        return int(value)
    try:
        return int(parse_quantity(value))
    except (ValueError, OverflowError):
        return 0


@cache
def standard() -> Catalogue:
    """The vendors without configuration."""
    labels = GpuAffinity.model_fields["autoscaler_labels"].get_default(call_default_factory=True)
    return Catalogue(known_vendors(), (), labels)


# --- what policies and rules ask -----------------------------------------------------------------


def inventory_of(settings: GpuAffinity, facts: Facts) -> Inventory:
    """The cluster's accelerators; where the nodes are not known, those of the declared pools."""
    nodes, catalogue = facts.nodes(), settings.catalogue
    return catalogue.declared if nodes is None else nodes.derive(catalogue.inventory)


def claims_devices(pod: Json) -> bool:
    """Whether the pod asks for devices by DRA resource claims, which only DRA allocates."""
    return bool(maps(pod, "spec", "resourceClaims"))


def served_by_claims(requests: Iterable[str], facts: Facts) -> bool:
    """Whether DRA serves one of these extended resources: a DeviceClass names it.

    Nodes with such devices do not advertise the resource, so nodes that do are only a part of the nodes that
    take the pod (KEP-5004).
    """
    classes = facts.cluster.listing(Resource.DEVICE_CLASSES)
    if not classes:
        return False
    named = classes.by(_BY_EXTENDED_RESOURCE)
    return any(named.one(resource) is not None for resource in requests)


def _extended_resource(device_class: Json) -> Iterator[str]:
    yield text(device_class, "spec", "extendedResourceName")


_BY_EXTENDED_RESOURCE: Final = Index(_extended_resource)


SHARES: Final = (
    "gpu-fraction",
    "gpu-fraction-num-devices",
    "gpu-memory",
    "tensor-fusion.ai/enabled",
    "tensor-fusion.ai/inject-container",
    "tensor-fusion.ai/gpu-count",
    "tensor-fusion.ai/tflops-request",
    "tensor-fusion.ai/compute-percent-request",
    "tensor-fusion.ai/vram-request",
    "tensor-fusion.ai/workload-profile",
)
"""Annotations and labels by which schedulers give a pod a share of a GPU: Run:ai and KAI (github.com/NVIDIA/
KAI-Scheduler, pkg/common/constants), TensorFusion (github.com/NexusGPU/tensor-fusion, docs)."""
_NONE: Final = (None, "", "0", "false")
_DEVICE_CLASS: Final = "deviceclass.resource.kubernetes.io"
_SHARED_RESOURCES: Final = ("volcano.sh/vgpu-*", "*.com/gpumem*", "*.com/gpucores", f"{_DEVICE_CLASS}/*")
"""Extended resources that are a share of an accelerator: Volcano's vGPU, HAMi (github.com/Project-HAMi/HAMi,
charts/hami/values.yaml); and the implicit name of a DeviceClass (k8s.io/api, resource/v1)."""
_KUBERNETES: Final = (".kubernetes.io", ".k8s.io")


def shares_accelerator(pod: Json) -> bool:
    """Whether the pod asks for a share of an accelerator, in a form that a scheduler's project documents."""
    marks = {**labels_of(pod), **annotations_of(pod)}
    if any(marks.get(key) not in _NONE for key in SHARES):
        return True
    names = {
        name for container, *_ in container_specs(pod) for name in _asked_names(container) if "/" in name
    }
    return any(fnmatchcase(name, glob) for name in names for glob in _SHARED_RESOURCES)


def asks_for_devices(pod: Json) -> bool:
    """Whether the pod may need a node with devices in a form that no vendor's table has: a claim, a share of
    a GPU by annotation, or an extended resource of any other name.

    HAMi, Volcano vGPU and others define further names (`volcano.sh/vgpu-memory`, `nvidia.com/gpucores`),
    and a DRA DeviceClass may have any name as its extended resource.
    """
    if claims_devices(pod) or shares_accelerator(pod):
        return True
    return any(
        _is_extended(name) for container, *_ in container_specs(pod) for name in _asked_names(container)
    )


def _asked_names(container: Json) -> Iterator[str]:
    resources = container.get("resources")
    for field_name in ("limits", "requests"):
        yield from (name for name, value in mapping(resources, field_name).items() if whole_number(value) > 0)


def _is_extended(resource: str) -> bool:
    domain, slash, _ = resource.partition("/")
    return bool(slash) and (domain == _DEVICE_CLASS or not f".{domain}".endswith(_KUBERNETES))


def wants_accelerator(pod: Json, facts: Facts) -> bool:
    """Whether a pod asks for an accelerator or a share of one, by resource, by claim or by annotation."""
    if claims_devices(pod) or facts.settings(GpuAffinity).catalogue.requests(pod):
        return True
    return shares_accelerator(pod)
