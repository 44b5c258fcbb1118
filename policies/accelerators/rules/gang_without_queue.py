"""gang-without-queue: workers that need each other, but are scheduled one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.core.contracts import Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.queues import is_queued
from policies.core.runs import role_of
from policies.kube.field_paths import Steps
from policies.kube.group_kinds import (
    CRON_JOB,
    DISAGGREGATED_SET,
    JOB,
    JOB_SET,
    KUBEFLOW_JOBS,
    LEADER_WORKER_SET,
    RAY_CLUSTER,
    RAY_JOB,
    GroupKind,
    kind_of,
)
from policies.kube.json import Json, dig, integer, mapping

_TRAIN_JOB: Final = GroupKind("trainer.kubeflow.org", "TrainJob")
_RAY: Final = (
    RAY_CLUSTER,
    RAY_JOB,
    GroupKind("ray.io", "RayService"),
    GroupKind("ray.io", "RayCronJob"),
    GroupKind("orchestration.aibrix.ai", "RayClusterFleet"),
)
_LEADS: Final = (LEADER_WORKER_SET, DISAGGREGATED_SET)
"""Kinds of sets of groups: a leader and its workers need each other, the groups do not."""
_GANGS: Final = (JOB, CRON_JOB, JOB_SET, _TRAIN_JOB, *_RAY, *_LEADS, *KUBEFLOW_JOBS)


def check(target: Target, facts: Facts) -> Findings:
    catalogue = facts.settings(GpuAffinity).catalogue
    asking = [template for template in target.templates if catalogue.requests(template.typed.spec)]
    workers, gang = _largest_gang(target, asking)
    if workers < 2 or is_queued(target.obj) or any(map(_is_scheduled_together, gang)):
        return
    pods, such = ("pods of a group", "groups") if target.kind in _LEADS else ("workers", "jobs")
    yield Finding(
        f"{gang[0].spec_path}.schedulerName",
        f"The {workers} {pods} with accelerators are scheduled one by one. Two such {such} can each hold "
        "part of the nodes and wait for the rest.",
        "Set Kueue's label kueue.x-k8s.io/queue-name, or use a scheduler that places all of them at once.",
    )


def _largest_gang(target: Target, gang: Sequence[PodTemplate]) -> tuple[int, Sequence[PodTemplate]]:
    """The largest group of pods of those templates that need each other: their number and templates."""
    groups: dict[Steps, list[PodTemplate]] = {}
    for template in gang:  # the leader's and the worker's template are next to each other
        groups.setdefault(template.steps[:-1] if target.kind in _LEADS else (), []).append(template)
    counted = [(sum(_workers(target.obj, each) for each in group), group) for group in groups.values()]
    return max(counted, key=lambda each: each[0], default=(0, gang))


def _is_scheduled_together(template: PodTemplate) -> bool:
    policy = template.base is not None and dig(template.base.obj, "spec", "podGroupPolicy") is not None
    return policy or is_queued(template.pod)


def _workers(obj: Json, template: PodTemplate) -> int:
    """The number of pods of a template that run at the same time and need each other."""
    above, kind = mapping(obj, *template.steps[:-1]), kind_of(obj)
    if kind in (JOB, CRON_JOB):
        return _indexed(above)
    if kind in _LEADS:
        size = integer(above, "size", default=1)
        return 1 if template.steps[-1] == "leaderTemplate" else size - bool(above.get("leaderTemplate"))
    if kind == _TRAIN_JOB:
        given = integer(obj, "spec", "trainer", "numNodes", default=0)
        runtime = {} if template.base is None else template.base.obj
        return given or integer(runtime, "spec", "mlPolicy", "numNodes", default=1)
    role = role_of(obj, template)
    return 0 if role is None else role.pods


def _indexed(job: Json) -> int:
    """The pods of an indexed Job. Without an index they can't find each other, and if not all indexes run at
    once, none waits for another; from Kubernetes 1.37 a Job may request a gang."""
    gang = dig(job, "scheduling", "schedulingPolicy", "gang") is not None
    indexed = job.get("completionMode") == "Indexed"
    pods = integer(job, "parallelism", default=1)
    return pods if indexed and not gang and pods >= integer(job, "completions", default=0) else 0


RULE = rule(__name__, check, _GANGS, requires=(PodFeature.EXTENDED,))
