"""Devices of dynamic resource allocation (DRA): the supply of nodes and the demand of a pod's claims.

Law: supply is never counted too low and demand never too high. Shared counters, taints and CEL expressions
only reduce the number of devices that can be allocated, so they are not evaluated.

Semantics: `k8s.io/dynamic-resource-allocation/structured` of Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from policies.core.facts import Facts
from policies.core.listing import Index, Listing, TypedIndex
from policies.core.target import PodTemplate
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, maps, text
from policies.kube.names import is_subdomain
from policies.kube.objects.devices import (
    DeviceClass,
    DeviceRequest,
    DeviceSubRequest,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from policies.kube.objects.reading import read, readable

OFFER: Final = "offer"
"""The key of the `Offer` that a watch cache stores of a ResourceSlice in place of its devices."""
_CLAIM: Final = GroupKind("resource.k8s.io", "ResourceClaim")
_TEMPLATE: Final = GroupKind("resource.k8s.io", "ResourceClaimTemplate")
ANY: Final = ""
"""Instead of a driver's name: the devices of all drivers."""


# --- supply ----------------------------------------------------------------------------------------


class Offer(Struct, frozen=True):
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


class DeviceSupply(Struct, frozen=True):
    """The maximum number of devices of a driver that one node can reach."""

    devices: int
    node: str
    """A node with that many; empty if all nodes reach the same devices."""
    partitioned: bool


def supply(slices: Listing, driver: str) -> DeviceSupply | None:
    """None if unknown: the driver has no slice, has not published all slices of a pool, or lets pods share
    devices."""
    return slices.derive(_supplies).get(driver)


def one_slice_has(slices: Listing, driver: str, count: int) -> bool:
    """Whether a single ResourceSlice has so many devices. Indices make this cheap after a change of a slice;
    `supply` counts all slices again."""
    sizes, known = slices.by(_BY_SIZE), slices.objects(ResourceSlice)

    def is_current(slice_: ResourceSlice) -> bool:
        """Whether no slice of its pool has a newer generation."""
        pool = known.by(_BY_POOL, _pool(slice_))
        return all(each.spec.pool.generation <= slice_.spec.pool.generation for each in pool)

    return any(
        is_current(read(each, ResourceSlice))
        for name, size in sizes
        if size >= count and driver in (ANY, name)
        for each in islice(sizes[name, size], _MAX_TRIED)
    )


def _pool(slice_: ResourceSlice) -> tuple[str, str]:
    return slice_.spec.driver, slice_.spec.pool.name


_BY_POOL: Final = TypedIndex(ResourceSlice, lambda slice_: (_pool(slice_),))
_BY_SIZE: Final = Index(lambda slice_: ((text(slice_, "spec", "driver"), offer_of(slice_).devices),))
_MAX_TRIED: Final = 8


def _supplies(slices: Listing) -> Mapping[str, DeviceSupply]:
    drivers: dict[str, _Driver] = {}
    every_driver = drivers[ANY] = _Driver()
    pools = slices.by(_BY_POOL)
    for key in pools:
        every = [(read(each, ResourceSlice).spec, offer_of(each)) for each in pools[key]]
        newest = max(spec.pool.generation for spec, _ in every)  # it replaces all slices of older ones
        members = [each for each in every if each[0].pool.generation == newest]
        complete = len(members) == members[0][0].pool.resource_slice_count
        for spec, offer in members:
            drivers.setdefault(key[0] or "?", _Driver()).add(spec.node_name, offer, complete=complete)
            every_driver.add(spec.node_name, offer, complete=complete)
    return {name: found for name, driver in drivers.items() if (found := driver.supply()) is not None}


class _Driver:
    def __init__(self) -> None:
        self._by_node: dict[str, int] = {}
        self._shared = 0
        """Devices of a network, or with a node selector: every node may reach them."""
        self._known = True
        self._partitioned = False

    def add(self, node: str, offer: Offer, *, complete: bool) -> None:
        self._known = self._known and complete and not offer.shareable
        self._partitioned = self._partitioned or offer.partitioned
        if node:
            self._by_node[node] = self._by_node.get(node, 0) + offer.devices
        else:
            self._shared += offer.devices

    def supply(self) -> DeviceSupply | None:
        if not self._known or not (self._by_node or self._shared):
            return None
        node = min(self._by_node, key=lambda name: (-self._by_node[name], name), default="")
        return DeviceSupply(self._by_node.get(node, 0) + self._shared, node, self._partitioned)


# --- demand ----------------------------------------------------------------------------------------


class ClaimedRequest(Struct, frozen=True):
    """One request of a claim of a pod."""

    path: str
    """Field path of the claim in the pod."""
    claim: str
    """Kind and name of the object with the request."""
    alternatives: tuple[DeviceSubRequest, ...]
    """The scheduler allocates the first that it can; usually there is one."""

    @property
    def classes(self) -> Iterator[str]:
        yield from filter(None, (each.device_class_name for each in self.alternatives))

    def minimum(self, facts: Facts) -> tuple[str, int]:
        """A driver (`ANY` if unknown), and the minimum number of its devices that the request takes."""
        drivers = {driver_of(name, facts) for name in self.classes}
        counts = [_count(each) for each in self.alternatives]
        return (drivers.pop() if len(drivers) == 1 else ANY), min(counts, default=0)


def _count(request: DeviceSubRequest) -> int:
    """The minimum number of devices that other pods cannot use."""
    if request.admin_access:
        return 0  # it uses allocated devices
    if request.allocation_mode == "All":
        return 1
    return max(0, request.count)


def requests_of(template: PodTemplate, facts: Facts) -> Iterator[ClaimedRequest]:
    for index, entry in enumerate(template.typed.spec.resource_claims):
        path = f"{template.spec_path}.resourceClaims[{index}]"
        for field, name, kind in (
            ("resourceClaimTemplateName", entry.resource_claim_template_name, _TEMPLATE),
            ("resourceClaimName", entry.resource_claim_name, _CLAIM),
        ):
            for request in _requests(kind, name, facts) if name else ():
                # v1beta1 has the fields of `exactly` in the request itself.
                alternatives = request.first_available or (request.exactly or request,)
                yield ClaimedRequest(f"{path}.{field}", f"{kind.kind} {name}", alternatives)


def _requests(kind: GroupKind, name: str, facts: Facts) -> tuple[DeviceRequest, ...]:
    if kind == _CLAIM:
        return _requests_of_claim(name, facts)
    templates = facts.objects(ResourceClaimTemplate)
    template = None if templates is None else templates.named(name)
    return () if template is None else template.spec.spec.devices.requests


def _requests_of_claim(name: str, facts: Facts) -> tuple[DeviceRequest, ...]:
    """The requests of a ResourceClaim; empty if unknown: a running webhook does not watch claims."""
    found = facts.whole.named(_CLAIM, facts.namespace, name) if facts.whole else None
    claim = None if found is None else readable(found, ResourceClaim)
    return () if claim is None else claim.spec.devices.requests


def driver_of(device_class: str, facts: Facts) -> str:
    """The driver of all devices of a class; `ANY` if its expressions do not name one."""
    classes = facts.cluster_objects(DeviceClass)
    found = None if classes is None else classes.named(device_class)
    selectors = () if found is None else found.spec.selectors
    names = (_driver_in(each.cel.expression) for each in selectors if each.cel is not None)
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
