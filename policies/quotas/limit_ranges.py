"""The requests and limits of a pod's containers with the defaults of its namespace's LimitRanges.

Semantics: `plugin/pkg/admission/limitranger/admission.go`, and `SetDefaults_LimitRangeItem` and
`SetDefaults_Pod` in `pkg/apis/core/v1/defaults.go` of Kubernetes 1.37.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Final

from msgspec import Struct

from policies.core.facts import Facts
from policies.core.listing import Listing
from policies.core.pod_view import PodView
from policies.core.resources import Resource
from policies.core.target import PodTemplate
from policies.core.workloads import CompletedBy, Workload
from policies.kube.objects.limits import LimitRange
from policies.kube.objects.metadata import Quantity
from policies.kube.objects.pods import PodSpec
from policies.kube.pods import Container, Role
from policies.kube.quantities import parse_quantity

CONTAINER: Final = "Container"
POD: Final = "Pod"

Amounts = Mapping[str, Decimal]


class Default(Struct, frozen=True):
    """The default request or limit of containers."""

    amount: Decimal
    limit_range: str
    """Its name."""
    ambiguous: bool = False
    """Whether LimitRanges differ. It is not defined which one Kubernetes applies; the amount is the
    minimum."""


class LimitDefaults(Struct, frozen=True):
    """The default requests and limits of a namespace."""

    requests: Mapping[str, Default]
    limits: Mapping[str, Default]


class ContainerResources(Struct, frozen=True):
    """The requests and limits of a container, defaults included."""

    container: Container
    requests: Amounts
    limits: Amounts
    default_limits: Mapping[str, Default]
    """The limits that come from a LimitRange."""
    ambiguous: frozenset[str]
    """The resources with an ambiguous default."""


NO_DEFAULTS: Final = LimitDefaults({}, {})


def has_own_defaults(workload: Workload | None) -> bool:
    """Whether an operator adds requests and limits to containers that have none, as KServe does:
    `setResourceRequirementDefaults` in pkg/apis/serving/v1beta1/inference_service_defaults.go of 0.16."""
    return workload is not None and workload.completed_by is CompletedBy.SERVING_RUNTIME


def defaults_in(facts: Facts, workload: Workload | None) -> LimitDefaults | None:
    """The defaults of the object's namespace; None if they are unknown, or if the pods get others first.
    Raises ValueError."""
    if has_own_defaults(workload):
        return None
    ranges = facts.listing(Resource.LIMIT_RANGES)
    return None if ranges is None else ranges.derive(_defaults)


def _defaults(ranges: Listing) -> LimitDefaults:
    requests: dict[str, Default] = {}
    limits: dict[str, Default] = {}
    for limit_range in ranges.objects(LimitRange):
        for item in limit_range.items_of(CONTAINER):
            minimum, maximum, default, request = map(
                amounts, (item.min, item.max, item.default, item.default_request)
            )
            _merge(limits, {**maximum, **default}, limit_range.name)
            _merge(requests, {**minimum, **maximum, **default, **request}, limit_range.name)
    return LimitDefaults(requests, limits)


def _merge(defaults: dict[str, Default], added: Amounts, limit_range: str) -> None:
    for resource, amount in added.items():
        other = defaults.get(resource)
        if other is None:
            defaults[resource] = Default(amount, limit_range)
        elif other.amount != amount:
            defaults[resource] = Default(min(amount, other.amount), limit_range, ambiguous=True)


def amounts(quantities: Mapping[str, Quantity]) -> dict[str, Decimal]:
    """Quantities as numbers. Raises ValueError."""
    return {name: parse_quantity(value) for name, value in quantities.items()}


def resources_of(containers: Iterable[Container], defaults: LimitDefaults) -> tuple[ContainerResources, ...]:
    """The requests and limits of containers. Raises ValueError.

    A limit without a request is also the request, and LimitRanges add only missing values.
    """
    return tuple(_resources(container, defaults) for container in containers)


def _resources(container: Container, defaults: LimitDefaults) -> ContainerResources:
    resources = container.typed.resources
    limits = amounts(resources.limits)
    requests = {**limits, **amounts(resources.requests)}
    more_limits = {name: default for name, default in defaults.limits.items() if name not in limits}
    more_requests = {name: default for name, default in defaults.requests.items() if name not in requests}
    ambiguous = frozenset(
        name for added in (more_limits, more_requests) for name in added if added[name].ambiguous
    )
    requests |= {name: default.amount for name, default in more_requests.items()}
    limits |= {name: default.amount for name, default in more_limits.items()}
    return ContainerResources(container, requests, limits, more_limits, ambiguous)


def total(containers: Iterable[tuple[Container, Amounts]]) -> dict[str, Decimal]:
    """The resources of a pod: of its main containers and native sidecars, or more while an init container
    runs (`AggregateContainerRequests` in `k8s.io/component-helpers/resource`)."""
    running, starting = defaultdict[str, Decimal](Decimal), defaultdict[str, Decimal](Decimal)
    # Main containers come last: until then, `running` contains the sidecars that started before.
    for container, each in sorted(containers, key=lambda one: (one[0].role is Role.MAIN, one[0].index)):
        for name, amount in each.items():
            if container.role is Role.INIT:
                starting[name] = max(starting[name], running[name] + amount)
            else:
                running[name] += amount
    return {name: max(running[name], starting[name]) for name in (*running, *starting)}


def written_requests(template: PodTemplate, defaults: LimitDefaults = NO_DEFAULTS) -> dict[str, Decimal]:
    """The requests of a pod as its author wrote them, with the given defaults; empty if it has requests for
    all its containers together. Raises ValueError."""
    view = PodView(template.unprojected)
    if has_pod_level_resources(view.typed.spec):
        return {}
    sums = total((each.container, each.requests) for each in resources_of(view.containers, defaults))
    return {name: amount for name, amount in sums.items() if amount > 0}


def has_pod_level_resources(pod: PodSpec) -> bool:
    """Whether a pod has requests or limits for all its containers together, which are not supported."""
    return bool(pod.resources.requests or pod.resources.limits)


_UNITS: Final = (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))


def formatted(resource: str, amount: Decimal) -> str:
    """An amount as a person writes it."""
    if amount != amount.to_integral_value():
        return f"{(amount * 1000).normalize():f}m"
    whole = int(amount)  # the remainder of a Decimal with more than 28 digits is an error
    if any(word in resource for word in ("memory", "storage", "hugepages")):
        for unit, size in _UNITS:
            if whole and whole % size == 0:
                return f"{whole // size}{unit}"
    return str(whole)
