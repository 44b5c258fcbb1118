"""Volcano's Queues, whose capability limits what the pods in them may take together, and of which only those
without children take jobs.

Only files and a scan have them: the webhook does not watch Queues.

Semantics: `JobEnqueueable` and `Allocatable` of the plugins proportion and capacity, one of which Volcano's
own configuration uses (pkg/scheduler/plugins of volcano-sh/volcano ed72c7c815a9). A resource that the
capability does not name, or names with 0, has no limit. Children: `validateJobCreate` in
pkg/webhooks/admission/jobs/validate (since 1.10), and docs/KeyFeatures/HierarchicalQueue.md of its website.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import islice
from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target
from policies.core.facts import WholeObjects
from policies.core.lifecycles import Gang
from policies.core.runs import Run, runs_in
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, mapping, text
from policies.kube.quantities import parse_quantity
from policies.quotas.limit_ranges import formatted, written_requests

_QUEUE: Final = GroupKind("scheduling.volcano.sh", "Queue")
_ROOT: Final = "root"
_MAX_QUEUES: Final = 1000
_MAX_PODS: Final = 10_000
"""Pods of one workload whose requests are added up."""


def beyond_capability(target: Target, facts: Facts) -> Findings:
    """A workload in a Queue whose capability is smaller than one of its pods, or than its gang."""
    manifests = facts.whole
    if manifests is None:
        return
    for run in runs_in(target.obj):
        gang = run.life.gang
        name = (run.value(gang.queue) or gang.default_queue) if gang is not None else None
        if gang is None or not isinstance(name, str) or not name:
            continue
        queue = manifests.named(_QUEUE, "", name)
        if queue is None:
            continue
        if child := _child(manifests, name):
            yield Finding(
                run.at(gang.queue),
                f"Queue {name} is the parent of Queue {child}. Volcano takes jobs in leaf queues only, and "
                f"refuses this {target.kind.kind}, or never starts it.",
                f"Use a queue without children, such as {child}.",
                Certainty.LIKELY,
            )
            continue
        try:
            limits = _limits(queue)
            pods = list(_pods(target, run))
        except ValueError:
            continue  # a quantity that no API server accepts
        yield from islice(_too_large(target, run, gang, f"Queue {name}", limits, pods), 1)


def _child(manifests: WholeObjects, name: str) -> str:
    """The name of a Queue below another one; empty if it is a leaf. The root is the parent of all others."""
    if name == _ROOT:
        return ""
    queues = islice(manifests.every(_QUEUE, ""), _MAX_QUEUES)
    below = (text(each, "metadata", "name") for each in queues if text(each, "spec", "parent") == name)
    return next(below, "")


def _limits(queue: Json) -> dict[str, Decimal]:
    written = mapping(queue, "spec", "capability")
    amounts = {resource: parse_quantity(f"{value}") for resource, value in written.items()}
    return {resource: amount for resource, amount in amounts.items() if amount > 0}


def _pods(target: Target, run: Run) -> Iterator[tuple[PodTemplate, int, Mapping[str, Decimal]]]:
    """The templates of a workload with the number of their pods, and what each requests."""
    for template in target.templates:
        role = run.role_of(template)
        if role is not None and role.pods:
            yield template, role.pods, written_requests(template)


def _too_large(
    target: Target,
    run: Run,
    gang: Gang,
    queue: str,
    limits: Mapping[str, Decimal],
    pods: list[tuple[PodTemplate, int, Mapping[str, Decimal]]],
) -> Findings:
    hint = f"Request less, use another queue, or raise the capability of {queue}."
    for template, _, requests in pods:
        for resource, amount in requests.items():
            if resource in limits and amount > limits[resource]:
                yield Finding(
                    template.spec_path,
                    f"A pod requests {formatted(resource, amount)} {resource}, but the capability of "
                    f"{queue} is {formatted(resource, limits[resource])}. Volcano never starts it.",
                    hint,
                    Certainty.LIKELY,
                )
    total = sum(count for _, count, _ in pods)
    least = run.value(gang.least) if gang.least else 1
    least = total if least is None else least
    if run.changes_size or not isinstance(least, int) or least < 1 or total > _MAX_PODS:
        return
    for resource, limit in limits.items():
        # Any pods may be the first ones: these are the smallest.
        each = sorted(r.get(resource, Decimal(0)) for _, count, r in pods for _ in range(count))
        needed = sum(each[:least], Decimal(0))
        if needed > limit:
            yield Finding(
                pods[0][0].spec_path,
                f"The {least} pods that Volcano starts together request at least "
                f"{formatted(resource, needed)} {resource}, but the capability of {queue} is "
                f"{formatted(resource, limit)}. Volcano never starts this {target.kind.kind}.",
                hint,
                Certainty.LIKELY,
            )
