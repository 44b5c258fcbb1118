"""launcher-starts-early: launchers that use up their retries before their workers run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.accelerators.requests import is_large
from policies.containers.commands import container_command
from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.lifecycles import known_lifecycles
from policies.core.runs import Run, runs_in
from policies.jobs.training import LAUNCHERS_DAEMON
from policies.kube.field_paths import field_path
from policies.kube.group_kinds import JOB_SET, VOLCANO_JOB
from policies.kube.json import Json, mapping, maps, strings, text
from policies.kube.objects.jobs import JobSet
from policies.kube.pods import Role

_LAUNCHERS: Final = frozenset({"mpirun", "mpiexec", "horovodrun", "orterun", "prun"})
_PATIENT: Final = 10
"""Retries. Their delays, which double from 10 s up to 5 or 6 minutes, add up to half an hour, in which a node
starts and an image is pulled.
https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-backoff-failure-policy
https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy
"""


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == JOB_SET:
        yield from _job_set(target)
    if target.kind == VOLCANO_JOB:
        yield from _volcano(target)
    for run in runs_in(target.obj):
        start = run.life.start
        if start is None or (run.value(start.field) or start.default) not in start.early:
            continue
        if any(map(run.has, start.unless)) or _is_patient(run):
            continue
        pods = {each.role.name: each.pods for each in run.roles()}
        if not any(is_large(each.view, facts) for each in target.templates):
            continue  # small images on nodes that run already
        for launcher in _launchers(target, run):
            if pods.get(launcher[1]) and not _waits(launcher[0]):
                yield Finding(
                    field_path((*run.steps, *start.field.split("."))),
                    f"The launcher starts together with its {pods[launcher[1]]} workers and fails until "
                    "all of them answer. Each failure counts as a retry. If a node must start or a large "
                    f"image must be pulled first, the {run.life.kind} fails.",
                    f"Set {start.field} to {start.instead}.",
                )


def _launchers(target: Target, run: Run) -> Iterator[tuple[PodTemplate, str]]:
    """The templates of roles that need another role, with the name of that."""
    for template in target.templates:
        role = run.role_of(template)
        if role is not None and role.role.needs:
            yield template, role.role.needs


def _job_set(target: Target) -> Findings:
    """A replicated job with mpirun that starts together with one that runs sshd."""
    spec = target.read(JobSet).spec
    if spec.startup_policy.startup_policy_order == "InOrder":
        return
    daemons = [each for each in target.templates if LAUNCHERS_DAEMON in _programs(each)]
    for template in target.templates:
        index = template.steps[2] if len(template.steps) > 2 else None
        if not isinstance(index, int) or not daemons or not _programs(template) & _LAUNCHERS:
            continue
        job = spec.replicated_jobs[index]
        if job.depends_on or template in daemons or _waits(template):
            continue
        if (job.template.spec.backoff_limit or 0) >= _PATIENT:
            continue
        yield Finding(
            f"spec.replicatedJobs[{index}].dependsOn",
            "The launcher starts together with the workers whose sshd it needs, and fails until they "
            "answer. Each failure counts as a retry. If a node must start or a large image must be pulled "
            "first, the JobSet fails.",
            "Add dependsOn with the name of the workers' job and status Ready.",
        )


def _volcano(target: Target) -> Iterator[Finding]:
    """A task with mpirun, whose first failure is final, that starts together with tasks that run only
    sshd."""
    daemons = [
        each
        for each in target.templates
        if LAUNCHERS_DAEMON in (programs := _programs(each)) and not programs & _LAUNCHERS
    ]
    for template in target.templates:
        task = mapping(target.obj, *template.steps[:-1])
        if not daemons or not _programs(template) & _LAUNCHERS or task.get("dependsOn"):
            continue
        if template.typed.spec.restart_policy != "Never" or _waits(template):
            continue  # the kubelet starts others again until the workers answer
        if any(map(_restarts, (*maps(target.obj, "spec", "policies"), *maps(task, "policies")))):
            continue  # by then, the image is on the nodes
        yield Finding(
            f"{field_path(template.steps[:-1])}.dependsOn",
            "The launcher starts together with the workers whose sshd it needs, and fails until they "
            "answer. No policy restarts the Job, so the first failure is final. If a large image must be "
            "pulled first, the Job fails.",
            "Add dependsOn with the name of the workers' task, and set minAvailable to the number of "
            "workers.",
        )


def _restarts(policy: Json) -> bool:
    """Whether a policy of Volcano answers a failed pod with a restart."""
    events = (text(policy, "event"), *strings(policy, "events"))
    failed = "exitCode" in policy or not {"PodFailed", "TaskFailed", "*"}.isdisjoint(events)
    return failed and text(policy, "action").startswith("Restart")


def _is_patient(run: Run) -> bool:
    """Whether the retries of the workload last until its workers run."""
    limits = [each.limit for each in run.retries()]
    return any(limit is not None and limit >= _PATIENT for limit in limits)


def _programs(template: PodTemplate) -> set[str]:
    return {
        command.name
        for container in template.containers(Role.MAIN)
        for command in container_command(template, container).commands
    }


def _waits(template: PodTemplate) -> bool:
    """Whether a launcher waits by itself: in an init container, in a loop, or in a script that is unknown."""
    if template.containers(Role.INIT):
        return True
    read = [container_command(template, each) for each in template.containers(Role.MAIN)]
    known = [each for each in read if each.commands or each.scripts or not each.complete]
    return not known or any(each.loops or not each.complete or each.scripts for each in known)


RULE = rule(__name__, check, tuple(known_lifecycles()))
