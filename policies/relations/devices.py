"""Devices of dynamic resource allocation (DRA): the supply of nodes and the demand of a pod's claims.

Law: supply is never counted too low and demand never too high. Shared counters, taints and CEL expressions
only reduce the number of devices that can be allocated, so they are not evaluated.

Semantics: `k8s.io/dynamic-resource-allocation/structured` of Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from policies.core.facts import Facts, WholeObjects, find_by_name
from policies.core.listing import Index, Listing
from policies.core.resources import Resource
from policies.core.target import PodTemplate
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, indexed_maps, integer, mapping, maps, text
from policies.kube.names import is_subdomain

OFFER: Final = "offer"
"""The key of the `Offer` that a watch cache stores of a ResourceSlice in place of its devices."""
_CLAIM: Final = GroupKind("resource.k8s.io", "ResourceClaim")
_TEMPLATE: Final = GroupKind("resource.k8s.io", "ResourceClaimTemplate")
ANY: Final = ""
"""Instead of a driver's name: the devices of all drivers."""


# --- supply ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offer:
    """The devices of one ResourceSlice, as far as rules depend on them."""

    devices: int
    shareable: bool = False
    """Whether a device can be allocated several times (allowMultipleAllocations)."""
    partitioned: bool = False
    """Whether devices consume counters: then the driver lists partitions that exclude each other."""


def offer_of(slice_: Json) -> Offer:
    """The offer of a ResourceSlice, from a watch cache or from its devices."""
    known: Any = slice_.get(OFFER)
    if isinstance(known, Offer):
        return known
    devices = maps(slice_, "spec", "devices")
    return Offer(
        len(devices),
        any(device.get("allowMultipleAllocations") is True for device in devices),
        any("consumesCounters" in device for device in devices),
    )


@dataclass(frozen=True, slots=True)
class Supply:
    """The maximum number of devices of a driver that one node can reach."""

    devices: int
    node: str
    """A node with that many; empty if all nodes reach the same devices."""
    partitioned: bool


def supply(slices: Listing, driver: str) -> Supply | None:
    """None if unknown: the driver has no slice, has not published all slices of a pool, or lets pods share
    devices."""
    return slices.derive(_supplies).get(driver)


def one_slice_has(slices: Listing, driver: str, count: int) -> bool:
    """Whether a single ResourceSlice has so many devices. Indices make this cheap after a change of a slice;
    `supply` counts all slices again."""
    sizes, pools = slices.by(_BY_SIZE), slices.by(_BY_POOL)

    def is_current(slice_: Json) -> bool:
        """Whether no slice of its pool has a newer generation."""
        return all(_generation(each) <= _generation(slice_) for each in pools[_pool(slice_)])

    return any(
        is_current(each)
        for name, size in sizes
        if size >= count and driver in (ANY, name)
        for each in islice(sizes[name, size], _MAX_TRIED)
    )


def _generation(slice_: Json) -> int:
    return integer(slice_, "spec", "pool", "generation", default=0)


def _pool(slice_: Json) -> tuple[str, str]:
    return text(slice_, "spec", "driver"), text(slice_, "spec", "pool", "name")


_BY_POOL: Final = Index(lambda slice_: (_pool(slice_),))
_BY_SIZE: Final = Index(lambda slice_: ((text(slice_, "spec", "driver"), offer_of(slice_).devices),))
_MAX_TRIED: Final = 8


def _supplies(slices: Listing) -> Mapping[str, Supply]:
    drivers: dict[str, _Driver] = {}
    every_driver = drivers[ANY] = _Driver()
    pools = slices.by(_BY_POOL)
    for key in pools:
        newest = max(map(_generation, pools[key]))  # it replaces all slices of older generations
        members = [each for each in pools[key] if _generation(each) == newest]
        complete = len(members) == integer(members[0], "spec", "pool", "resourceSliceCount", default=0)
        for each in members:
            drivers.setdefault(key[0] or "?", _Driver()).add(each, complete=complete)
            every_driver.add(each, complete=complete)
    return {name: found for name, driver in drivers.items() if (found := driver.supply()) is not None}


