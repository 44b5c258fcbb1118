"""Devices of dynamic resource allocation (DRA): how many a node offers, and how many a pod's claims take.

Law: supply is never counted too low and demand never too high. Counters that devices share, taints and CEL
expressions only reduce what can be allocated, so they are not evaluated.

Semantics: `k8s.io/dynamic-resource-allocation/structured` of Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from policies.core.facts import Facts, WholeObjects, named_in
from policies.core.listing import Groups, Index, Listing
from policies.core.resources import Resource
from policies.core.target import PodTemplate
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, indexed_maps, integer, mapping, maps, text
from policies.kube.names import is_subdomain

OFFER: Final = "offer"
"""The key under which a watch cache keeps the `Offer` of a ResourceSlice in place of its devices."""
_CLAIM: Final = GroupKind("resource.k8s.io", "ResourceClaim")
_TEMPLATE: Final = GroupKind("resource.k8s.io", "ResourceClaimTemplate")
ANY: Final = ""
"""In place of a driver: devices of all drivers together."""


# --- supply ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offer:
    """What rules need to know of the devices of one ResourceSlice."""

    devices: int
    repeated: bool = False
    """Whether a device can be allocated several times (allowMultipleAllocations)."""
    partitioned: bool = False
    """Whether devices take shares of counters. The driver lists partitions that exclude each other."""


def offer_of(slice_: Json) -> Offer:
    """The offer of a ResourceSlice, from a watch cache or read from its devices."""
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
    """The most devices of a driver that one node can reach."""

    most: int
    node: str
    """A node with that many; empty if all nodes reach the same devices."""
    partitioned: bool


def supply(slices: Listing, driver: str) -> Supply | None:
    """None if that is unknown: the driver has no slice, has not yet published all of a pool, or lets pods
    share its devices."""
    return slices.derive(_supplies).get(driver)


def one_slice_has(slices: Listing, driver: str, count: int) -> bool:
    """Whether a node has so many devices in one ResourceSlice. Its indices follow each change of a slice, and
    `supply` counts all slices again."""
    sizes, pools = slices.by(_BY_SIZE), slices.by(_BY_POOL)
    return any(
        _is_current(each, pools)
        for name, size in sizes
        if size >= count and driver in (ANY, name)
        for each in islice(sizes[name, size], _MOST_TRIED)
    )


def _is_current(slice_: Json, pools: Groups[tuple[str, str]]) -> bool:
    """Whether no slice of its pool has a newer generation."""
    generation = _generation_of(slice_)
    return all(_generation_of(each) <= generation for key in _pool_of(slice_) for each in pools[key])


def _generation_of(slice_: Json) -> int:
    return integer(slice_, "spec", "pool", "generation", default=0)


def _pool_of(slice_: Json) -> Iterator[tuple[str, str]]:
    yield text(slice_, "spec", "driver"), text(slice_, "spec", "pool", "name")


def _size_of(slice_: Json) -> Iterator[tuple[str, int]]:
    yield text(slice_, "spec", "driver"), offer_of(slice_).devices


_BY_POOL: Final = Index(_pool_of)
_BY_SIZE: Final = Index(_size_of)
_MOST_TRIED: Final = 8


def _supplies(slices: Listing) -> Mapping[str, Supply]:
    pools: dict[tuple[str, str], tuple[int, list[Json]]] = {}
    for each in slices:
        spec = mapping(each, "spec")
        pool = mapping(spec, "pool")
        key = text(spec, "driver"), text(pool, "name")
        generation = integer(pool, "generation", default=0)
        known = pools.get(key)
        if known is None or generation > known[0]:
            pools[key] = generation, [each]  # a newer generation replaces all slices of the older ones
        elif generation == known[0]:
            known[1].append(each)
    drivers: dict[str, _Driver] = {}
    everything = drivers[ANY] = _Driver()
    for (name, _), (_, members) in pools.items():
        driver = drivers.setdefault(name or "?", _Driver())
        whole = len(members) == integer(members[0], "spec", "pool", "resourceSliceCount", default=0)
        for each in members:
            driver.add(each, whole=whole)
            everything.add(each, whole=whole)
    return {name: found for name, driver in drivers.items() if (found := driver.supply()) is not None}


class _Driver:
    """The devices of one driver, or of all of them, while they are counted."""

    def __init__(self) -> None:
        self._of_nodes: dict[str, int] = {}
        self._of_several = 0
        """Devices of a network, or with a node selector: every node may reach them."""
        self._known = True
        self._partitioned = False

    def add(self, slice_: Json, *, whole: bool) -> None:
        offer = offer_of(slice_)
        self._known = self._known and whole and not offer.repeated
        self._partitioned = self._partitioned or offer.partitioned
        node = text(slice_, "spec", "nodeName")
        if node:
            self._of_nodes[node] = self._of_nodes.get(node, 0) + offer.devices
        else:
            self._of_several += offer.devices

    def supply(self) -> Supply | None:
        if not self._known or not (self._of_nodes or self._of_several):
            return None
        node = min(self._of_nodes, key=lambda name: (-self._of_nodes[name], name), default="")
        return Supply(self._of_nodes.get(node, 0) + self._of_several, node, self._partitioned)


# --- demand ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a claim of a pod."""

    path: str
    """Field path of the claim in the pod."""
    claim: str
    """Kind and name of the object that holds the request."""
    alternatives: tuple[Json, ...]
    """The first that can be allocated counts; mostly one."""

    @property
    def classes(self) -> Iterator[str]:
        """The names of the DeviceClasses."""
        yield from filter(None, (text(each, "deviceClassName") for each in self.alternatives))

    def least(self, facts: Facts) -> tuple[str, int]:
        """A driver (`ANY` if it is unknown), and how many of its devices the request takes at the least."""
        drivers = {driver_of(name, facts) for name in self.classes}
        counts = [_count(each) for each in self.alternatives]
        return (drivers.pop() if len(drivers) == 1 else ANY), min(counts, default=0)


