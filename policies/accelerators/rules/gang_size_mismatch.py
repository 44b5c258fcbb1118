"""gang-size-mismatch: a gang scheduler waits for more pods than a job has, or for fewer than it needs."""

from __future__ import annotations

import re
from typing import Final

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.core.autoscalers import autoscaler_of
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.runs import runs_in
from policies.kube.field_paths import field_path
from policies.kube.group_kinds import (
    DEPLOYMENT,
    JOB,
    KUBEFLOW_JOBS,
    REPLICA_SET,
    STATEFUL_SET,
    VOLCANO_JOB,
    GroupKind,
)
from policies.kube.json import mapping, maps, text
from policies.kube.names import plural
from policies.kube.objects.jobs import Job
from policies.kube.objects.metadata import Object
from policies.kube.objects.scaling import HorizontalPodAutoscaler
from policies.kube.objects.workloads import Replicated, StatefulSet
from policies.kube.quantities import whole_number
from policies.rollouts.rollouts import rolling_update

_VOLCANO: Final = (VOLCANO_JOB, GroupKind("flow.volcano.sh", "JobTemplate"))
_CONTROLLERS: Final = (DEPLOYMENT, REPLICA_SET, STATEFUL_SET, JOB)
"""Kinds for which Volcano itself creates a PodGroup, with its size in an annotation of the object."""
_MIN_MEMBER: Final = "scheduling.volcano.sh/group-min-member"
_GROUP_NAMES: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
"""Annotations of pods with another PodGroup."""
_FIXED_SIZE: Final = ("PyTorchJob", "JAXJob", "MPIJob")
"""Kubeflow's kinds whose processes wait for all others. Other kinds may start earlier."""
_FIXED_PLUGINS: Final = ("pytorch", "mpi")
"""Volcano's plugins that write the number or the names of all pods into each pod."""
_ELASTIC: Final = re.compile(r"elastic|horovod|min[-_]np|nnodes.{0,24}?\d:\d", re.IGNORECASE)
"""Signs of a launcher that starts with fewer processes, for which nothing is reported."""


def check(target: Target, facts: Facts) -> Findings:
    if target.kind in _CONTROLLERS:
        yield from _of_controller(target, facts)
        return
    yield from _after_workers(target)
    volcano = target.kind in _VOLCANO
    if volcano:
        yield from _in_turn(target)
    steps = ("spec",) if volcano else ("spec", "runPolicy", "schedulingPolicy")
    least = _number(mapping(target.obj, *steps).get("minAvailable"))
    counts = [_pods(target, template) for template in target.templates]
    elastic = any(run.changes_size for run in runs_in(target.obj))
    if least is None or None in counts or not counts or elastic:
        return
    path, made = f"{field_path(steps)}.minAvailable", sum(filter(None, counts))
    if least > made:
        yield Finding(
            path,
            f"The job creates {plural(made, 'pod')}, but minAvailable is {least}. A gang scheduler waits "
            "for the missing pods, so no pod of the job ever starts.",
            f"Set minAvailable to {made}, or omit it: the default is all pods of the job.",
        )
        return
    catalogue = facts.settings(GpuAffinity).catalogue
    needed = sum(
        count or 0
        for template, count in zip(target.templates, counts, strict=True)
        if catalogue.requests(template.typed.spec)
    )
    if least < needed > 1 and _needs_all(target):
        yield Finding(
            path,
            f"The {needed} pods with accelerators need each other, but minAvailable is {least}. A gang "
            "scheduler may start only some of them, which hold their accelerators while they wait for the "
            "rest.",
            f"Set minAvailable to {made}, or omit it: the default is all pods of the job.",
        )


def _after_workers(target: Target) -> Findings:
    """A launcher that is created when its workers are ready, in a gang that includes it
    (`calculateMinAvailable` in pkg/controller/podgroup.go of the MPI Operator 0.6: one more than the
    workers)."""
    for run in runs_in(target.obj):
        start = run.life.start
        if start is None or run.value(start.field) != start.instead or not any(map(run.has, start.unless)):
            continue
        workers = sum(each.pods for each in run.roles() if not each.role.needs)
        least = _number(run.value(f"{start.unless[0]}.minAvailable"))
        if workers and (least is None or least > workers):
            yield Finding(
                run.at(f"{start.unless[0]}.minAvailable"),
                f"The launcher is created only when the {workers} workers are ready, but a gang scheduler "
                f"starts no worker until {least or workers + 1} pods exist. No pod ever starts.",
                f"Set minAvailable to {workers}.",
            )


