"""job-retries: Jobs run again after an eviction and stop on a real error; their logs stay a while.

By default a Job counts an evicted pod as a failure, so that a few bin-packing evictions fail a good
training run, and runs a broken program seven times, hours of accelerators each. A Job that has no
`podFailurePolicy` and `restartPolicy: Never` gets one, on creation (it can't be added later):

1. a pod with the condition DisruptionTarget (eviction, preemption, a node that goes away) is
   replaced and not counted;
2. a main container that exits with anything but 0 and the retryable codes (`retryableExitCodes`,
   143 and 137, and those of the annotation `mlchassis.dev/retryable-exit-codes: "75"`) fails the Job
   at once, or its index where `backoffLimitPerIndex` is set. Sidecars and init containers don't count.

`podReplacementPolicy` becomes `Failed` beside it, as the API demands. With `restartPolicy: OnFailure`
no such policy is allowed, and a policy that the user wrote stays as it is.

Logs go when the Job goes: `ttlSecondsAfterFinished` below `minLogRetention` is raised to it, a
CronJob's history limits of 0 become 1, and a `backoffLimit` of 0 is raised where the first eviction
would still end the Job: by default only where accelerators are at stake, since these values were
written by someone (`raises: all|accelerators|none`).

Suspended and Kueue-managed Jobs are treated like others: suspending deletes pods without counting
them. Jobs of another controller (a RayJob's submitter, the children of a JobSet), Jobs that another
controller runs (`managedBy`), and JobSets with a `failurePolicy` of their own stay as they are.

Source: https://kubernetes.io/docs/tasks/job/pod-failure-policy/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.annotations import RETRYABLE_EXIT_CODES
from policies.core.contracts import Mutator
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.jobs.jobs import (
    DISRUPTION_TARGET,
    JobRetries,
    JobSpec,
    handles_failures_itself,
    is_someone_elses,
    jobs_in,
    may_raise,
)
from policies.kube.group_kinds import CRON_JOB, JOB, JOB_SET, kind_of
from policies.kube.json import Json, dig, integer, replaced, text
from policies.kube.metadata import annotations_of
from policies.kube.pods import Role, containers

_MOST_RULES: Final = 20
"""Rules that the API server accepts in one podFailurePolicy."""


def mutate(obj: Json, settings: JobRetries, facts: Facts) -> Json:
    if is_someone_elses(obj):
        return obj
    stored = bool(text(obj, "metadata", "uid"))
    if stored and kind_of(obj) != CRON_JOB:
        return obj  # what would change can't be changed after creation
    for job in jobs_in(obj):
        spec = job.spec
        if not handles_failures_itself(obj):
            spec = _failing_early(obj, job, settings)
        if not stored and may_raise(job, settings, facts):
            if spec is job.spec and not handles_failures_itself(obj):
                spec = _surviving_eviction(job, settings)
            spec = _kept(spec, settings)
        if spec is not job.spec:
            obj = replaced(obj, job.steps, spec)
    return obj if stored else _with_history(obj, settings, facts)


def _failing_early(obj: Json, job: JobSpec, settings: JobRetries) -> Json:
    never = text(job.template, "spec", "restartPolicy") == "Never"
    if job.has_failure_policy or not never:
        return job.spec
    policy = {"rules": _rules(job, _exit_codes(obj, job, settings))}
    return {**job.spec, "podFailurePolicy": policy, "podReplacementPolicy": "Failed"}


def _rules(job: JobSpec, retryable: list[int]) -> list[Json]:
    """Order counts: an evicted pod's containers exit with 143, or with whatever they make of SIGTERM."""
    action = "FailJob" if job.spec.get("backoffLimitPerIndex") is None else "FailIndex"
    condition = {"type": DISRUPTION_TARGET, "status": "True"}
    names = [container.name for container in containers(job.template, Role.MAIN)]
    # Named, because a sidecar that is ended after the main container exits with a code of its own.
    each = [{"containerName": name} for name in names] if len(names) < _MOST_RULES else [{}]
    return [
        {"action": "Ignore", "onPodConditions": [condition]},
        *(
            {"action": action, "onExitCodes": {**name, "operator": "NotIn", "values": retryable}}
            for name in each
        ),
    ]


def _exit_codes(obj: Json, job: JobSpec, settings: JobRetries) -> list[int]:
    try:
        annotated = _annotated(obj, job)
    except ValueError:
        annotated = set()  # `advise` says so
    return sorted(annotated.union(settings.retryable_exit_codes))


def _annotated(obj: Json, job: JobSpec) -> set[int]:
    """The exit codes of the annotation on the object or on the pod template. Raises ValueError."""
    codes: set[int] = set()
    for carrier in (obj, job.template):
        written = annotations_of(carrier).get(RETRYABLE_EXIT_CODES)
        if written is not None:
            codes.update(int(code) for code in str(written).split(","))
    if any(not 0 < code < 256 for code in codes) or len(codes) > 50:
        raise ValueError("exit codes are between 1 and 255, 50 of them at most")
    return codes


def _surviving_eviction(job: JobSpec, settings: JobRetries) -> Json:
    """Unless a rule of the user's own says what an eviction means."""
    if job.on_disruption() or job.spec.get("backoffLimit") != 0 or "backoffLimitPerIndex" in job.spec:
        return job.spec
    return {**job.spec, "backoffLimit": settings.backoff_limit}


def _kept(spec: Json, settings: JobRetries) -> Json:
    least = settings.min_log_retention
    if integer(spec, "ttlSecondsAfterFinished", default=least) >= least:
        return spec
    return {**spec, "ttlSecondsAfterFinished": least}


def _with_history(obj: Json, settings: JobRetries, facts: Facts) -> Json:
    """What the objects around the Jobs say of how long these are kept."""
    if not any(may_raise(job, settings, facts) for job in jobs_in(obj)):
        return obj
    if kind_of(obj) == JOB_SET:
        spec = _kept(obj["spec"], settings)
        return obj if spec is obj["spec"] else replaced(obj, ("spec",), spec)
    for name in ("failedJobsHistoryLimit", "successfulJobsHistoryLimit"):
        if dig(obj, "spec", name) == 0:
            obj = replaced(obj, ("spec", name), 1)
    return obj


def advise(obj: Json, settings: JobRetries, facts: Facts) -> Iterator[Finding]:
    """An annotation that can't be read."""
    for job in jobs_in(obj):
        try:
            _annotated(obj, job)
        except ValueError:
            yield Finding(
                f"metadata.annotations[{RETRYABLE_EXIT_CODES}]",
                f"The annotation {RETRYABLE_EXIT_CODES} is not a list of exit codes and was not applied.",
                'Write numbers from 1 to 255, such as "75" or "75, 130".',
                Certainty.UNDECIDED,
            )
            return


MUTATOR = Mutator(
    "job-retries",
    JobRetries,
    mutate=mutate,
    advise=advise,
    kinds=(JOB, CRON_JOB, JOB_SET),
    on_update=(CRON_JOB,),
)
