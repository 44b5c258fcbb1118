"""limit-range-conflict: pods that a LimitRange refuses, or whose default memory limit is too small."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.resources import Resource
from policies.kube.group_kinds import POD as POD_KIND
from policies.kube.json import Json, dig, mapping, text
from policies.kube.metadata import controller
from policies.kube.pods import Container, Role, mounted_volumes
from policies.kube.quantities import parse_quantity
from policies.quotas.limit_ranges import (
    CONTAINER,
    POD,
    Amounts,
    Resources,
    amounts,
    bounds,
    defaults_in,
    has_pod_level_resources,
    resources_of,
    shown,
    total,
)
from policies.rollouts.rollouts import replicas_of

_BOUNDS: Final = ("min", "max", "maxLimitRequestRatio")


def check(target: Target, facts: Facts) -> Findings:
    ranges = facts.listing(Resource.LIMIT_RANGES)
    if not ranges or target.kind == POD_KIND or controller(target.obj) is not None:
        return
    if not replicas_of(target.obj):
        return
    for template in target.templates:
        if has_pod_level_resources(template.pod):
            continue
        try:
            defaults = defaults_in(facts)
            assert defaults is not None
            found = resources_of(template.containers(), defaults)
            yield from _defaulted(template, found)
            for limit_range in sorted(ranges, key=lambda each: text(each, "metadata", "name")):
                yield from _refused(template, found, limit_range)
        except ValueError:
            continue  # a quantity that no API server accepts


# --- defaults --------------------------------------------------------------------------------------


def _defaulted(template: PodTemplate, found: tuple[Resources, ...]) -> Findings:
    """Limits that a LimitRange gives and that do not go with what the container sets."""
    for each in found:
        for name, default in each.given.items():
            if name in each.requests and each.requests[name] > default.amount and name not in each.disputed:
                yield Finding(
                    template.at(each.container, "resources"),
                    f"LimitRange {default.giver} gives container {each.container.name} the {name} limit "
                    f"{shown(name, default.amount)}, and it requests {shown(name, each.requests[name])}: "
                    "the API server refuses every pod.",
                    f"Set a {name} limit of at least the request.",
                )
        memory = each.given.get("memory")
        if memory is None or "memory" in each.disputed or each.container.role is Role.INIT:
            continue
        for volume, size in _in_memory(template, each.container):
            if size > memory.amount:
                yield Finding(
                    template.at(each.container, "resources"),
                    f"LimitRange {memory.giver} gives container {each.container.name} the memory limit "
                    f"{shown('memory', memory.amount)}, and its in-memory volume {volume} may grow to "
                    f"{shown('memory', size)}: the files in it count as memory, and the kernel kills the "
                    "container before the volume is full.",
                    "Set a memory limit above the volume's sizeLimit.",
                    Certainty.LIKELY,
                )


def _in_memory(template: PodTemplate, container: Container) -> Iterator[tuple[str, Decimal]]:
    """The in-memory volumes that a container mounts, with their sizeLimit."""
    for volume in mounted_volumes(template.pod, container):
        size = dig(volume, "emptyDir", "sizeLimit")
        if text(volume, "emptyDir", "medium") == "Memory" and size is not None:
            yield text(volume, "name"), parse_quantity(size)


# --- bounds ----------------------------------------------------------------------------------------


def _refused(template: PodTemplate, found: tuple[Resources, ...], limit_range: Json) -> Findings:
    name = text(limit_range, "metadata", "name")
    for item in bounds(limit_range, CONTAINER):
        for each in found:
            who = f"container {each.container.name}"
            path = template.at(each.container, "resources")
            for why, resource, certain in _broken(item, each.requests, each.limits):
                if resource not in each.disputed:
                    yield _finding(path, name, f"{who} {why}", certain)
    for item in bounds(limit_range, POD):
        requests = total((each.container, each.requests) for each in found)
        limits = total((each.container, each.limits) for each in found)
        disputed = frozenset[str]().union(*(each.disputed for each in found))
        for why, resource, certain in _broken(item, requests, limits, pod=True):
            if resource not in disputed:
                yield _finding(template.spec_path, name, f"the pod {why}", certain)


def _finding(path: str, name: str, why: str, certain: bool) -> Finding:
    return Finding(
        path,
        f"LimitRange {name} refuses every pod: {why}.",
        "Choose requests and limits within the bounds, or change the LimitRange.",
        Certainty.CERTAIN if certain else Certainty.LIKELY,
    )


def _broken(
    item: Json, requests: Amounts, limits: Amounts, *, pod: bool = False
) -> Iterator[tuple[str, str, bool]]:
    """What breaks the bounds of an item: why, the resource, and whether it is certain.

    A webhook may add a value that is missing, and a container to a pod.
    """
    least, most, ratios = (amounts(mapping(item, each)) for each in _BOUNDS)
    for name, bound in least.items():
        if name not in requests:
            yield f"requests no {name}, and the minimum is {shown(name, bound)}", name, False
        else:
            for what, amount in (("requests", requests[name]), ("has a limit of", limits.get(name, bound))):
                if amount < bound:
                    said = f"{what} {shown(name, amount)} {name}, and the minimum is {shown(name, bound)}"
                    yield said, name, not pod
                    break
    for name, bound in most.items():
        if name not in limits:
            yield f"has no {name} limit, and the maximum is {shown(name, bound)}", name, False
        else:
            for what, amount in (("has a limit of", limits[name]), ("requests", requests.get(name, bound))):
                if amount > bound:
                    said = f"{what} {shown(name, amount)} {name}, and the maximum is {shown(name, bound)}"
                    yield said, name, True
                    break
    for name, bound in ratios.items():
        request, limit = requests.get(name), limits.get(name)
        if not request or not limit:
            yield (
                f"has no {name} {'limit' if request else 'request'}, and maxLimitRequestRatio needs both",
                name,
                False,
            )
        elif limit / request > bound:
            yield (
                f"has a {name} limit of {shown(name, limit)} and a request of {shown(name, request)}, and "
                f"maxLimitRequestRatio is {shown('ratio', bound)}",
                name,
                not pod,
            )


RULE = rule(__name__, check)
