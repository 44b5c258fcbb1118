"""job-retries: Jobs run again after an eviction and stop on a real error; their logs stay a while.

By default a Job counts an evicted pod as a failure, so that a few bin-packing evictions fail a good
training run, and runs a broken program seven times, hours of accelerators each. A Job that has no
`podFailurePolicy` and `restartPolicy: Never` gets one, on creation (it can't be added later):

1. a pod with the condition DisruptionTarget (eviction, preemption, a node that goes away) is
   replaced and not counted;
2. where the Job trains (it asks for an accelerator, or carries one of `trainingLabels`) or names its
   retryable exit codes, and leaves `backoffLimit` at the API's default, a main container that exits with
   anything but 0 and the retryable codes (`retryableExitCodes`, 143 and 137, and those of the annotation
   `mlchassis.dev/retryable-exit-codes: "75"`) fails the Job at once. Sidecars and init containers don't
   count. Any other number of retries, `backoffLimitPerIndex` too, is a decision, and gets the first rule
   alone.

`podReplacementPolicy` becomes `Failed` beside it, as the API demands. With `restartPolicy: OnFailure`
no such policy is allowed, and a policy that the user wrote stays as it is.

Several pods with accelerators that work as one (an Indexed Job, a JobSet) get nothing: a replaced pod
leaves the others waiting for the lost one.

What was written stays: `ttlSecondsAfterFinished`, history limits and a `backoffLimit` of 0 are warned
about where they lose something, and raised only if the setting `raises` says so (`all`, `accelerators`).

Suspended and Kueue-managed Jobs are treated like others: suspending deletes pods without counting
them. Hooks of Helm and Argo CD, Jobs of another controller (a RayJob's submitter, the children of a
JobSet), Jobs that another controller runs (`managedBy`), and JobSets with a `failurePolicy` of their own
stay as they are.

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
    is_gang,
    is_hook,
    is_someone_elses,
    jobs_in,
    may_raise,
    trains,
)
from policies.kube.group_kinds import CRON_JOB, JOB, JOB_SET, kind_of
from policies.kube.json import Json, dig, integer, replaced, text
from policies.kube.metadata import annotations_of
from policies.kube.pods import Role, containers

_MOST_RULES: Final = 20
"""Rules that the API server accepts in one podFailurePolicy."""


def mutate(obj: Json, settings: JobRetries, facts: Facts) -> Json:
    if is_someone_elses(obj) or is_hook(obj):
        return obj
    stored = bool(text(obj, "metadata", "uid"))
    if stored and kind_of(obj) != CRON_JOB:
        return obj  # what would change can't be changed after creation
    alone = not (handles_failures_itself(obj) or is_gang(obj, facts))
    for job in jobs_in(obj):
        spec = job.spec
        if alone:
            spec = _with_policy(obj, job, settings, facts)
        if not stored and may_raise(job, settings, facts):
            if spec is job.spec and alone:
                spec = _surviving_eviction(job, settings)
            spec = _kept(spec, settings)
        if spec is not job.spec:
            obj = replaced(obj, job.steps, spec)
    return obj if stored else _with_history(obj, settings, facts)


def _with_policy(obj: Json, job: JobSpec, settings: JobRetries, facts: Facts) -> Json:
    never = text(job.template, "spec", "restartPolicy") == "Never"
    if job.has_failure_policy or not never:
        return job.spec
    rules: list[Json] = [
        {"action": "Ignore", "onPodConditions": [{"type": DISRUPTION_TARGET, "status": "True"}]}
    ]
    # Order counts: an evicted pod's containers exit with 143, or with whatever they make of SIGTERM.
    if job.leaves_retries_open and (trains(obj, job, settings, facts) or _names_exit_codes(obj, job)):
        rules += _failing(job, _exit_codes(obj, job, settings))
    return {**job.spec, "podFailurePolicy": {"rules": rules}, "podReplacementPolicy": "Failed"}


def _names_exit_codes(obj: Json, job: JobSpec) -> bool:
    return any(RETRYABLE_EXIT_CODES in annotations_of(carrier) for carrier in (obj, job.template))


def _failing(job: JobSpec, retryable: list[int]) -> list[Json]:
    """The rules that end the Job when one of its main containers fails by its own fault."""
    names = [container.name for container in containers(job.template, Role.MAIN)]
    # Named, because a sidecar that is ended after the main container exits with a code of its own.
    each = [{"containerName": name} for name in names] if len(names) < _MOST_RULES else [{}]
    return [
        {"action": "FailJob", "onExitCodes": {**name, "operator": "NotIn", "values": retryable}}
        for name in each
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