class _Driver:
    def __init__(self) -> None:
        self._by_node: dict[str, int] = {}
        self._shared = 0
        """Devices of a network, or with a node selector: every node may reach them."""
        self._known = True
        self._partitioned = False

    def add(self, slice_: Json, *, complete: bool) -> None:
        offer = offer_of(slice_)
        self._known = self._known and complete and not offer.shareable
        self._partitioned = self._partitioned or offer.partitioned
        node = text(slice_, "spec", "nodeName")
        if node:
            self._by_node[node] = self._by_node.get(node, 0) + offer.devices
        else:
            self._shared += offer.devices

    def supply(self) -> Supply | None:
        if not self._known or not (self._by_node or self._shared):
            return None
        node = min(self._by_node, key=lambda name: (-self._by_node[name], name), default="")
        return Supply(self._by_node.get(node, 0) + self._shared, node, self._partitioned)


# --- demand ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a claim of a pod."""

    path: str
    """Field path of the claim in the pod."""
    claim: str
    """Kind and name of the object with the request."""
    alternatives: tuple[Json, ...]
    """The scheduler allocates the first that it can; usually there is one."""

    @property
    def classes(self) -> Iterator[str]:
        yield from filter(None, (text(each, "deviceClassName") for each in self.alternatives))

    def minimum(self, facts: Facts) -> tuple[str, int]:
        """A driver (`ANY` if unknown), and the minimum number of its devices that the request takes."""
        drivers = {driver_of(name, facts) for name in self.classes}
        counts = [_count(each) for each in self.alternatives]
        return (drivers.pop() if len(drivers) == 1 else ANY), min(counts, default=0)


def _count(request: Json) -> int:
    """The minimum number of devices that other pods cannot use."""
    if request.get("adminAccess") is True:
        return 0  # it uses allocated devices
    if request.get("allocationMode") == "All":
        return 1
    return max(0, integer(request, "count", default=1))


def requests_of(template: PodTemplate, facts: Facts) -> Iterator[Request]:
    for index, entry in indexed_maps(template.spec, "resourceClaims"):
        path = f"{template.spec_path}.resourceClaims[{index}]"
        for field, kind in (("resourceClaimTemplateName", _TEMPLATE), ("resourceClaimName", _CLAIM)):
            name = text(entry, field)
            for request in _requests(kind, name, facts) if name else ():
                given = mapping(request, "exactly")
                # v1beta1 has the fields of `exactly` in the request itself.
                alternatives = maps(request, "firstAvailable") or [given or request]
                yield Request(f"{path}.{field}", f"{kind.kind} {name}", tuple(alternatives))


def _requests(kind: GroupKind, name: str, facts: Facts) -> list[Json]:
    if kind == _CLAIM:
        return requests_of_claim(name, facts)
    template = find_by_name(facts.listing(Resource.CLAIM_TEMPLATES), name)
    return maps(template or {}, "spec", "spec", "devices", "requests")


def requests_of_claim(name: str, facts: Facts) -> list[Json]:
    """The requests of a ResourceClaim; empty if unknown: a running webhook does not watch claims."""
    cluster = facts.cluster
    claim = cluster.named(_CLAIM, facts.namespace, name) if isinstance(cluster, WholeObjects) else None
    return maps(claim or {}, "spec", "devices", "requests")


def driver_of(device_class: str, facts: Facts) -> str:
    """The driver of all devices of a class; `ANY` if its expressions do not name one."""
    found = find_by_name(facts.cluster.listing(Resource.DEVICE_CLASSES), device_class)
    names = (_driver_in(text(each, "cel", "expression")) for each in maps(found or {}, "spec", "selectors"))
    return next(filter(None, names), ANY)


def _driver_in(expression: str) -> str:
    """`gpu.example` from `device.driver == "gpu.example" && ...`; empty for other expressions."""
    first = expression[:_MAX_EXPRESSION_LENGTH].partition("&&")[0]
    field, equals, value = (part.strip() for part in first.partition("=="))
    if field != "device.driver" or not equals or "||" in expression or "?" in expression:
        return ""
    name = value[1:-1]
    quoted = len(value) > 2 and value[0] == value[-1] and value[0] in "\"'"
    return name if quoted and is_subdomain(name) else ""


_MAX_EXPRESSION_LENGTH: Final = 500
"""The characters of an expression that are searched for the driver."""
