"""limit-range-conflict: pods that a LimitRange refuses, or whose default limit is too small."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from operator import attrgetter

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.workloads import is_builtin
from policies.kube.group_kinds import POD as POD_KIND
from policies.kube.names import listed
from policies.kube.objects.limits import LimitRange, LimitRangeItem
from policies.kube.pods import Container, Role
from policies.kube.quantities import parse_quantity
from policies.quotas.limit_ranges import (
    CONTAINER,
    NO_DEFAULTS,
    POD,
    Amounts,
    ContainerResources,
    amounts,
    defaults_in,
    formatted,
    has_pod_level_resources,
    resources_of,
    total,
)


def check(target: Target, facts: Facts) -> Findings:
    if not is_builtin(target.kind):  # else the API server refuses the object
        for template in target.templates:
            yield from _above_its_limit(template)
    ranges = facts.objects(LimitRange)
    if not ranges or target.kind == POD_KIND or not target.replicas:
        return
    for template in target.templates:
        if has_pod_level_resources(template.typed.spec):
            continue
        try:
            defaults = defaults_in(facts, template.workload)
            found = resources_of(template.containers(), defaults or NO_DEFAULTS)
            yield from _defaulted(template, found)
            for limit_range in sorted(ranges, key=attrgetter("name")):
                yield from _refused(template, found, limit_range, written=defaults is not None)
        except ValueError:
            continue  # a quantity that no API server accepts


def _above_its_limit(template: PodTemplate) -> Findings:
    """Requests above the limits of the same container, which its author or its serving runtime has set."""
    for container in template.containers():
        resources = container.typed.resources
        if not resources.requests or not resources.limits:
            continue
        try:
            requests, limits = amounts(resources.requests), amounts(resources.limits)
        except ValueError:
            continue  # a quantity that no API server accepts
        # Of extended resources, which have a domain, `gpu-unschedulable` reports it.
        native = [name for name in requests if name in limits and "/" not in name]
        above = [name for name in native if requests[name] > limits[name]]
        if above:
            why = listed(f"{formatted(name, requests[name])} {name}" for name in above)
            most = listed(formatted(name, limits[name]) for name in above)
            yield Finding(
                template.at(container, "resources"),
                f"Container {container.name} requests {why}, above its limit{'s' * (len(above) > 1)} of "
                f"{most}. The API server refuses every pod.",
                f"Set requests and limits of {listed(above)}, with limits that are at least the requests.",
                Certainty.LIKELY,  # a webhook may raise the limits of pods
            )


# --- defaults --------------------------------------------------------------------------------------


def _defaulted(template: PodTemplate, found: tuple[ContainerResources, ...]) -> Findings:
    """Default limits that conflict with the container's requests or volumes."""
    for each in found:
        for name, default in each.default_limits.items():
            if name in each.requests and each.requests[name] > default.amount and name not in each.ambiguous:
                yield Finding(
                    template.at(each.container, "resources"),
                    f"LimitRange {default.limit_range} gives container {each.container.name} the {name} "
                    f"limit {formatted(name, default.amount)}, but it requests "
                    f"{formatted(name, each.requests[name])}. The API server refuses every pod.",
                    f"Set a {name} limit of at least the request.",
                    _certainty(template),
                )
        memory = each.default_limits.get("memory")
        if memory is None or "memory" in each.ambiguous or each.container.role is Role.INIT:
            continue
        for volume, size in _in_memory(template, each.container):
            if size > memory.amount:
                yield Finding(
                    template.at(each.container, "resources"),
                    f"LimitRange {memory.limit_range} gives container {each.container.name} the memory "
                    f"limit {formatted('memory', memory.amount)}, but its in-memory volume {volume} may "
                    f"grow to {formatted('memory', size)}. The files in it count as memory, so the kernel "
                    "kills the container before the volume is full.",
                    "Set a memory limit above the volume's sizeLimit.",
                    Certainty.LIKELY,
                )


def _certainty(template: PodTemplate) -> Certainty:
    """Operators may add values of their own, before a LimitRange does."""
    exact = template.is_as_written or template.is_ray
    return Certainty.CERTAIN if exact else Certainty.LIKELY


