"""What a watch cache stores of a workload, so that a search for cycles reads no command again."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from policies.commands import StepBudget
from policies.containers.commands import ReviewBudget, commands_fit
from policies.core.pod_templates import pod_templates
from policies.core.target import Target
from policies.core.workloads import workloads_by_kind
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, integer, mapping, maps
from policies.relations.links import Link, blocking_links

MAX_STEPS: Final = 10_000
"""The budget of steps for reading the commands of another workload; beyond it, its waits are unknown."""


class CachedLinks(Struct, frozen=True):
    """The part of a workload that a watch cache stores for this package."""

    links: tuple[Link, ...]
    """The links that keep its pods from becoming ready."""
    ready: bool
    """Whether one of its pods is ready."""


CACHED_LINKS: Final = "relations"
"""The key of the `CachedLinks` in a cached workload. JSON cannot contain one, so no manifest can forge it."""


def cached_links(obj: Json) -> CachedLinks | None:
    """What a cache stores of a workload from an API server; None if it neither waits nor has ready pods."""
    workload = workloads_by_kind().get(kind_of(obj))
    if workload is None:
        return None
    links: tuple[Link, ...] = ()
    if _may_wait(obj):
        templates = pod_templates(obj, {workload.group_kind: workload})
        allowance = ReviewBudget(StepBudget(MAX_STEPS))
        if all(commands_fit(template, allowance) for template in templates):
            links = blocking_links(Target(obj, workload.group_kind, templates))
    ready = integer(obj, "status", "readyReplicas", default=0) > 0
    if not links and not ready:
        return None
    return CachedLinks(links, ready)


def _may_wait(obj: Json) -> bool:
    """Whether the pod template has a field that can wait. Most workloads have none and need no more work."""
    spec = mapping(obj, "spec", "template", "spec")
    return "initContainers" in spec or any(
        "command" in container or "args" in container or "readinessProbe" in container
        for container in maps(spec, "containers")
    )
