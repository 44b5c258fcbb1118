"""autoscaler-ends-tasks: workers of a queue that KEDA removes while they work.

Source: `deletePreviousVersionScaleJobs` in controllers/keda/scaledjob_controller.go of KEDA 2.18.
"""

from __future__ import annotations

import re
from typing import Final

from policies.core import data
from policies.core.autoscalers import autoscaler_of
from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.settings import Field, Model
from policies.kube.group_kinds import SCALED_JOB, SERVING
from policies.kube.metadata import written
from policies.kube.objects.pods import DEFAULT_GRACE
from policies.kube.objects.scaling import HorizontalPodAutoscaler, ScaledJob
from policies.kube.pods import Role
from policies.probes.serving import recognised
from policies.rollouts.rollouts import minimum_replicas

_NAME: Final = re.compile(r"s[0-9]{1,3}-([a-z0-9-]{1,253})")
"""A metric of a ScaledObject's autoscaler: the index of the trigger, and the scaler with its queue."""


class Queue(Model):
    """An entry of `queues.yaml`."""

    name: str
    metrics: tuple[str, ...] = Field(
        min_length=1,
        description="how the names of KEDA's metrics go on after the index, or the types of its triggers",
    )


def _queue_of(autoscaler: HorizontalPodAutoscaler) -> str:
    """The queue whose length scales the workload; empty if a metric is something else, or unknown."""
    names = [each.external.name if each.external else "" for each in autoscaler.spec.metrics]
    queues = [_queue_in(name) for name in names]
    return queues[0] if queues and all(queues) else ""


def _queue_in(name: str) -> str:
    found = _NAME.match(name)
    if found is None:
        return ""
    scaler = f"{found[1]}-"
    return next(
        (each.name for each in _queues() if any(scaler.startswith(f"{one}-") for one in each.metrics)), ""
    )


_queues = data.entries(Queue, "policies.autoscaling", "queues.yaml")


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == SCALED_JOB:
        yield from _by_update(target)
    else:
        yield from _by_autoscaler(target, facts)


def _by_update(target: Target) -> Findings:
    """A change of a ScaledJob, at which KEDA deletes its Jobs unless its rollout is gradual."""
    spec = target.read(ScaledJob).spec
    if (spec.rollout_strategy or spec.rollout.strategy) == "gradual":
        return
    for template in target.templates:
        if _has_default_grace(target, template):
            yield Finding(
                "spec.rollout.strategy",
                "KEDA deletes the running Jobs whenever this ScaledJob changes, and their pods have "
                f"{DEFAULT_GRACE} s (the default) to end. A task that takes longer is lost or repeated.",
                "Set `rollout: {strategy: gradual}`, so that running Jobs finish with the old version.",
            )


def _by_autoscaler(target: Target, facts: Facts) -> Findings:
    autoscaler = autoscaler_of(target.kind.kind, target.name, facts) if target.replicas else None
    if autoscaler is None or (autoscaler.spec.max_replicas or 0) <= minimum_replicas(target, facts):
        return
    queue = _queue_of(autoscaler)
    for template in target.templates if queue else ():
        mains = template.containers(Role.MAIN)
        if not _has_default_grace(target, template) or any(
            recognised(each, facts) is not None for each in mains
        ):
            continue
        yield Finding(
            f"{template.spec_path}.terminationGracePeriodSeconds",
            f"{autoscaler.title} removes pods when its queue ({queue}) is short, "
            f"including pods that still work on a task. A pod has {DEFAULT_GRACE} s (the default) to end, "
            "so a task that takes longer is lost or repeated.",
            "Set terminationGracePeriodSeconds to the length of the longest task, and let the program "
            "finish its task on SIGTERM. Or use a ScaledJob with `rollout: {strategy: gradual}`, whose "
            "pods all run to completion.",
        )


def _has_default_grace(target: Target, template: PodTemplate) -> bool:
    """Whether nobody has decided how long the pods have to end; the API server writes its default down."""
    grace = template.typed.spec.termination_grace_period_seconds
    is_chosen = grace is not None and (
        grace != DEFAULT_GRACE
        or written(target.obj, *template.steps, "spec", "terminationGracePeriodSeconds") is not None
    )
    return not is_chosen and all(each.typed.pre_stop is None for each in template.containers(Role.MAIN))


RULE = rule(__name__, check, (*SERVING, SCALED_JOB), unowned=True)