def _in_memory(template: PodTemplate, container: Container) -> Iterator[tuple[str, Decimal]]:
    """The in-memory volumes that a container mounts, with their sizeLimit."""
    for volume in template.typed.spec.mounted_by(container.typed):
        place = volume.empty_dir
        if place is not None and place.medium == "Memory" and place.size_limit is not None:
            yield volume.name, parse_quantity(place.size_limit)


# --- bounds ----------------------------------------------------------------------------------------


def _refused(
    template: PodTemplate, found: tuple[ContainerResources, ...], limit_range: LimitRange, *, written: bool
) -> Findings:
    name = limit_range.name
    if not found:
        return
    for item in limit_range.items_of(CONTAINER):
        for each in found:
            out = list(_violations(item, each.requests, each.limits, written=written))
            path, who = template.at(each.container, "resources"), f"container {each.container.name}"
            added = each.default_limits if _certainty(template) is Certainty.LIKELY else ()
            out = [(why, resource, sure and resource not in added) for why, resource, sure in out]
            yield from _together(path, name, who, out, each.ambiguous)
    for item in limit_range.items_of(POD):
        requests = total((each.container, each.requests) for each in found)
        limits = total((each.container, each.limits) for each in found)
        ambiguous = frozenset[str]().union(*(each.ambiguous for each in found))
        out = list(_violations(item, requests, limits, written=written, pod=True))
        yield from _together(template.spec_path, name, "the pod", out, ambiguous)


def _together(
    path: str, name: str, who: str, violations: list[tuple[str, str, bool]], ambiguous: frozenset[str]
) -> Findings:
    """One finding about all resources that are certainly out of bounds, and one about the others."""
    for is_certain in (True, False):
        why = [
            each
            for each, resource, certain in violations
            if certain is is_certain and resource not in ambiguous
        ]
        if why:
            yield Finding(
                path,
                f"LimitRange {name} refuses every pod: {who} {'; it '.join(why)}.",
                "Choose requests and limits within the bounds, or change the LimitRange.",
                Certainty.CERTAIN if is_certain else Certainty.LIKELY,
            )


def _violations(
    item: LimitRangeItem, requests: Amounts, limits: Amounts, *, written: bool, pod: bool = False
) -> Iterator[tuple[str, str, bool]]:
    """Sentences about values outside the bounds of an item, each with its resource and whether it is certain.

    Other webhooks may add missing values, and containers to a pod. `written`: whether missing values count.
    """
    minimum, maximum, ratios = map(amounts, (item.min, item.max, item.max_limit_request_ratio))
    for name, bound in minimum.items():
        limit = f"the minimum is {formatted(name, bound)}"
        if name not in requests:
            if written:
                yield f"requests no {name}, and {limit}", name, False
        elif requests[name] < bound:
            yield f"requests {formatted(name, requests[name])} {name}, and {limit}", name, not pod
        elif limits.get(name, bound) < bound:
            yield f"has a limit of {formatted(name, limits[name])} {name}, and {limit}", name, not pod
    for name, bound in maximum.items():
        limit = f"the maximum is {formatted(name, bound)}"
        if name not in limits:
            if written:
                yield f"has no {name} limit, and {limit}", name, False
        elif limits[name] > bound:
            yield f"has a limit of {formatted(name, limits[name])} {name}, and {limit}", name, True
        elif requests.get(name, bound) > bound:
            yield f"requests {formatted(name, requests[name])} {name}, and {limit}", name, True
    for name, bound in ratios.items():
        request, most = requests.get(name), limits.get(name)
        if not request or not most:
            missing = "limit" if request else "request"
            if written:
                yield f"has no {name} {missing}, and maxLimitRequestRatio needs both", name, False
        elif most / request > bound:
            yield (
                f"has a {name} limit of {formatted(name, most)} and a request of "
                f"{formatted(name, request)}, and maxLimitRequestRatio is {formatted('ratio', bound)}",
                name,
                not pod,
            )


def refuses(target: Target, facts: Facts) -> bool:
    """Whether a LimitRange certainly refuses the workload's pods."""
    return any(each.certainty is Certainty.CERTAIN for each in check(target, facts))


RULE = rule(__name__, check, unowned=True, at_once=True)