def _count(request: Json) -> int:
    """The least number of devices that a request takes from others."""
    if request.get("adminAccess") is True:
        return 0  # it takes devices that are in use
    if request.get("allocationMode") == "All":
        return 1
    return max(0, integer(request, "count", default=1))


def requests_of(template: PodTemplate, facts: Facts) -> Iterator[Request]:
    """The requests of all claims of a pod that are known."""
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
    if kind == _TEMPLATE:
        found = named_in(facts.listing(Resource.CLAIM_TEMPLATES), name)
        return maps(found or {}, "spec", "spec", "devices", "requests")
    cluster = facts.cluster
    claim = cluster.named(_CLAIM, facts.namespace, name) if isinstance(cluster, WholeObjects) else None
    return maps(claim or {}, "spec", "devices", "requests")


def driver_of(device_class: str, facts: Facts) -> str:
    """The driver that all devices of a class have; `ANY` if its expressions do not show it."""
    found = named_in(facts.cluster.listing(Resource.DEVICE_CLASSES), device_class)
    names = (_driver_in(text(each, "cel", "expression")) for each in maps(found or {}, "spec", "selectors"))
    return next(filter(None, names), ANY)


def _driver_in(expression: str) -> str:
    """`gpu.example` of `device.driver == "gpu.example" && ...`; empty for anything else."""
    first = expression[:_LONGEST_EXPRESSION].partition("&&")[0]
    field, equals, value = (part.strip() for part in first.partition("=="))
    if field != "device.driver" or not equals or "||" in expression or "?" in expression:
        return ""
    name = value[1:-1]
    quoted = len(value) > 2 and value[0] == value[-1] and value[0] in "\"'"
    return name if quoted and is_subdomain(name) else ""


_LONGEST_EXPRESSION: Final = 500
"""Characters of an expression in which the name of the driver has to end."""
