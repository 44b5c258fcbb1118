"""The requests and limits of a pod's containers as the LimitRanges of its namespace complete and bound them.

Semantics: `plugin/pkg/admission/limitranger/admission.go`, and `SetDefaults_LimitRangeItem` and
`SetDefaults_Pod` in `pkg/apis/core/v1/defaults.go` of Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from policies.core.facts import Facts
from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.kube.json import Json, mapping, maps, text
from policies.kube.pods import Container, Role
from policies.kube.quantities import parse_quantity

CONTAINER: Final = "Container"
POD: Final = "Pod"

Amounts = Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class Default:
    """An amount that a container gets if it has none."""

    amount: Decimal
    giver: str
    """The LimitRange."""
    disputed: bool = False
    """Whether another one gives something else: which of them comes first is not defined. The amount is the
    least of them."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The requests and limits that containers of a namespace get."""

    requests: Mapping[str, Default]
    limits: Mapping[str, Default]


@dataclass(frozen=True, slots=True)
class Resources:
    """The requests and limits of a container as it will be stored."""

    container: Container
    requests: Amounts
    limits: Amounts
    given: Mapping[str, Default]
    """The limits among them that a LimitRange gives."""
    disputed: frozenset[str]
    """The resources of which two LimitRanges give different amounts."""


NOTHING: Final = Defaults({}, {})


def defaults_in(facts: Facts) -> Defaults | None:
    """The defaults of the object's namespace; None if they are not known. Raises ValueError."""
    ranges = facts.listing(Resource.LIMIT_RANGES)
    return None if ranges is None else ranges.derive(_defaults)


def _defaults(ranges: Listing) -> Defaults:
    requests: dict[str, Default] = {}
    limits: dict[str, Default] = {}
    for limit_range in ranges:
        name = text(limit_range, "metadata", "name")
        for item in bounds(limit_range, CONTAINER):
            least, most, given = (amounts(mapping(item, each)) for each in ("min", "max", "default"))
            given = {**most, **given}
            _merge(limits, given, name)
            _merge(requests, {**least, **given, **amounts(mapping(item, "defaultRequest"))}, name)
    return Defaults(requests, limits)


def _merge(known: dict[str, Default], given: Amounts, giver: str) -> None:
    for resource, amount in given.items():
        other = known.get(resource)
        if other is None:
            known[resource] = Default(amount, giver)
        elif other.amount != amount:
            known[resource] = Default(min(amount, other.amount), giver, disputed=True)


def bounds(limit_range: Json, kind: str) -> Iterable[Json]:
    """The items of a LimitRange for containers or for pods."""
    return (item for item in maps(limit_range, "spec", "limits") if item.get("type") == kind)


def amounts(quantities: Json) -> dict[str, Decimal]:
    """The numbers of a map of quantities. Raises ValueError."""
    return {name: parse_quantity(value) for name, value in quantities.items()}


def resources_of(containers: Iterable[Container], defaults: Defaults) -> tuple[Resources, ...]:
    """The requests and limits of containers. Raises ValueError if one is malformed.

    A limit without a request is the request too; a LimitRange gives only what is missing then.
    """
    return tuple(_resources(container, defaults) for container in containers)


def _resources(container: Container, defaults: Defaults) -> Resources:
    limits = amounts(mapping(container.spec, "resources", "limits"))
    requests = {**limits, **amounts(mapping(container.spec, "resources", "requests"))}
    given = {name: default for name, default in defaults.limits.items() if name not in limits}
    asked = {name: default for name, default in defaults.requests.items() if name not in requests}
    disputed = frozenset(name for each in (given, asked) for name in each if each[name].disputed)
    requests |= {name: default.amount for name, default in asked.items()}
    limits |= {name: default.amount for name, default in given.items()}
    return Resources(container, requests, limits, given, disputed)


def total(each: Iterable[tuple[Container, Amounts]]) -> dict[str, Decimal]:
    """What a pod takes of each resource: its main containers and native sidecars together, or more while an
    init container runs (`AggregateContainerRequests` in `k8s.io/component-helpers/resource`)."""
    running: dict[str, Decimal] = {}
    sidecars: dict[str, Decimal] = {}
    starting: dict[str, Decimal] = {}
    for container, taken in sorted(each, key=lambda one: (one[0].role is Role.MAIN, one[0].index)):
        for name, amount in taken.items():
            if container.role is not Role.INIT:
                running[name] = running.get(name, Decimal(0)) + amount
            if container.role is Role.SIDECAR:
                sidecars[name] = sidecars.get(name, Decimal(0)) + amount
            elif container.role is Role.INIT:
                needed = amount + sidecars.get(name, Decimal(0))
                starting[name] = max(starting.get(name, Decimal(0)), needed)
    return {
        name: max(taken.get(name, Decimal(0)) for taken in (running, starting)) for name in running | starting
    }


def has_pod_level_resources(pod: Json) -> bool:
    """Whether a pod has requests or limits for all its containers together; they are not judged."""
    return bool(mapping(pod, "spec", "resources"))


_UNITS: Final = (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))


def shown(resource: str, amount: Decimal) -> str:
    """An amount as a person writes it."""
    if amount != amount.to_integral_value():
        return f"{(amount * 1000).normalize():f}m"
    if any(word in resource for word in ("memory", "storage", "hugepages")):
        for unit, size in _UNITS:
            if amount and amount % size == 0:
                return f"{int(amount) // size}{unit}"
    return str(int(amount))