def _in_turn(target: Target) -> Findings:
    """Tasks with `dependsOn`, whose pods Volcano creates only when those of other tasks run, in a gang that
    counts all (`waitDependsOnTaskMeetCondition` in pkg/controllers/job/job_controller_actions.go)."""
    tasks = maps(target.obj, "spec", "tasks")
    counts = [_number(task.get("replicas")) for task in tasks]
    first = sum(count or 0 for task, count in zip(tasks, counts, strict=True) if not task.get("dependsOn"))
    waiting = next((text(task, "name") for task in tasks if task.get("dependsOn")), None)
    if waiting is None or None in counts or text(target.obj, "spec", "schedulerName") not in ("", "volcano"):
        return
    written = _number(mapping(target.obj, "spec").get("minAvailable"))
    default = (_number(task.get("minAvailable", task.get("replicas"))) for task in tasks)
    least = written or sum(filter(None, default))
    if least > first:
        default_of = "" if written else ", the default"
        yield Finding(
            "spec.minAvailable",
            f"Task {waiting} is created only when the tasks that it depends on are running, but Volcano "
            f"starts no pod until {least} exist (minAvailable{default_of}), and only {first} do. Unless the "
            "scheduler's gang plugin is off, no pod ever starts.",
            f"Set minAvailable to {first}, the number of pods of the tasks without dependsOn.",
        )


def _of_controller(target: Target, facts: Facts) -> Findings:
    least = whole_number(target.read(Object).metadata.annotations.get(_MIN_MEMBER), 6)
    if least is None or len(target.templates) != 1:
        return
    pod = target.templates[0].typed
    if pod.spec.scheduler_name != "volcano" or set(_GROUP_NAMES) & pod.metadata.annotations.keys():
        return
    path = f"metadata.annotations[{_MIN_MEMBER}]"
    ordered = (
        target.kind == STATEFUL_SET and target.read(StatefulSet).spec.pod_management_policy != "Parallel"
    )
    if least > 1 and ordered:
        yield Finding(
            path,
            f"Volcano starts the first pod only together with {least - 1} more, but this StatefulSet "
            "creates the second pod only after the first is ready. No pod ever starts.",
            "Set podManagementPolicy to Parallel.",
        )
        return
    made = _at_once(target)
    if not made or autoscaler_of(target.kind.kind, target.name, facts) is not None:
        return
    certainty = Certainty.LIKELY if facts.is_unread(HorizontalPodAutoscaler) else Certainty.CERTAIN
    if least > made:
        yield Finding(
            path,
            f"The {target.kind.kind} creates {plural(made, 'pod')} at a time, but {_MIN_MEMBER} is "
            f"{least}. Volcano waits for the missing pods, so no pod ever starts.",
            f"Set the annotation to at most {made}.",
            certainty,
        )
        return
    update = rolling_update(target, made) if target.kind == DEPLOYMENT else None
    if update is not None and least > update.surge + update.unavailable:
        new = update.surge + update.unavailable
        yield Finding(
            path,
            f"A rolling update starts with {plural(new, 'new pod')}, but {_MIN_MEMBER} is {least}. Volcano "
            "waits for the missing pods, but the Deployment creates more only after the first ones are "
            "ready.",
            f"Set maxSurge or maxUnavailable to {least}, or set the strategy to Recreate.",
            certainty,
        )


def _at_once(target: Target) -> int | None:
    """The number of pods that a controller creates at the same time; None if unknown."""
    if target.kind != JOB:
        return target.read(Replicated).spec.replicas
    return target.read(Job).spec.at_once


def _pods(target: Target, template: PodTemplate) -> int | None:
    """The number of pods of a template; None if unknown."""
    above = mapping(target.obj, *template.steps[:-1])
    if "replicas" in above:
        return _number(above["replicas"])
    # Volcano's default is 0, MPI operators' 1 launcher and no worker; other defaults are 1.
    fixed = target.kind not in _VOLCANO and not (
        target.kind.kind == "MPIJob" and template.steps[-2] == "Worker"
    )
    return 1 if fixed else None


def _needs_all(target: Target) -> bool:
    spec = mapping(target.obj, "spec")
    if target.kind in _VOLCANO:
        partial = any("minAvailable" in task for task in maps(spec, "tasks"))
        fixed = not partial and any(name in mapping(spec, "plugins") for name in _FIXED_PLUGINS)
    else:
        fixed = target.kind.kind in _FIXED_SIZE
    return fixed and not any(_ELASTIC.search(str(each.spec)) for each in target.templates)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


RULE = rule(__name__, check, (*KUBEFLOW_JOBS, *_VOLCANO, *_CONTROLLERS))
