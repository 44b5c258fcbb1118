"""job-lost-on-eviction: training that an eviction ends, although it could be retried."""

from __future__ import annotations

from typing import Final

from policies.accelerators.requests import wants_accelerator
from policies.containers.programs import only_idles
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.lifecycles import Evictions, known_lifecycles
from policies.core.pod_view import PodView
from policies.core.runs import RetryAt, Run, runs_in
from policies.core.spot_nodes import spot_nodes_of
from policies.jobs.job_retries_settings import JobRetries
from policies.jobs.jobs import PlacedJobSpec, handles_failures_itself, is_gang, own_jobs, wants_to_finish
from policies.jobs.training import measures, runs_training
from policies.kube.field_paths import field_path, value_at
from policies.kube.group_kinds import JOB, JOB_SET
from policies.kube.objects.jobs import JobSet

_IGNORES: Final = "RestartJobSetAndIgnoreMaxRestarts"


def check(target: Target, facts: Facts) -> Findings:
    if only_idles(target) or (target.templates and all(measures(t, target.name) for t in target.templates)):
        return
    for job in own_jobs(target):
        yield from _job(target, job, facts)
    if target.kind == JOB_SET and handles_failures_itself(target.obj):
        yield from _job_set(target, facts)
    for run in runs_in(target.obj):
        if run.life.group_kind not in (JOB, JOB_SET):
            yield from _run(target, run, facts)


def _job(target: Target, job: PlacedJobSpec, facts: Facts) -> Findings:
    if (failing := job.fails_at_sigterm()) is not None:
        yield Finding(
            f"{job.at('podFailurePolicy')}.rules[{failing}]",
            "An evicted or preempted pod gets SIGTERM, and a program that doesn't handle it ends with exit "
            "code 143, which this rule takes for an error. The first eviction fails the whole Job, whatever "
            "its backoffLimit.",
            "Put a rule before it: action Ignore for onPodConditions of the type DisruptionTarget.",
        )
        return
    if job.on_disruption() == "Ignore":
        return
    trains = runs_training(PodView(job.template))
    if not trains and not wants_to_finish(target.obj, job, facts.settings(JobRetries), facts):
        return
    per_index = job.typed.backoff_limit_per_index
    if per_index == 0:
        yield Finding(
            job.at("backoffLimitPerIndex"),
            "With backoffLimitPerIndex 0, the first eviction or preemption of a pod permanently fails its "
            "index, and with it the Job.",
            _HINT.replace("backoffLimit", "backoffLimitPerIndex"),
        )
    elif per_index is not None:
        return
    elif not job.backoff_limit:
        yield Finding(
            job.at("backoffLimit"),
            "With backoffLimit 0, the first eviction or preemption of a pod fails the whole Job.",
            _HINT,
        )
    elif (
        trains
        and job.is_indexed
        and job.backoff_limit < (pods := job.typed.parallelism)
        and target.cache.once(is_gang, target.obj, facts)
    ):
        yield Finding(
            job.at("backoffLimit"),
            f"The {pods} pods train together. If one is evicted, the others also fail, which is "
            f"more failures than the backoffLimit of {job.backoff_limit}. One eviction can fail the Job.",
            f"Set backoffLimit to a multiple of {pods}, or use a JobSet with a failurePolicy, "
            "which restarts all pods together.",
        )


_HINT: Final = (
    "Add a podFailurePolicy rule that ignores the condition DisruptionTarget, or raise backoffLimit."
)


def _job_set(target: Target, facts: Facts) -> Findings:
    """A JobSet whose restarts evictions use up: one of its Jobs fails at the first eviction, and no rule of
    the failurePolicy leaves that out of the count."""
    policy = target.read(JobSet).spec.failure_policy
    if policy is None or any(each.action == _IGNORES for each in policy.rules):
        return
    for template in target.templates:
        if not (wants_accelerator(template.view, facts) or runs_training(template.view)):
            continue
        index = template.steps[2]
        job = target.read(JobSet).spec.replicated_jobs[index] if isinstance(index, int) else None
        if job is not None and job.template.spec.backoff_limit == 0:
            left = policy.max_restarts
            yield Finding(
                "spec.failurePolicy.maxRestarts",
                f"Each eviction or preemption of a pod uses up one of the {left} restarts, just like an "
                "error of the program. After some days on busy or preemptible nodes, none is left."
                if left
                else "With maxRestarts 0, the first eviction or preemption of a pod ends the JobSet, just "
                "like an error of the program.",
                f"Add a failurePolicy rule with the action {_IGNORES} for onJobFailureReasons "
                "PodFailurePolicy. Also give its Jobs a podFailurePolicy that fails them on the condition "
                "DisruptionTarget.",
            )
            return


def _run(target: Target, run: Run, facts: Facts) -> Findings:
    for each in run.retries():
        if not (_ends_at_eviction(each) and _is_asked_for(target, each)):
            continue
        remedy = _remedy(each, run)
        if remedy and _is_expensive(target, each, run, facts):
            yield Finding(field_path(each.steps), _why(each), remedy)


def _ends_at_eviction(each: RetryAt) -> bool:
    """Whether the first eviction ends it: it is never retried, or uses up one of 0 retries."""
    if each.retry.evictions is Evictions.FATAL:
        return True
    return each.retry.evictions is Evictions.COUNTED and each.limit == 0


def _is_asked_for(target: Target, each: RetryAt) -> bool:
    """Whether the author wants retries. A kind that retries nothing by default is a decision, as RayJob's and
    Tekton's, and so is Never; but a retryStrategy of Argo asks for some, whatever its default policy does."""
    if not each.retry.fields or each.value == "Never":
        return False
    if value_at(target.obj, field_path(each.steps)) is not None:
        return True
    return each.retry.evictions is Evictions.FATAL and each.retry.limit.startswith(".")


def _why(each: RetryAt) -> str:
    if each.retry.evictions is Evictions.FATAL:
        return (
            f"An eviction, a preemption or a node drain ends it, because {_name(each)} doesn't retry these."
        )
    return f"The first eviction ends it, because without {each.retry.limit}, {_name(each)} retries 0 times."


def _name(each: RetryAt) -> str:
    return f"{each.steps[-1]} {each.value}"


def _remedy(each: RetryAt, run: Run) -> str:
    """What to write instead; empty if no setting of the kind survives an eviction."""
    if each.steps[-1] == "retryPolicy":
        return "Set retryPolicy to Always, because Argo reports a deleted pod as an error, not as a failure."
    if each.retry.evictions is Evictions.COUNTED:
        return f"Set {each.retry.limit} to at least 1."
    survives = (
        value
        for other in run.life.retries
        if other.evictions is Evictions.FREE and not other.broken
        for value in other.values
    )
    value = next(survives, "")
    return f"Use {value}. The operator then replaces a pod that was killed." if value else ""


def _is_expensive(target: Target, each: RetryAt, run: Run, facts: Facts) -> bool:
    """Whether a pod that the setting is about trains, has accelerators, or is on spot nodes."""
    above = each.steps[:-2] if each.steps[-1] == "retryPolicy" else each.steps[:-1]
    inside = [t for t in target.templates if t.steps[: len(above)] == above]
    return any(
        run.life.trains
        or wants_accelerator(t.view, facts)
        or runs_training(t.view)
        or spot_nodes_of(t.typed.spec) is not None
        for t in inside or target.templates
    )


RULE = rule(__name__, check, tuple(known_lifecycles()), unowned=True)
